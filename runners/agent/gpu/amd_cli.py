"""AMD's GPUs by the tools amd-smi and rocm-smi: the last ways, since one call takes a second and more."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import threading
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

from . import amd_text, amd_tree, amd_values, rocm_text
from .amd_text import Told
from .source import (
    BAD_VALUE,
    DEVICE_KEYS,
    FAILED,
    HOT,
    NOT_FOUND,
    NOT_TOLD,
    SLOW,
    STATIC,
    Gone,
    Reading,
    Reasons,
    Source,
    SourceError,
)

_HZ = 0.2
_RUN_S = 20.0  # the tools take up to three seconds on a quiet machine
_MOST_FAILED = 3  # runs one after the other: then this way is closed
_OTHER = "the first partition of the GPU tells it for all"
_SENSORS = (*HOT, *SLOW, "energy_j", *STATIC)


class _Tool(Source):
    """Runs one tool at most every five seconds; every other question is answered from its last output."""

    vendor = "amd"
    most_hz = _HZ
    tool = ""

    def __init__(self) -> None:
        super().__init__()
        self._path = ""
        self._lock = threading.Lock()
        self._latest: List[Reading] = []
        self._taken = 0  # outputs so far
        self._given: Dict[str, int] = {}  # how many of them each question has seen
        self._ran_s = float("-inf")
        self._failed = 0
        self._second: List[bool] = []
        self._gfx: List[str] = []
        self._cards: List[amd_tree.Card] = []

    def open(self) -> None:
        """Raises SourceError where the tool is not there, or names no GPU."""
        self._path = _found(self.tool)
        try:
            devices = self._described()
        except (ValueError, _Failed) as error:
            raise SourceError(FAILED, "%s: %s" % (self.tool, error), amd_values.GROUPS) from error
        self._cards = amd_tree.find("/sys")
        seen = {(card.device["bdf"], card.device["partition"]): card.device for card in self._cards}
        self.devices = [_completed(i, device, seen) for i, device in enumerate(devices)]
        self.reasons = [Reasons() for _ in self.devices]
        self._gfx = [str(device.get("gfx") or "") for device in devices]
        two = [
            device["partition"] is None and amd_values.is_two_dies(device["model"], about.get("device_id"))
            for device, about in zip(self.devices, devices)  # noqa: B905
        ]
        self._second = amd_values.pair_dies(self.devices, two)

    def hot(self) -> List[Reading]:
        """Runs the tool. A run that fails costs this tick; raises Gone at the third one after the other."""
        if time.monotonic() - self._ran_s < 0.9 / _HZ:
            return [{} for _ in self.devices]
        self._ran_s = time.monotonic()
        begun_ns = time.monotonic_ns()
        try:
            told = self._read()
        except (ValueError, _Failed) as error:
            self._failed += 1
            if self._failed >= _MOST_FAILED:
                raise Gone(FAILED, "%s fails: %s" % (self.tool, error)) from error
            return [dict.fromkeys(HOT) for _ in self.devices]
        self._failed = 0
        readings = self._sorted(told)
        at_ns = (begun_ns + time.monotonic_ns()) // 2
        for reading in readings:
            reading["energy_at"] = at_ns
        with self._lock:
            self._latest, self._taken = readings, self._taken + 1
        return self._of("hot", HOT)

    def slow(self) -> List[Reading]:
        """Of the last output, once."""
        return self._of("slow", SLOW)

    def energy(self) -> List[Reading]:
        """Of the last output, once, with the moment of that."""
        return self._of("energy", ("energy_j", "energy_at"))

    def static(self) -> List[Reading]:
        """Of the last output, once; the processes come from the compute driver."""
        readings = self._of("static", STATIC)
        users = amd_tree.users("/sys", self._cards) if any(readings) else None
        for device, reading, why in zip(self.devices, readings, self.reasons):  # noqa: B905
            if not reading:
                continue
            place = _place(device, self._cards)
            if users is not None and place is not None:
                reading["procs"] = users[place]
            else:
                reading["procs"] = why.none("procs", NOT_FOUND, "/sys/class/kfd does not show this GPU here")
        return readings

    def _described(self) -> List[Dict[str, Any]]:
        """DEVICE_KEYS and `device_id` of each GPU, as far as the tool tells them; sets `version`."""
        raise NotImplementedError

    def _read(self) -> List[Told]:
        raise NotImplementedError

    def _run(self, *args: str) -> str:
        return _output([self._path, *args])

    def _of(self, question: str, fields: Iterable[str]) -> List[Reading]:
        with self._lock:
            if not self._latest or self._given.get(question) == self._taken:
                return [{} for _ in self.devices]
            self._given[question] = self._taken
            return [{field: reading[field] for field in fields if field != "procs"} for reading in self._latest]

    def _sorted(self, told: List[Told]) -> List[Reading]:
        """One reading of all fields for each device, with the reasons of what the tool does not tell."""
        by_index = {one.gpu: one for one in told}
        return [self._one(i, by_index.get(device["index"])) for i, device in enumerate(self.devices)]

    def _one(self, i: int, one: Optional[Told]) -> Reading:
        device, why = self.devices[i], self.reasons[i]
        reading: Reading = {**dict.fromkeys(_SENSORS), **(one.reading if one is not None else {})}
        if self._second[i]:
            reading = amd_values.secondary_power(reading, why)
        if device["partition"]:
            shared = [field for field in amd_values.PACKAGE if reading[field] is None or field.startswith("mem_")]
            reading = amd_values.leave_to_package(reading, _OTHER, shared, why)
        if reading["throttle"] == ["other"] and (not self._gfx[i] or self._gfx[i].startswith("gfx11")):
            text = "the tool only says that something throttles, which it says of RDNA3 always"
            reading["throttle"] = why.none("throttle", BAD_VALUE, text)
        for field, (code, text) in (one.why if one is not None else {}).items():
            why.none(field, code, text)
        for field, value in reading.items():
            if value is None and field != "procs":
                text = amd_values.NOT_AMD.get(field, "%s does not tell it of this GPU" % self.tool)
                why.none(field, NOT_TOLD, text)
        return reading


class AmdSmi(_Tool):
    """`amd-smi metric --json`; what the GPUs are comes from its list and static."""

    name = "amd-smi"
    tool = "amd-smi"

    def _described(self) -> List[Dict[str, Any]]:
        listed = amd_text.gpus_in(amd_text.json_in(self._run("list", "--json")))
        try:
            static = {gpu["gpu"]: gpu for gpu in amd_text.gpus_in(amd_text.json_in(self._run("static", "--json")))}
        except (ValueError, _Failed):
            static = {}
        self.version = self._tool_version()
        found: List[Dict[str, Any]] = []
        for gpu in sorted(listed, key=lambda gpu: int(gpu["gpu"])):
            about = {**amd_text.identity(static.get(gpu["gpu"], {})), **amd_text.identity(gpu), "index": gpu["gpu"]}
            about["pcie"] = None
            if about.get("compute_mode") in (None, "SPX") and not about.get("partition"):
                about["partition"] = None
            found.append(about)
        return found

    def _tool_version(self) -> Optional[str]:
        try:
            found = re.search(r"AMDSMI Tool:\s*([^\s|]+)", self._run("version"))
        except _Failed:
            return None
        return found.group(1) if found else None

    def _read(self) -> List[Told]:
        return amd_text.metrics(amd_text.gpus_in(amd_text.json_in(self._run("metric", "--json"))))


class RocmSmi(_Tool):
    """`rocm-smi -a --json`, of ROCm 3 to 7."""

    name = "rocm-smi"
    tool = "rocm-smi"

    def _described(self) -> List[Dict[str, Any]]:
        cards = rocm_text.cards_in(self._run("-a", "--showmeminfo", "vram", "--json"))
        self.version = self._tool_version()
        found: List[Dict[str, Any]] = []
        for index, card in sorted(cards.cards.items()):
            about = {**rocm_text.identity(card, cards.system), "index": index, "partition": None}
            if about.get("compute_mode") not in (None, "SPX"):
                about["partition"] = len([one for one in found if one.get("bdf") == about.get("bdf")])
            found.append(about)
        return found

    def _tool_version(self) -> Optional[str]:
        try:
            found = re.search(r"version:?\s*([\w.+-]+)", self._run("--version"), re.IGNORECASE)
        except _Failed:
            return None
        return found.group(1) if found else None

    def _read(self) -> List[Told]:
        return rocm_text.documents(rocm_text.cards_in(self._run("-a", "--showmeminfo", "vram", "--json")))


class _Failed(Exception):
    """A run of a tool that gave nothing to read."""


def _found(tool: str) -> str:
    path = shutil.which(tool)
    if path is not None:
        return path
    roots = [os.environ.get("ROCM_PATH") or "", "/opt/rocm", *sorted(glob.glob("/opt/rocm-*"), reverse=True)]
    for root in roots:
        path = os.path.join(root, "bin", tool)
        if root and os.access(path, os.X_OK):
            return path
    raise SourceError(NOT_FOUND, "there is no %s on PATH or in /opt/rocm*/bin" % tool, "install ROCm's tools")


def _output(argv: List[str]) -> str:
    """What a tool prints. It may warn, and end with an error after it printed all: that is for the reader to see."""
    env = {**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=_RUN_S, env=env,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _Failed("no answer within %g s" % _RUN_S) from error
    except OSError as error:
        raise _Failed(error.strerror or str(error)) from error
    out = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 and not out.strip():
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _Failed("exit %d: %s" % (done.returncode, words[-1][:200] if words else "no word"))
    return out


def _completed(index: int, about: Dict[str, Any], seen: Dict[Tuple[Any, Any], Dict[str, Any]]) -> Dict[str, Any]:
    """A device as the tool tells it, with what sysfs says where it does not."""
    bdf, partition = about.get("bdf"), about.get("partition")
    if partition and bdf:
        bdf = bdf[:-1] + "0"
    version = amd_tree.rocm()
    device: Dict[str, Any] = {**dict.fromkeys(DEVICE_KEYS), "links": [], **seen.get((bdf, partition), {})}
    device.update({key: value for key, value in about.items() if key in DEVICE_KEYS and value is not None})
    device.update(
        index=about.get("index", index),
        bdf=bdf,
        partition=partition,
        package_id=bdf if partition is not None else None,
        runtime="ROCm " + version if version else None,
        power_kind="socket",
        power_scope="package" if partition is not None else "gpu",
    )
    if partition:
        device.update(dict.fromkeys(("mem_total", "power_limit_w", "power_limit_default_w", "power_limit_max_w")))
    return device


def _place(device: Dict[str, Any], cards: List[amd_tree.Card]) -> Optional[int]:
    for i, card in enumerate(cards):
        if (card.device["bdf"], card.device["partition"]) == (device["bdf"], device["partition"]):
            return i
    return None
