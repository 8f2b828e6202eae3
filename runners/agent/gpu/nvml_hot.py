"""What of one NVIDIA GPU is read ten times a second: a batch of field values and six calls of a few microseconds."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

from .nvml_calls import Door, Field, Fields, Probe, whole
from .source import THROTTLE, Reading, Reasons

_POWER_INSTANT, _MEMORY_TEMP = 186, 82
_SM, _MEM = 1, 2
_MOST_W, _MOST_C, _MOST_MHZ = 20_000, 200, 20_000
_MOST_BYTES = 1 << 50
_MEMORY_V2 = 0x02000028
_TEMPERATURE_V1 = 0x0100000C
_BITS = (
    (0x001, "idle"),
    (0x002, "other"),  # the application clocks setting
    (0x004, "power"),
    (0x008, "hw"),
    (0x010, "sync"),
    (0x020, "thermal"),
    (0x040, "thermal"),  # by hardware: "hw" stands beside it by its own bit
    (0x080, "power"),  # the brake from outside, with "hw" beside it likewise
    (0x100, "other"),  # the display clocks setting
    (0x200, "power"),  # the board's limit, on older cards
    (0x400, "other"),  # the reliability limit, likewise
)
_KNOWN = sum({bit for bit, _ in _BITS})
SHARE_S = 0.25  # counters of throttled time move on in steps of 0.1 s: over less than this they tell no share
_STEPS_S = 0.2


def throttle(bits: int) -> List[str]:
    """The set of THROTTLE for a mask of clock event reasons, in that order; [] where clocks are free."""
    found = {name for bit, name in _BITS if bits & bit}
    if bits & ~_KNOWN:
        found.add("other")
    return [name for name in THROTTLE if name in found]


def throttled_share(gained_s: float, past_s: float) -> Optional[float]:
    """What share of `past_s` was throttled, of which a counter gained `gained_s`; None where that cannot be."""
    return min(gained_s / past_s, 1.0) if 0 <= gained_s <= past_s + _STEPS_S else None


class Hot:
    """Reads one device. `memory` is the handle whose memory counts: a MIG instance has its own, beside its GPU's."""

    def __init__(self, door: Door, handle: Any, memory: Any, reasons: Reasons) -> None:
        self._door, self._handle, self._reasons = door, handle, reasons
        self._throttles: Dict[int, Tuple[str, ...]] = {}
        reasons.not_told(("temp_hot_c",), "NVML has no hot spot sensor")
        reasons.not_told(("clk_min_mhz", "clk_max_mhz"), "an NVIDIA GPU has one SM clock")
        self.instant = True
        tried = Reasons()  # whether there is an instant reading is asked apart: another way may fill the field
        self._fields = Fields(
            door, handle, [Field(_POWER_INSTANT, "power_w", self._power), self._memory_temp()], tried
        )
        self._fields.ask({})
        self.instant = self._fields.works("power_w")
        wanted = [Field(_POWER_INSTANT, "power_w", self._power)] if self.instant else []
        self._fields = Fields(door, handle, [*wanted, self._memory_temp()], reasons)
        self._probes = [
            self._utilization(),
            self._memory(memory),
            self._temperature(),
            *self._clocks(),
            self._events(),
        ]
        if not self.instant:
            self._probes.append(self._word(("nvmlDeviceGetPowerUsage",), (), "power_w", _MOST_W * 1000, wide=True))

    def read(self) -> Reading:
        """The HOT fields. Raises Gone."""
        reading: Reading = {"temp_hot_c": None, "clk_min_mhz": None, "clk_max_mhz": None}
        self._fields.ask(reading)
        for probe in self._probes:
            probe.ask(reading)
        if not self.instant and reading["power_w"] is not None:
            reading["power_w"] /= 1000.0
        return reading

    def _power(self, reading: Reading, value: Any, _: bool) -> None:
        milliwatts = whole(self._reasons, "power_w", value, 1, _MOST_W * 1000, wide=True)
        reading["power_w"] = None if milliwatts is None else milliwatts / 1000.0

    def _memory_temp(self) -> Field:
        def take(reading: Reading, value: Any, _: bool) -> None:
            reading["temp_mem_c"] = whole(self._reasons, "temp_mem_c", value, 1, _MOST_C)

        return Field(_MEMORY_TEMP, "temp_mem_c", take)

    def _word(
        self, names: Tuple[str, ...], args: Tuple[Any, ...], field: str, most: int, low: int = 1, wide: bool = False
    ) -> Probe:
        """A call whose last argument points to one unsigned number."""
        cell = ctypes.c_uint()

        def take(reading: Reading) -> None:
            reading[field] = whole(self._reasons, field, cell.value, low, most, wide)

        return Probe(self._door, names, (self._handle, *args, ctypes.byref(cell)), (field,), take, self._reasons)

    def _clocks(self) -> List[Probe]:
        name = ("nvmlDeviceGetClockInfo",)
        return [
            self._word(name, (ctypes.c_uint(kind),), field, _MOST_MHZ, low=0)
            for kind, field in ((_SM, "clk_sm_mhz"), (_MEM, "clk_mem_mhz"))
        ]

    def _temperature(self) -> Probe:
        name, found = self._door.find("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
        if name == "nvmlDeviceGetTemperature" or found is None:
            return self._word((name,), (ctypes.c_uint(0),), "temp_edge_c", _MOST_C)
        cell = self._door.nvml.c_nvmlTemperature_v1_t()
        cell.version, cell.sensorType = _TEMPERATURE_V1, 0

        def take(reading: Reading) -> None:
            reading["temp_edge_c"] = whole(self._reasons, "temp_edge_c", cell.temperature, 1, _MOST_C)

        return Probe(self._door, (name,), (self._handle, ctypes.byref(cell)), ("temp_edge_c",), take, self._reasons)

    def _utilization(self) -> Probe:
        cell = self._door.nvml.c_nvmlUtilization_t()

        def take(reading: Reading) -> None:
            for field, value in (("util", cell.gpu), ("mem_busy", cell.memory)):
                percent = whole(self._reasons, field, value, 0, 100)
                reading[field] = None if percent is None else percent / 100.0

        fields = ("util", "mem_busy")
        name = ("nvmlDeviceGetUtilizationRates",)
        return Probe(self._door, name, (self._handle, ctypes.byref(cell)), fields, take, self._reasons)

    def _memory(self, handle: Any) -> Probe:
        """Of version 2 where the driver has it: there, what the driver keeps for itself is not counted as used."""
        probe = self._memory_of(handle, "nvmlDeviceGetMemoryInfo_v2", Reasons())
        probe.ask({})
        name = "nvmlDeviceGetMemoryInfo_v2" if probe.works else "nvmlDeviceGetMemoryInfo"
        return self._memory_of(handle, name, self._reasons)

    def _memory_of(self, handle: Any, name: str, reasons: Reasons) -> Probe:
        nvml = self._door.nvml
        second = name.endswith("_v2")
        cell = nvml.c_nvmlMemory_v2_t() if second else nvml.c_nvmlMemory_t()
        if second:
            cell.version = _MEMORY_V2

        def take(reading: Reading) -> None:
            reading["mem_used"] = whole(reasons, "mem_used", cell.used, 0, _MOST_BYTES, wide=True)

        return Probe(self._door, (name,), (handle, ctypes.byref(cell)), ("mem_used",), take, reasons)

    def _events(self) -> Probe:
        cell = ctypes.c_ulonglong()

        def take(reading: Reading) -> None:
            bits = cell.value
            if bits not in self._throttles:
                if whole(self._reasons, "throttle", bits, 0, (1 << 63) - 1) is None:
                    reading["throttle"] = None
                    return
                self._throttles[bits] = tuple(throttle(bits))
            reading["throttle"] = list(self._throttles[bits])

        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return Probe(self._door, names, (self._handle, ctypes.byref(cell)), ("throttle",), take, self._reasons)
