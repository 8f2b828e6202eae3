"""A libnvidia-ml.so.1 with as many GPUs as a test wants, for the real nvidia-ml-py to run against.

library = build_nvml(tmp)                   # once a session: the fixture `nvml_library`
driver = FakeNvml(tmp_path, library, gpus=2)
driver.set(0, power_mw=512_000, util=(97, 41))
subprocess.run(..., env=environment(driver.program))
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.library import At, Each, Payload, Program, build

SONAME = "libnvidia-ml.so.1"
NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, LOST, UNKNOWN = 3, 4, 10, 15, 999
SYSTEM = (
    "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlEventSetCreate",
    "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmMetricsGet",
)  # fmt: skip
DEVICE = (
    "Name", "UUID", "PciInfo_v3", "VbiosVersion", "EccMode", "MigMode", "Architecture", "MaxClockInfo", "PowerUsage",
    "TotalEnergyConsumption", "UtilizationRates", "MemoryInfo", "MemoryInfo_v2", "Temperature", "TemperatureV",
    "ClockInfo", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons", "FieldValues", "PcieThroughput",
    "EnforcedPowerLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints", "TotalEccErrors",
    "FanSpeed", "ComputeRunningProcesses_v2", "ComputeRunningProcesses_v3", "ViolationStatus",
    "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "TopologyCommonAncestor", "NvLinkState", "NvLinkRemoteDeviceType",
    "NvLinkRemotePciInfo_v2", "MaxMigDeviceCount", "MigDeviceHandleByIndex", "GpuInstanceId", "ComputeInstanceId",
    "SupportedEventTypes",
)  # fmt: skip
SYMBOLS = (
    *SYSTEM, *(f"nvmlDeviceGet{name}" for name in DEVICE),
    "nvmlDeviceRegisterEvents", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet",
)  # fmt: skip
NEW = (
    "MemoryInfo_v2",
    "TemperatureV",
    "CurrentClocksEventReasons",
    "ComputeRunningProcesses_v3",
)  # not in old drivers
GPM = tuple(name for name in SYMBOLS if "Gpm" in name)

_FIELD_BYTES = 40  # nvmlFieldValue_t: id, scope, timestamp, latency, type, result, value
_METRIC_BYTES = 40  # nvmlGpmMetric_t: id, result, value, three names
_UINT, _ULONGLONG = 1, 3

H200: Mapping[str, Any] = {
    "name": "NVIDIA H200",
    "arch": 9,
    "device_id": 0x233510DE,
    "power_mw": 412_345,
    "power_instant_mw": 433_000,
    "energy_mj": 987_654_321,
    "util": (97, 41),
    "mem": (150_754_820_096, 645_922_816, 50 << 30),  # total, reserved, used
    "temp": 61,
    "temp_mem": 68,
    "sm": 1755,
    "memclk": 3201,
    "reasons": 4,
    "limit_mw": 700_000,
    "ecc": (3, 0),
    "procs": [(4242, 40 << 30)],
    "thr_ns": (5_000_000_000, 0),
    "gpm": {2: 91.5, 3: 40.25, 5: 62.0, 10: 55.5, 20: 100.0, 21: 50.0, 60: 2000.0, 61: 1000.0},
}


def build_nvml(folder: Path, absent: Iterable[str] = ()) -> Path:
    """The library; `absent` are functions (without nvmlDeviceGet) that its driver is too old to have."""
    gone = {name if name.startswith("nvml") else f"nvmlDeviceGet{name}" for name in absent}
    assert gone <= set(SYMBOLS)
    return build(folder, SONAME, set(SYMBOLS) - gone, NOT_SUPPORTED)


def u32(*values: int) -> bytes:
    """As the library writes numbers of 32 bits."""
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))


def u64(*values: int) -> bytes:
    """As the library writes numbers of 64 bits."""
    return struct.pack(f"<{len(values)}Q", *values)


def field(value: int, kind: int = _UINT) -> bytes:
    """Type, result and value of a field value that the driver knows."""
    return u32(kind, 0) + u64(value)


def no_field(status: int = NOT_SUPPORTED) -> bytes:
    """The same of one that it does not."""
    return u32(0, status) + u64(0)


class FakeNvml:
    """A driver with `gpus` GPUs, each an H200 under load until told otherwise; `values` as in H200, for all."""

    def __init__(self, folder: Path, library: Path, gpus: int = 1, **values: Any) -> None:
        self.program = Program(folder, library)
        self.gpus = [{**H200, **values} for _ in range(gpus)]
        self.fields: list[dict[int | None, Payload]] = [{} for _ in range(gpus)]
        with self.program.together():
            self._system()
            for index in range(gpus):
                self._identity(index)
                self.set(index)

    @staticmethod
    def handle(index: int) -> int:
        """The handle of a GPU."""
        return 0xA0000 + 0x100 * index

    def device(self, index: int, name: str, arg: int, payload: Payload, *more: int, **kw: Any) -> None:
        """What nvmlDeviceGet<name>(GPU, *more, &payload) gives, where this library has that function."""
        symbol = f"nvmlDeviceGet{name}"
        if symbol in self.program.symbols:
            where = {0: self.handle(index), **dict(enumerate(more, 1))}
            self.program.on(symbol, where, out={arg: payload}, **kw)

    def refuse(self, name: str, status: int = NOT_SUPPORTED, index: int | None = None, **kw: Any) -> None:
        """Let nvmlDeviceGet<name> (or a function by its whole name) return `status`, for all arguments."""
        symbol = name if name.startswith("nvml") else f"nvmlDeviceGet{name}"
        self.program.forget(symbol)
        self.program.on(symbol, None if index is None else {0: self.handle(index)}, status=status, **kw)

    def refuse_all(self, status: int = NOT_SUPPORTED, index: int = 0, after: int = 0) -> None:
        """Let every call about one GPU return `status`, from now or after so many calls of each."""
        with self.program.together():
            for symbol in self.program.symbols:
                if symbol.startswith(("nvmlDevice", "nvmlGpmQuery", "nvmlGpmSampleGet", "nvmlGpmMig")):
                    first = {0: self.handle(index)}
                    self.program.on(symbol, first, status=status, after=after)

    def set_field(self, index: int, number: int, payload: Payload) -> None:
        """What field value `number` of a GPU is: `field(...)` or `no_field(...)`."""
        self.fields[index][number] = payload
        if "nvmlDeviceGetFieldValues" not in self.program.symbols:
            return
        each = Each(2, _FIELD_BYTES, 1, {None: no_field(), **self.fields[index]}, at=24)
        self.program.on("nvmlDeviceGetFieldValues", {0: self.handle(index)}, each=each)

    def set(self, index: int, **values: Any) -> None:
        """Change values of a GPU; see H200."""
        gpu = self.gpus[index]
        gpu.update(values)
        total, reserved, used = gpu["mem"]
        with self.quietly():
            self.device(index, "PowerUsage", 1, u32(gpu["power_mw"]))
            self.device(index, "TotalEnergyConsumption", 1, u64(gpu["energy_mj"]))
            self.device(index, "UtilizationRates", 1, u32(*gpu["util"]))
            self.device(index, "MemoryInfo", 1, u64(total, total - used - reserved, used + reserved))
            self.device(index, "MemoryInfo_v2", 1, u64(0x02000028, total, reserved, total - used - reserved, used))
            self.device(index, "Temperature", 2, u32(gpu["temp"]), 0)
            self.device(index, "TemperatureV", 1, u32(0x0100000C, 0, gpu["temp"]))
            self.device(index, "ClockInfo", 2, u32(gpu["sm"]), 1)
            self.device(index, "ClockInfo", 2, u32(gpu["memclk"]), 2)
            for name in ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons"):
                self.device(index, name, 1, u64(gpu["reasons"]))
            self._field(index, 186, gpu["power_instant_mw"])
            self._field(index, 82, gpu["temp_mem"])
            self._field(index, 74, gpu["thr_ns"][0], _ULONGLONG)
            self._field(index, 75, gpu["thr_ns"][1], _ULONGLONG)
            self._slow(index)

    def processes(self, index: int, procs: Sequence[tuple[int, int]]) -> None:
        """(pid, bytes) of what computes on a GPU."""
        rows = b"".join(u32(pid, 0) + u64(used) + u32(0xFFFFFFFF, 0xFFFFFFFF) for pid, used in procs) or b"\0"
        for name in ("ComputeRunningProcesses_v2", "ComputeRunningProcesses_v3"):
            symbol = f"nvmlDeviceGet{name}"
            if symbol in self.program.symbols:
                asked: dict[int | At, int] = {0: self.handle(index), At(1, 0, 4): 0}
                out = {1: u32(len(procs)), 2: rows}
                self.program.on(symbol, {0: self.handle(index)}, out=out)
                self.program.on(symbol, asked, out={1: u32(len(procs))}, status=7 if procs else 0)

    def mig(self, index: int, instances: Sequence[tuple[int, int, int, int]]) -> None:
        """Divide a GPU into (GPU instance, compute instance, bytes in all, bytes used); its utilisation is gone."""
        on, gpu = self.program.on, self.handle(index)
        with self.quietly():
            on("nvmlDeviceGetMigMode", {0: gpu}, out={1: u32(1), 2: u32(1)})
            self.device(index, "MaxMigDeviceCount", 1, u32(7))
            on("nvmlDeviceGetUtilizationRates", {0: gpu}, status=NOT_SUPPORTED)
            for number, (instance, compute, total, used) in enumerate(instances):
                own = gpu + 1 + number
                self.device(index, "MigDeviceHandleByIndex", 2, u64(own), number)
                on("nvmlDeviceGetGpuInstanceId", {0: own}, out={1: u32(instance)})
                on("nvmlDeviceGetComputeInstanceId", {0: own}, out={1: u32(compute)})
                on("nvmlDeviceGetUUID", {0: own}, out={1: b"MIG-%08x-0000\0" % own})
                on("nvmlDeviceGetMemoryInfo", {0: own}, out={1: u64(total, total - used, used)})
                on("nvmlDeviceGetMemoryInfo_v2", {0: own}, out={1: u64(0x02000028, total, 0, total - used, used)})

    def xid(self, index: int, number: int) -> None:
        """The next wait tells of this Xid, the one after it of nothing."""
        happened = u64(self.handle(index), 0x8, number) + u32(0, 0)
        self.program.forget("nvmlEventSetWait_v2")
        self.program.on("nvmlEventSetWait_v2", out={1: happened})
        self.program.on("nvmlEventSetWait_v2", status=TIMEOUT, after=1)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """The changes inside take effect at once, also inside another such block."""
        if self.program.held:
            yield
            return
        with self.program.together():
            yield

    def _field(self, index: int, number: int, value: int | None, kind: int = _UINT) -> None:
        self.set_field(index, number, no_field() if value is None else field(value, kind))

    def _system(self) -> None:
        on = self.program.on
        for name in ("nvmlInitWithFlags", "nvmlShutdown", "nvmlGpmSampleFree", "nvmlEventSetFree"):
            if name in self.program.symbols:
                on(name)
        on("nvmlErrorString", text="as the fake says")
        on("nvmlSystemGetDriverVersion", out={0: b"580.159.04\0"})
        on("nvmlSystemGetNVMLVersion", out={0: b"13.580.159.04\0"})
        on("nvmlSystemGetCudaDriverVersion", out={0: u32(13000)})
        on("nvmlDeviceGetCount_v2", out={0: u32(len(self.gpus))})
        on("nvmlEventSetCreate", out={0: u64(0xE0000)})
        on("nvmlEventSetWait_v2", status=TIMEOUT)
        if "nvmlGpmSampleAlloc" in self.program.symbols:
            samples = [u64(0xB0000 + i) for i in range(2 * len(self.gpus))]  # two a GPU, in the order of the GPUs
            on("nvmlGpmSampleAlloc", out={0: samples}, loop=True)
            on("nvmlGpmSampleGet")
            on("nvmlGpmMigSampleGet")

    def _identity(self, index: int) -> None:
        gpu, handle = self.gpus[index], self.handle(index)
        self.program.on("nvmlDeviceGetHandleByIndex_v2", {0: index}, out={1: u64(handle)})
        self.device(index, "Name", 1, gpu["name"].encode() + b"\0")
        self.device(index, "UUID", 1, b"GPU-%08x-0000-0000-0000-000000000000\0" % handle)
        self.device(index, "PciInfo_v3", 1, self.pci(index))
        self.device(index, "VbiosVersion", 1, b"96.00.D9.00.01\0")
        self.device(index, "Architecture", 1, u32(gpu["arch"]))
        self.device(index, "MaxClockInfo", 2, u32(1980), 1)
        self.program.on("nvmlDeviceGetEccMode", {0: handle}, out={1: u32(1), 2: u32(1)})
        self.program.on("nvmlDeviceGetMigMode", {0: handle}, out={1: u32(0), 2: u32(0)})
        self.device(index, "CurrPcieLinkGeneration", 1, u32(5))
        self.device(index, "CurrPcieLinkWidth", 1, u32(16))
        self.device(index, "SupportedEventTypes", 1, u64(0x8))
        self.program.on("nvmlDeviceRegisterEvents", {0: handle})
        for other in range(len(self.gpus)):
            self.device(index, "TopologyCommonAncestor", 2, u32(50), self.handle(other))

    def pci(self, index: int) -> bytes:
        """nvmlPciInfo_t of a GPU."""
        device_id = self.gpus[index]["device_id"]
        return (
            bytes(16) + u32(0, 0x1B + index, 0, device_id, 0x18BE10DE) + f"00000000:{0x1B + index:02X}:00.0".encode()
        )

    def _slow(self, index: int) -> None:
        gpu, handle = self.gpus[index], self.handle(index)
        self.device(index, "EnforcedPowerLimit", 1, u32(gpu["limit_mw"]))
        self.device(index, "PowerManagementDefaultLimit", 1, u32(700_000))
        limits = {1: u32(200_000), 2: u32(700_000)}
        self.program.on("nvmlDeviceGetPowerManagementLimitConstraints", {0: handle}, out=limits)
        for kind in (0, 1):
            self.device(index, "TotalEccErrors", 3, u64(gpu["ecc"][kind]), kind, 0)
        self.processes(index, gpu["procs"])
        if "nvmlGpmQueryDeviceSupport" in self.program.symbols:
            self.program.on("nvmlGpmQueryDeviceSupport", {0: handle}, out={1: u32(1, int(gpu["gpm"] is not None))})
            values: dict[int | None, Payload] = {None: u32(NOT_SUPPORTED) + bytes(8)}
            for number, value in (gpu["gpm"] or {}).items():
                values[number] = struct.pack("<Id", 0, value)
            each = Each(0, _METRIC_BYTES, At(0, 4, 4), values, offset=24, at=4)
            for sample in (2 * index, 2 * index + 1):
                self.program.on("nvmlGpmMetricsGet", {At(0, 8): 0xB0000 + sample}, each=each)
