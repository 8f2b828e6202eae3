"""What of an NVIDIA GPU does not change by the second: who it is, its limits, its links, its error counts."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional, Tuple

from .nvml_calls import Door, Probe, code_of, said, whole
from .source import DEVICE_KEYS, SHARED, Reading, Reasons
from .sysfile import PCI, numa_node

_AMPERE, _TURING = 7, 6
_SM = 1
_GA100 = range(0x2080, 0x2100)  # PCI device ids
_MOST_LINKS = 36
_GPU_END, _SWITCH_END = 0, 2
_PATHS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MIG_ON = 1
_MOST_BYTES = 1 << 50
_NO_MEMORY_SAID = 0xFFFFFFFFFFFFFFFF


def told(nvml: Any, ask: Callable[..., Any], *args: Any) -> Any:
    """What the driver says, or None where it does not."""
    try:
        return ask(*args)
    except (nvml.NVMLError, UnicodeDecodeError):  # a name of bytes that are no text is none
        return None


class Slot:
    """One device: a GPU, or a MIG instance of it. `gpu` is the handle of the GPU, `own` of the device itself."""

    def __init__(
        self, index: int, gpu: Any, own: Any, instance: Optional[int], partition: Optional[str], first: bool
    ):
        self.index = index
        self.gpu = gpu
        self.own = own
        self.instance = instance
        self.partition = partition
        self.first = first


def slots(nvml: Any) -> Tuple[List[Slot], Dict[int, str]]:
    """All devices, and by index why a GPU cannot be used. The GPUs have the numbers that nvidia-smi gives them.

    Where MIG is on and has instances, these are the devices: the first has its GPU's number and speaks for what the
    GPU has once (power, energy, links), the others are numbered after the last GPU. Raises NVMLError.
    """
    found: List[Slot] = []
    lost: Dict[int, str] = {}
    count = nvml.nvmlDeviceGetCount()
    beyond = count
    for index in range(count):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as e:
            lost[index] = said("nvmlDeviceGetHandleByIndex", e.value)
            continue
        instances = _instances(nvml, gpu)
        if not instances:
            found.append(Slot(index, gpu, gpu, None, None, True))
        for number, (own, instance, partition) in enumerate(instances):
            found.append(Slot(beyond if number else index, gpu, own, instance, partition, number == 0))
            beyond += 1 if number else 0
    return sorted(found, key=lambda slot: slot.index), lost


def _instances(nvml: Any, gpu: Any) -> List[Tuple[Any, int, str]]:
    """Handle, GPU instance id and `gpu instance/compute instance` of each MIG device."""
    if not _mig(nvml, gpu):
        return []
    found = []
    for number in range(told(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
        own = told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
        instance = None if own is None else told(nvml, nvml.nvmlDeviceGetGpuInstanceId, own)
        if own is not None and instance is not None:
            compute = told(nvml, nvml.nvmlDeviceGetComputeInstanceId, own)
            found.append((own, instance, "%d/%s" % (instance, "?" if compute is None else compute)))
    return found


def _mig(nvml: Any, gpu: Any) -> bool:
    mode = told(nvml, nvml.nvmlDeviceGetMigMode, gpu)
    return mode is not None and mode[0] == _MIG_ON


def unknown(index: int) -> Dict[str, Any]:
    """A device of which only its number is known."""
    device: Dict[str, Any] = dict.fromkeys(DEVICE_KEYS)
    device.update(index=index, links=[])
    return device


def describe(nvml: Any, slot: Slot, instant: bool) -> Dict[str, Any]:
    """The DEVICE_KEYS of one device but `links`. `instant` says how its power is read."""
    gpu = slot.gpu
    pci = told(nvml, nvml.nvmlDeviceGetPciInfo, gpu)
    bdf = None if pci is None else "%04x:%02x:%02x.0" % (pci.domain, pci.bus, pci.device)
    limits = told(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, gpu)
    memory = told(nvml, nvml.nvmlDeviceGetMemoryInfo, slot.own)
    ecc = told(nvml, nvml.nvmlDeviceGetEccMode, gpu)
    device = unknown(slot.index)
    device.update(
        uuid=told(nvml, nvml.nvmlDeviceGetUUID, slot.own),
        bdf=bdf,
        partition=slot.partition,
        package_id=told(nvml, nvml.nvmlDeviceGetUUID, gpu) if slot.partition is not None else None,
        model=told(nvml, nvml.nvmlDeviceGetName, gpu),
        compute_mode="MIG" if _mig(nvml, gpu) else None,
        driver=told(nvml, nvml.nvmlSystemGetDriverVersion),
        runtime=_cuda(nvml),
        vbios=told(nvml, nvml.nvmlDeviceGetVbiosVersion, gpu),
        ecc=None if ecc is None else bool(ecc[0]),
        numa_node=numa_node("%s%s" % (PCI, bdf)),
        mem_total=None if memory is None else memory.total,
        power_limit_w=_watts(told(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)),
        power_limit_default_w=_watts(told(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, gpu)),
        power_limit_max_w=None if limits is None else _watts(limits[1]),
        power_kind=_power_kind(nvml, gpu, pci, instant),
        power_scope="gpu" if slot.partition is None else "package",
        clk_sm_max_mhz=told(nvml, nvml.nvmlDeviceGetMaxClockInfo, gpu, _SM),
        pcie=_pcie(nvml, gpu),
    )
    return device


def _watts(milliwatts: Optional[int]) -> Optional[float]:
    return None if milliwatts is None or not 0 < milliwatts < 0xFFFFFFFF else milliwatts / 1000.0


def _cuda(nvml: Any) -> Optional[str]:
    version = told(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    return None if version is None else "CUDA %d.%d" % (version // 1000, version % 1000 // 10)


def _pcie(nvml: Any, gpu: Any) -> Optional[Dict[str, Any]]:
    gen = told(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu)
    width = told(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)
    return None if gen is None and width is None else {"gen": gen, "width": width}


def _power_kind(nvml: Any, gpu: Any, pci: Any, instant: bool) -> Optional[str]:
    """nvmlDeviceGetPowerUsage is a mean over a second from Ampere on, but for its GA100."""
    if instant:
        return "instant"
    generation = told(nvml, nvml.nvmlDeviceGetArchitecture, gpu)
    if generation is None or generation > 0xFFFF:
        return None
    ga100 = generation == _AMPERE and pci is not None and pci.pciDeviceId >> 16 in _GA100
    return "instant" if generation <= _TURING or ga100 else "avg1s"


def links(nvml: Any, found: List[Slot]) -> Dict[int, List[Dict[str, Any]]]:
    """By index: how each GPU is joined to the others, with NVLink where it is, else by PCIe with its path."""
    gpus = [slot for slot in found if slot.first]
    joined: Dict[int, List[Dict[str, Any]]] = {slot.index: [] for slot in gpus}
    if len(gpus) < 2:
        return joined
    ends = {slot.index: _nvlinks(nvml, slot.gpu) for slot in gpus}
    at = {_place(told(nvml, nvml.nvmlDeviceGetPciInfo, slot.gpu)): slot.index for slot in gpus}
    for a in gpus:
        switched, remote = ends[a.index]
        for b in gpus:
            if a.index == b.index:
                continue
            direct = sum(1 for place in remote if place is not None and at.get(place) == b.index)
            count = direct or (min(switched, ends[b.index][0]))
            if count:
                joined[a.index].append({"to": b.index, "kind": "NVLink", "count": count})
                continue
            level = told(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, a.gpu, b.gpu)
            if level is not None:
                joined[a.index].append({"to": b.index, "kind": "PCIe", "count": 1, "path": _PATHS.get(level)})
    return joined


def _place(pci: Any) -> Optional[Tuple[int, int, int]]:
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _nvlinks(nvml: Any, gpu: Any) -> Tuple[int, List[Optional[Tuple[int, int, int]]]]:
    """How many active links lead to switches, and where the others lead."""
    switched, remote = 0, []
    for link in range(_MOST_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(gpu, link):
                continue
        except nvml.NVMLError:
            break  # no such link, so none after it
        end = told(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu, link)
        if end == _SWITCH_END:
            switched += 1
        elif end in (_GPU_END, None):
            remote.append(_place(told(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu, link)))
    return switched, remote


class Static:
    """Reads the STATIC fields of one device."""

    def __init__(self, door: Door, slot: Slot, reasons: Reasons) -> None:
        self._nvml, self._slot, self._reasons = door.nvml, slot, reasons
        memory, limit, fan = door.nvml.c_nvmlMemory_t(), ctypes.c_uint(), ctypes.c_uint()

        def take_memory(reading: Reading) -> None:
            reading["mem_total"] = whole(reasons, "mem_total", memory.total, 1, _MOST_BYTES, wide=True)

        def take_limit(reading: Reading) -> None:
            milliwatts = whole(reasons, "power_limit_w", limit.value, 1, 20_000_000, wide=True)
            reading["power_limit_w"] = None if milliwatts is None else milliwatts / 1000.0

        def take_fan(reading: Reading) -> None:
            percent = whole(reasons, "fan", fan.value, 0, 200)
            reading["fan"] = None if percent is None else percent / 100.0

        self._probes = [
            Probe(door, (name,), (handle, ctypes.byref(cell)), (field,), take, reasons)
            for name, handle, cell, field, take in (
                ("nvmlDeviceGetMemoryInfo", slot.own, memory, "mem_total", take_memory),
                ("nvmlDeviceGetEnforcedPowerLimit", slot.gpu, limit, "power_limit_w", take_limit),
                ("nvmlDeviceGetFanSpeed", slot.gpu, fan, "fan", take_fan),
            )
        ]
        if slot.first:
            self._probes += [self._errors(door, 0, "ecc_corr"), self._errors(door, 1, "ecc_uncorr")]

    def read(self) -> Reading:
        """The STATIC fields. Raises Gone."""
        reading: Reading = {}
        for probe in self._probes:
            probe.ask(reading)
        if not self._slot.first:
            for field in ("ecc_corr", "ecc_uncorr"):
                reading[field] = None
                self._reasons.none(field, SHARED, "the first instance of this GPU speaks for it")
        reading["procs"] = self._procs()
        return reading

    def _errors(self, door: Door, kind: int, field: str) -> Probe:
        """Errors since the driver was loaded."""
        cell = ctypes.c_ulonglong()

        def take(reading: Reading) -> None:
            reading[field] = whole(self._reasons, field, cell.value, 0, (1 << 63) - 1, wide=True)

        args = (self._slot.gpu, ctypes.c_uint(kind), ctypes.c_uint(0), ctypes.byref(cell))
        return Probe(door, ("nvmlDeviceGetTotalEccErrors",), args, (field,), take, self._reasons)

    def _procs(self) -> Optional[List[Dict[str, Any]]]:
        nvml = self._nvml
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2):
            try:
                running = ask(self._slot.own)
            except nvml.NVMLError as e:
                if e.value != 13:
                    self._reasons.none("procs", code_of(e.value), said(ask.__name__, e.value))
                    return None
                continue
            return [{"pid": p.pid, "mem": _bytes(p.usedGpuMemory)} for p in running]
        self._reasons.none("procs", code_of(13), said("nvmlDeviceGetComputeRunningProcesses", 13))
        return None


def _bytes(used: Optional[int]) -> Optional[int]:
    return None if used is None or used >= _NO_MEMORY_SAID else used
