"""AMD's GPUs by sysfs alone: the driver's metrics table, its sensors, its counters. Needs no ROCm and no library."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple

from . import amd_tree, amd_values
from .gpu_metrics import Values, decode, partitions_busy
from .source import (
    HOT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    NOT_TOLD,
    SLOW,
    STATIC,
    Reading,
    Reasons,
    Source,
    SourceError,
)
from .sysfile import SysFile, text

_UW, _MC, _HZ = 1e-6, 1e-3, 1e-6  # what hwmon's microwatts, millidegrees and hertz are multiplied with
_LABELS = {"edge": "temp_edge_c", "junction": "temp_hot_c", "mem": "temp_mem_c"}
_NEVER_0 = ("power_w", "clk_sm_mhz", "clk_mem_mhz")  # 0 there stands for a sensor that is not there
_OTHER = "the first partition of the GPU tells it for all"


class AmdSysfs(Source):
    """The first way to AMD's GPUs: a tick costs what the driver takes to fill its table, and two reads."""

    name = "amdgpu-sysfs"
    vendor = "amd"

    def __init__(self, sys_root: str = "/sys") -> None:
        super().__init__()
        self._sys = sys_root
        self._cards: List[_Gpu] = []

    def open(self) -> None:
        """Raises SourceError where there is no AMD GPU, or nothing of one may be read."""
        found = amd_tree.find(self._sys)
        if not found:
            text = "no AMD GPU stands in %s/class/drm" % self._sys
            raise SourceError(NOT_FOUND, text, "load the amdgpu driver; in a container, let it see /sys and /dev/dri")
        self._cards = []
        for card in found:
            self._cards.append(_Partition(card, self._cards[-card.partition]) if card.partition else _Gpu(card))
        if not any(card.readable() for card in self._cards if not card.card.partition):
            folder = found[0].folder
            self.close()
            raise SourceError(NO_PERMISSION, "no sensor in %s may be read" % folder, amd_values.GROUPS)
        self.devices = [card.device for card in found]
        self.reasons = [card.why for card in self._cards]
        self.version = found[0].device["driver"]

    def hot(self) -> List[Reading]:
        """Raises Gone where a GPU is not there any more."""
        return [card.hot() for card in self._cards]

    def slow(self) -> List[Reading]:
        """Rates are None at the first call."""
        return [card.slow() for card in self._cards]

    def energy(self) -> List[Reading]:
        """J of the socket."""
        return [card.energy() for card in self._cards]

    def static(self) -> List[Reading]:
        """Also the processes, by the compute driver."""
        procs = amd_tree.users(self._sys, [card.card for card in self._cards])
        return [card.static(procs[i] if procs is not None else None) for i, card in enumerate(self._cards)]

    def close(self) -> None:
        """Give the files back."""
        for card in self._cards:
            card.close()
        self._cards = []


class _Gpu:
    """The open files of one device, and what its readings are compared with."""

    def __init__(self, card: amd_tree.Card) -> None:
        self.card = card
        self.why = Reasons()
        self.blob = b""  # the table of the last tick
        self._metrics = SysFile(card.folder + "/gpu_metrics")
        self._used = SysFile(card.folder + "/mem_info_vram_used")
        self._total = SysFile(card.folder + "/mem_info_vram_total")
        self._sensors = amd_tree.hwmon(card.folder)
        self._others = _others(card.folder, self._sensors)
        self._cap = SysFile("%s/power1_cap" % self._sensors)
        self._fan = [SysFile("%s/%s" % (self._sensors, name)) for name in ("pwm1", "pwm1_max")]
        self._throttle = amd_values.Throttle(card.rdna3)
        self._slow = amd_values.Slow()

    def readable(self) -> bool:
        """Whether anything of the GPU can be read."""
        files = [self._metrics, self._used, *(file for _, file, _ in self._others)]
        return any(file.read() is not None for file in files)

    def hot(self) -> Reading:
        """The HOT fields."""
        told = Reasons()  # of the table: sysfs may have another file for what it does not tell
        values, self.blob = self._values(HOT, told)
        out = amd_values.hot(values, told) if values is not None else dict.fromkeys(HOT)
        if self.card.device["partition"] is not None:
            out["util"] = self._partition_util(self.blob)
        self._fill(out)
        out["mem_used"] = self._number(self._used, "mem_used")
        out["throttle"] = None if values is None else self._throttle.told(values, out["util"], self.why)
        out = self._mine(out)
        amd_values.settle(out, told, self.why)
        return out

    def slow(self) -> Reading:
        """The SLOW fields."""
        values, _ = self._values(SLOW, self.why)
        out = dict.fromkeys(SLOW) if values is None else self._slow.told(values, time.monotonic(), self.why)
        return self._mine(out)

    def energy(self) -> Reading:
        """The counter of the socket."""
        told = Reasons()
        values, _ = self._values(("energy_j",), told)
        out = self._mine({"energy_j": None if values is None else amd_values.energy_j(values, told)})
        amd_values.settle(out, told, self.why)
        return out

    def static(self, procs: Optional[List[Dict[str, Any]]]) -> Reading:
        """The STATIC fields."""
        out: Reading = dict.fromkeys(STATIC)
        total = self._number(self._total, "mem_total")
        out["mem_total"] = total or self.why.none("mem_total", NOT_SUPPORTED, "the driver tells a size of 0")
        out["power_limit_w"] = self._limit()
        errors = amd_tree.errors(self.card.folder)
        out["ecc_corr"], out["ecc_uncorr"] = errors["ce"], errors["ue"]
        for field in ("ecc_corr", "ecc_uncorr"):
            if out[field] is None:
                self.why.none(field, NOT_SUPPORTED, "the driver counts no memory errors of this GPU")
        out["fan"] = self._fan_share()
        out["procs"] = self._procs(procs)
        return self._mine(out)

    def close(self) -> None:
        """Give the files back."""
        for file in (self._metrics, self._used, self._total, self._cap, *self._fan, *(f for _, f, _ in self._others)):
            file.close()

    def _values(self, fields: Tuple[str, ...], why: Reasons) -> Tuple[Optional[Values], bytes]:
        """The table now; where there is none, why not is kept for `fields`."""
        blob = self._metrics.read()
        if blob is None:
            code, words = self._metrics.why or (NOT_FOUND, "there is no gpu_metrics")
            words += "; " + amd_values.GROUPS if code == NO_PERMISSION else ""
            amd_values.none_for_all(fields, words, why, code)
            return None, b""
        values, name = decode(blob)
        if values is None:
            amd_values.none_for_all(fields, name, why, NOT_SUPPORTED)
        return values, blob

    def _fill(self, out: Reading) -> None:
        for field, file, unit in self._others:
            if out.get(field) is None and not (field == "util" and self.card.device["partition"] is not None):
                raw = file.number()
                if raw or (raw == 0 and field not in _NEVER_0):
                    out[field] = raw * unit
        for field in ("clk_min_mhz", "clk_max_mhz"):
            if out.get(field) is None:
                out[field] = out.get("clk_sm_mhz")

    def _partition_util(self, blob: bytes) -> Optional[float]:
        busy = partitions_busy(blob)
        mine = busy[self.card.partition] if busy is not None and self.card.partition < len(busy) else []
        if not mine:
            text = "the driver's table tells the use of no single partition"
            return self.why.none("util", NOT_SUPPORTED, text)
        return sum(mine) / len(mine) / 100

    def _number(self, file: SysFile, field: str) -> Optional[int]:
        value = file.number()
        if value is None and file.why is not None:
            self.why.none(field, *file.why)
        return value

    def _limit(self) -> Optional[float]:
        value = self._number(self._cap, "power_limit_w") if not self.card.second_die else self._cap.number()
        return value * _UW if value else None

    def _fan_share(self) -> Optional[float]:
        now, most = (file.number() for file in self._fan)
        if now is None or not most:
            return self.why.none("fan", NOT_SUPPORTED, "the GPU has no fan of its own")
        return min(now / most, 1.0)

    def _procs(self, procs: Optional[List[Dict[str, Any]]]) -> Optional[List[Dict[str, Any]]]:
        if procs is not None and self.card.node is not None:
            return procs
        return self.why.none("procs", NOT_FOUND, "the compute driver (/sys/class/kfd) does not show this GPU here")

    def _mine(self, out: Reading) -> Reading:
        """Without what the first die of the package speaks for."""
        return amd_values.secondary_power(out, self.why) if self.card.second_die else out


class _Partition(_Gpu):
    """A partition but the first one: it has use and processes of its own, read from what its first one read."""

    def __init__(self, card: amd_tree.Card, first: _Gpu) -> None:
        super().__init__(card)
        self.close()
        self._first = first

    def hot(self) -> Reading:
        """The HOT fields; the first partition's were asked for before."""
        return {**self._shared(HOT), "util": self._partition_util(self._first.blob)}

    def slow(self) -> Reading:
        """The SLOW fields."""
        told: Reading = {field: self.why.none(field, NOT_TOLD, text) for field, text in amd_values.NOT_AMD.items()}
        return {**self._shared(SLOW), **told}

    def energy(self) -> Reading:
        """Never of its own."""
        return self._shared(("energy_j",))

    def static(self, procs: Optional[List[Dict[str, Any]]]) -> Reading:
        """The STATIC fields."""
        return {**self._shared(STATIC), "procs": self._procs(procs)}

    def _shared(self, fields: Tuple[str, ...]) -> Reading:
        reading: Reading = dict.fromkeys(fields)
        return amd_values.leave_to_package(reading, _OTHER, amd_values.PACKAGE, self.why)


def _others(folder: str, sensors: Optional[str]) -> List[Tuple[str, SysFile, float]]:
    """Files that tell a field where the metrics table does not, those that are there: field, file, unit."""
    found = [("util", folder + "/gpu_busy_percent", 0.01), ("mem_busy", folder + "/mem_busy_percent", 0.01)]
    if sensors is not None:
        found += [("power_w", "%s/%s" % (sensors, name), _UW) for name in ("power1_average", "power1_input")]
        for i in range(1, 10):
            field = _LABELS.get(text("%s/temp%d_label" % (sensors, i)) or "")
            if field is not None:
                found.append((field, "%s/temp%d_input" % (sensors, i), _MC))
        found += [("clk_sm_mhz", sensors + "/freq1_input", _HZ), ("clk_mem_mhz", sensors + "/freq2_input", _HZ)]
    files = [(field, SysFile(path), unit) for field, path, unit in found]
    return [(field, file, unit) for field, file, unit in files if file.read() is not None]
