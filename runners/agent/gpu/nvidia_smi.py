"""NVIDIA GPUs by nvidia-smi, where NVML cannot be loaded: at most once a second, as a call takes 20 ms and more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .nvml_hot import SHARE_S, throttled_share
from .smi_report import Gpu, links_of_topo, names_of_help, report_of_xml, rows_of_csv
from .smi_values import POWER_COUNTERS, REASON_NAMES, RULES, THERMAL_COUNTERS, Row, device, reading, throttle_seconds
from .source import BAD_VALUE, FAILED, HOT, NOT_FOUND, SLOW, STATIC, Gone, Reading, Reasons, Source, SourceError
from .sysfile import PCI, numa_node

_CALL_S = 10.0
_MOST_REFUSED = 40
_ASKED_HOT = ("util", "mem_busy", "mem_used", "power_w", "temp_edge_c", "temp_mem_c", "clk_sm_mhz", "clk_mem_mhz")
_ASKED_STATIC = ("mem_total", "power_limit_w", "ecc_corr", "ecc_uncorr", "fan")
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field')
_MEND = "`nvidia-smi` must work for this user; in a container it needs the capability `utility`."


class NvidiaSmi(Source):
    """See source.py."""

    name = "nvidia-smi"
    vendor = "nvidia"
    most_hz = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._program = ""
        self._names: List[str] = []
        self._row: List[Optional[Row]] = []  # of the last hot reading, which also asked for the counters
        self._row_at = 0.0
        self._before: Dict[Tuple[int, str], Tuple[float, float]] = {}

    def open(self) -> None:
        """Raises SourceError where there is no nvidia-smi, or it finds no GPU."""
        program = shutil.which("nvidia-smi")
        if program is None:
            raise SourceError(NOT_FOUND, "There is no nvidia-smi on the PATH.", _MEND)
        self._program = program
        try:
            gpus = self._report()
            self._names = self._known_names()
            joined = links_of_topo(self._say(["topo", "-m"], check=False))
        except Gone as e:
            raise SourceError(e.code, e.text, _MEND) from None
        if not gpus:
            raise SourceError(FAILED, "nvidia-smi finds no GPU.", _MEND)
        self.version = gpus[0].row.get("driver_version")
        self.devices = []
        for index, gpu in enumerate(gpus):
            found = device(gpu.row, index)
            found.update(numa_node=numa_node("%s%s" % (PCI, found["bdf"])), links=joined.get(index, []))
            self.devices.append(found)
        self.reasons = [untold() for _ in gpus]
        self._row = [None] * len(gpus)

    def hot(self) -> List[Reading]:
        """See Source."""
        text = self._query()
        by_uuid = {row.get("uuid"): row for row in rows_of_csv(text, self._names)}
        self._row_at = time.monotonic()
        self._row = [by_uuid.get(found["uuid"]) for found in self.devices]
        if all(row is None for row in self._row):
            raise Gone(FAILED, "nvidia-smi no longer tells of these GPUs: %s" % _short(text))
        return [self._hot(row, reasons) for row, reasons in zip(self._row, self.reasons)]  # noqa: B905

    def slow(self) -> List[Reading]:
        """See Source; the shares of throttling between the last two hot readings."""
        return [self._slow(index, row) for index, row in enumerate(self._row)]

    def static(self) -> List[Reading]:
        """See Source."""
        gpus = {gpu.row.get("uuid"): gpu for gpu in self._report()}
        found = []
        for said, reasons in zip(self.devices, self.reasons):  # noqa: B905
            gpu = gpus.get(said["uuid"])
            if gpu is None:
                found.append(_lost(STATIC, reasons))
                continue
            values = reading(gpu.row, _ASKED_STATIC, reasons)
            values["procs"] = gpu.procs
            if gpu.procs is None:
                reasons.none("procs", NOT_FOUND, "this nvidia-smi does not list processes")
            found.append(values)
        return found

    def _hot(self, row: Optional[Row], reasons: Reasons) -> Reading:
        if row is None:
            return _lost(HOT, reasons)
        found: Reading = dict.fromkeys(("temp_hot_c", "clk_min_mhz", "clk_max_mhz"))
        found.update(reading(row, (*_ASKED_HOT, "throttle"), reasons))
        return found

    def _slow(self, index: int, row: Optional[Row]) -> Reading:
        found: Reading = {field: None for field in SLOW if field not in ("thr_power", "thr_thermal")}
        if row is None:
            return found
        for field, names in (("thr_power", POWER_COUNTERS), ("thr_thermal", THERMAL_COUNTERS)):
            seconds = throttle_seconds(row, names)
            if seconds is None:
                found[field] = None
                self.reasons[index].none(field, NOT_FOUND, "nvidia-smi does not tell %s" % names[0])
                continue
            at, before = self._before.get((index, field), (self._row_at, seconds))
            past_s = self._row_at - at
            if 0 < past_s < SHARE_S:
                continue
            self._before[index, field] = (self._row_at, seconds)
            if past_s > 0:
                found[field] = throttled_share(seconds - before, past_s)
                if found[field] is None:
                    text = "the counter went from %g s to %g s in %.3g s" % (before, seconds, past_s)
                    self.reasons[index].none(field, BAD_VALUE, text)
        return found

    def _known_names(self) -> List[str]:
        """What is asked for at each tick: of every field the names that this nvidia-smi has."""
        known = set(names_of_help(self._say(["--help-query-gpu"], check=False)))
        wanted = ["uuid", *(name for field in _ASKED_HOT for name in RULES[field].names), *REASON_NAMES]
        wanted += [*POWER_COUNTERS, *THERMAL_COUNTERS]
        return [name for name in wanted if not known or name in known]

    def _query(self) -> str:
        """One CSV of the known names; a name that is refused after all is asked for no more."""
        for _ in range(_MOST_REFUSED):
            rc, text = self._run(["--query-gpu=" + ",".join(self._names), "--format=csv,noheader,nounits"])
            refused = _REFUSED.search(text)
            if refused is None or refused.group(1) not in self._names or refused.group(1) == "uuid":
                if rc != 0 and not rows_of_csv(text, self._names):
                    raise Gone(FAILED, "nvidia-smi ended with %d: %s" % (rc, _short(text)))
                return text
            self._names.remove(refused.group(1))
        raise Gone(FAILED, "nvidia-smi refuses every field.")

    def _report(self) -> List[Gpu]:
        text = self._say(["-q", "-x"])
        try:
            return report_of_xml(text[max(text.find("<?xml"), 0) :])
        except ValueError as e:
            raise Gone(FAILED, "nvidia-smi -q -x gives %s" % e) from None

    def _say(self, words: Sequence[str], check: bool = True) -> str:
        rc, text = self._run(words)
        if rc != 0 and check:
            raise Gone(FAILED, "nvidia-smi ended with %d: %s" % (rc, _short(text)))
        return text if rc == 0 else ""

    def _run(self, words: Sequence[str]) -> Tuple[int, str]:
        try:
            done = subprocess.run(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_CALL_S,
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Gone(FAILED, "nvidia-smi did not answer within %g s." % _CALL_S) from None
        except OSError as e:
            raise Gone(FAILED, "nvidia-smi cannot be started: %s" % e.strerror) from None
        return done.returncode, done.stdout.decode(errors="replace")

    def energy(self) -> List[Reading]:
        """See Source: there is none."""
        return [{"energy_j": None} for _ in self.devices]


def untold() -> Reasons:
    """Reasons for what no nvidia-smi tells by `--query-gpu`."""
    reasons = Reasons()
    reasons.not_told(("temp_hot_c",), "nvidia-smi has no hot spot sensor")
    reasons.not_told(("clk_min_mhz", "clk_max_mhz"), "an NVIDIA GPU has one SM clock")
    reasons.not_told((f for f in SLOW if not f.startswith("thr_")), "nvidia-smi has no such counter to query")
    reasons.not_told(("energy_j",), "nvidia-smi does not tell the energy counter")
    return reasons


def _lost(fields: Sequence[str], reasons: Reasons) -> Reading:
    for field in fields:
        reasons.none(field, FAILED, "nvidia-smi no longer tells of this GPU")
    found: Dict[str, Any] = dict.fromkeys(fields)
    return found


def _short(text: str) -> str:
    return " ".join(text.split())[:200] or "nothing"
