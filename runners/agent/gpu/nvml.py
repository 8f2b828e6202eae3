"""NVIDIA GPUs by NVML, through NVIDIA's own binding (`pynvml`, which travels beside this package in the agent).

What is read at the run's rate goes straight to the library that the binding loaded, into structures made once: the
binding's own wrappers make new ones at each call. nvmlDeviceGetPcieThroughput, which blocks for 20 ms, is never used,
and the energy counter, which may block for 30 ms, is a thread's of its own.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Dict, List, Optional

from .nvml_calls import LOST_RC, TIMEOUT_RC, Door, Probe, code_of, said, whole
from .nvml_gpm import Slow
from .nvml_hot import Hot
from .nvml_static import Slot, Static, describe, links, slots, unknown
from .nvml_static import told as _told
from .source import FAILED, FIELDS, HOT, NOT_FOUND, SHARED, SLOW, STATIC, Gone, Reading, Reasons, Source, SourceError

_XID = 0x8
_MOST_MJ = 1 << 62
_MOST_EVENTS = 64  # a call: what a storm leaves over comes with the next
_MEND = "The NVIDIA driver must be loaded, and a container needs the capability `utility`."
_XIDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
    154: "GPU recovery action changed",
}


class _Device:
    """The readers of one device."""

    def __init__(self, door: Door, slot: Slot, reasons: Reasons) -> None:
        self.slot = slot
        self.reasons = reasons
        self.hot = Hot(door, slot.gpu, slot.own, reasons)
        self.slow = Slow(door, slot.gpu, reasons, slot.instance, slot.first)
        self.static = Static(door, slot, reasons)
        self._energy = self._counter(door)

    def read_hot(self) -> Reading:
        reading = self.hot.read()
        return reading if self.slot.first else self._shared(reading, "power_w")

    def read_energy(self) -> Reading:
        """With its own moment: of eight GPUs the last may be asked a quarter of a second after the first."""
        reading: Reading = {}
        if not self.slot.first:
            return self._shared(reading, "energy_j")
        begun = time.monotonic_ns()
        self._energy.ask(reading)
        if reading["energy_j"] is not None:
            reading["energy_at"] = (begun + time.monotonic_ns()) // 2
        return reading

    def _counter(self, door: Door) -> Probe:
        cell = ctypes.c_ulonglong()

        def take(reading: Reading) -> None:
            millijoules = whole(self.reasons, "energy_j", cell.value, 0, _MOST_MJ, wide=True)
            reading["energy_j"] = None if millijoules is None else millijoules / 1000.0

        name = ("nvmlDeviceGetTotalEnergyConsumption",)
        return Probe(door, name, (self.slot.gpu, ctypes.byref(cell)), ("energy_j",), take, self.reasons)

    def _shared(self, reading: Reading, field: str) -> Reading:
        reading[field] = None
        self.reasons.none(field, SHARED, "the first instance of this GPU speaks for it")
        return reading


class Nvml(Source):
    """See source.py."""

    name = "nvml"
    vendor = "nvidia"
    energy_apart = True

    def __init__(self) -> None:
        super().__init__()
        self._nvml: Any = None
        self._door: Optional[Door] = None
        self._readers: List[Optional[_Device]] = []  # None: a GPU that cannot be used
        self._set: Any = None  # of events
        self._at: Dict[int, int] = {}  # index by the address of a handle

    def open(self) -> None:
        """Raises SourceError where there is no binding, no library, no driver or no GPU that answers."""
        nvml = self._nvml = _binding()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as e:
            raise SourceError(code_of(e.value), said("nvmlInit", e.value), _MEND) from None
        try:
            self._find()
        except nvml.NVMLError as e:
            self.close()
            raise SourceError(code_of(e.value), said("NVML", e.value), _MEND) from None
        except SourceError:
            self.close()
            raise

    def hot(self) -> List[Reading]:
        """See Source."""
        return [_nothing(HOT) if d is None else d.read_hot() for d in self._readers]

    def slow(self) -> List[Reading]:
        """See Source; rates are absent the first time."""
        return [_nothing(SLOW) if d is None else d.slow.read() for d in self._readers]

    def energy(self) -> List[Reading]:
        """See Source."""
        return [_nothing(("energy_j",)) if d is None else d.read_energy() for d in self._readers]

    def static(self) -> List[Reading]:
        """See Source. `procs` holds pid and mem. Raises Gone also where a GPU that was lost is there again."""
        for device, reader in zip(self.devices, self._readers):  # noqa: B905 (strict came with 3.10)
            if reader is None and self._answers(device["index"]):
                raise Gone(FAILED, "GPU %d answers again" % device["index"])
        return [_nothing(STATIC) if d is None else d.static.read() for d in self._readers]

    def events(self) -> List[Dict[str, Any]]:
        """Xid errors since the call before."""
        found: List[Dict[str, Any]] = []
        nvml = self._nvml
        while self._set is not None and len(found) < _MOST_EVENTS:
            try:
                data = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError as e:
                if e.value == LOST_RC:
                    raise Gone(FAILED, said("nvmlEventSetWait", e.value)) from None
                if e.value != TIMEOUT_RC:
                    self._end_events()
                break
            if data.eventType & _XID:
                index = self._at.get(ctypes.cast(data.device, ctypes.c_void_p).value or 0)
                xid = int(data.eventData)
                text = "Xid %d%s" % (xid, ": " + _XIDS[xid] if xid in _XIDS else "")
                found.append({"index": index, "event": "xid", "value": xid, "text": text})
        return found

    def close(self) -> None:
        """See Source."""
        nvml = self._nvml
        for reader in self._readers:
            if reader is not None:
                reader.slow.close()
        self._end_events()
        self._readers, self._door = [], None
        if nvml is not None:
            _told(nvml, nvml.nvmlShutdown)

    def _find(self) -> None:
        nvml = self._nvml
        door = self._door = Door(nvml)
        self.version = _told(nvml, nvml.nvmlSystemGetNVMLVersion)
        found, lost = slots(nvml)
        devices: Dict[int, Any] = {i: (None, unknown(i), _all_none(text)) for i, text in lost.items()}
        for slot in found:
            devices[slot.index] = self._try(door, slot)
        usable = [slot for slot in found if devices[slot.index][0] is not None]
        if not usable:
            raise SourceError(FAILED, "NVML finds no GPU that answers%s." % _first(lost), _MEND)
        for index, joined in links(nvml, usable).items():
            devices[index][1]["links"] = joined
        ordered = [devices[index] for index in sorted(devices)]
        self._readers = [reader for reader, _, _ in ordered]
        self.devices = [device for _, device, _ in ordered]
        self.reasons = [reasons for _, _, reasons in ordered]
        self._begin_events(usable)

    def _try(self, door: Door, slot: Slot) -> Any:
        """Reader, description and reasons of a device; without a reader where the GPU does not answer."""
        reasons = Reasons()
        try:
            reader = _Device(door, slot, reasons)
            reader.read_hot()
        except Gone as e:
            return None, unknown(slot.index), _all_none(e.text)
        return reader, describe(self._nvml, slot, reader.hot.instant), reasons

    def _answers(self, index: int) -> bool:
        nvml = self._nvml
        handle = _told(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        return handle is not None and _told(nvml, nvml.nvmlDeviceGetClockInfo, handle, 1) is not None

    def _begin_events(self, usable: List[Slot]) -> None:
        nvml = self._nvml
        self._set = _told(nvml, nvml.nvmlEventSetCreate)
        registered = False
        for slot in usable:
            self._at.setdefault(ctypes.cast(slot.gpu, ctypes.c_void_p).value or 0, slot.index)
            if self._set is not None and slot.first:
                kinds = _told(nvml, nvml.nvmlDeviceGetSupportedEventTypes, slot.gpu) or 0
                if kinds & _XID:
                    try:
                        nvml.nvmlDeviceRegisterEvents(slot.gpu, _XID, self._set)
                    except nvml.NVMLError:
                        continue
                    registered = True
        if not registered:
            self._end_events()

    def _end_events(self) -> None:
        ended, self._set = self._set, None
        if ended is not None:
            _told(self._nvml, self._nvml.nvmlEventSetFree, ended)


def _binding() -> Any:
    try:
        import pynvml  # lazily: its source takes a moment to compile, and only NVIDIA's machines need it
    except ImportError:
        raise SourceError(NOT_FOUND, "The binding nvidia-ml-py is not beside the agent.") from None
    except SyntaxError as e:
        raise SourceError(NOT_FOUND, "This Python cannot read the binding nvidia-ml-py: %s" % e) from None
    return pynvml


def _nothing(fields: Any) -> Reading:
    return dict.fromkeys(fields)


def _all_none(text: str) -> Reasons:
    reasons = Reasons()
    for field in FIELDS:
        reasons.none(field, FAILED, text)
    return reasons


def _first(lost: Dict[int, str]) -> str:
    return " (%s)" % lost[min(lost)] if lost else ""
