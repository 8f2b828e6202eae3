"""A ROCm folder with the real amdsmi binding beside a libamd_smi.so made at test time, and GPUs for it to see.

rocm = build_rocm(tmp_path_factory.mktemp("rocm"))            # once a session
machine = Machine(tmp_path, rocm)
gpu = machine.gpu("0000:0c:00.0", average_gfx_activity=93, current_socket_power=712)
gpu.metrics(current_socket_power=650)                          # also while a process runs
machine.program.on("amdsmi_get_gpu_vram_usage", {0: gpu.handle}, status=10)
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import struct
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from tests.fakes.library import Program, build

NOT_SUPPORTED = 2
_SYMBOL = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")


def package() -> Path:
    """The folder of the binding that is installed here."""
    found = importlib.util.find_spec("amdsmi")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def build_rocm(root: Path, without: tuple[str, ...] = ()) -> Path:
    """Lay out `root` as ROCm is: lib/libamd_smi.so, share/amd_smi/amdsmi. `without`: symbols of another version."""
    symbols = set(_SYMBOL.findall((package() / "amdsmi_wrapper.py").read_text())) - set(without)
    build(root / "lib", "libamd_smi.so", symbols, NOT_SUPPORTED)
    shutil.copytree(package(), root / "share/amd_smi/amdsmi", ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".info").mkdir()
    (root / ".info/version").write_text("7.0.2-56\n")
    return root


class FakeGpu:
    """One processor handle."""

    def __init__(self, machine: Machine, handle: int) -> None:
        self._machine = machine
        self.handle = handle
        self._metrics: dict[str, Any] = {}

    def metrics(self, **values: Any) -> None:
        """Set fields of amdsmi_gpu_metrics_t; all others are all ones. `xcp_busy`: a list for each partition."""
        self._metrics.update(values)
        table = self._machine.types.amdsmi_gpu_metrics_t()
        ctypes.memset(ctypes.byref(table), 0xFF, ctypes.sizeof(table))
        for name, value in self._metrics.items():
            if name == "xcp_busy":
                for xcp, busy in zip(table.xcp_stats, value, strict=False):
                    xcp.gfx_busy_inst[: len(busy)] = busy
            elif isinstance(value, list):
                getattr(table, name)[: len(value)] = value
            else:
                setattr(table, name, value)
        self.answer("amdsmi_get_gpu_metrics_info", 1, bytes(table))

    def answer(self, symbol: str, arg: int, payload: bytes) -> None:
        """What one function writes behind one argument for this GPU."""
        self._machine.program.on(symbol, {0: self.handle}, out={arg: payload})

    def refuse(self, symbol: str, status: int, after: int = 0) -> None:
        """One function answers with a status from now on."""
        self._machine.program.on(symbol, {0: self.handle}, status=status, after=after)


class Machine:
    """The GPUs that the library sees, each on a socket of its own."""

    def __init__(self, folder: Path, rocm: Path) -> None:
        self.rocm = rocm
        self.program = Program(folder, rocm / "lib/libamd_smi.so")
        self.types = _types(rocm)
        self.gpus: list[FakeGpu] = []
        self.program.on("amdsmi_init")
        self.program.on("amdsmi_shut_down")
        self._sockets()

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the doors to this ROCm."""
        return {**os.environ, **self.program.env, "ROCM_PATH": str(self.rocm), "ROCM_HOME": ""}

    def gpu(
        self, bdf: str, model: str = "AMD Instinct MI300X", gfx: int = 0x942, partition: int = 0, mode: str = "SPX",
        **metrics: Any,
    ) -> FakeGpu:  # fmt: skip
        """Add one; `metrics` are fields of amdsmi_gpu_metrics_t."""
        gpu = FakeGpu(self, 0xD1 + len(self.gpus))
        self.gpus.append(gpu)
        with self.program.together():
            self._sockets()
            gpu.metrics(**metrics)
            self._identity(gpu, bdf, model, gfx, partition, mode)
        return gpu

    def _identity(self, gpu: FakeGpu, bdf: str, model: str, gfx: int, partition: int, mode: str) -> None:
        t = self.types
        asic, vram, cap, kfd = (
            t.amdsmi_asic_info_t(), t.amdsmi_vram_usage_t(), t.amdsmi_power_cap_info_t(), t.amdsmi_kfd_info_t(),
        )  # fmt: skip
        asic.market_name, asic.asic_serial = model.encode(), f"{gpu.handle:016X}".encode()
        asic.target_graphics_version = gfx
        vram.vram_total, vram.vram_used = 196592, 150000
        cap.power_cap = cap.default_power_cap = cap.max_power_cap = 750_000_000
        kfd.current_partition_id = partition
        gpu.answer("amdsmi_get_gpu_asic_info", 1, bytes(asic))
        gpu.answer("amdsmi_get_gpu_vram_usage", 1, bytes(vram))
        gpu.answer("amdsmi_get_power_cap_info", 2, bytes(cap))
        gpu.answer("amdsmi_get_gpu_kfd_info", 1, bytes(kfd))
        gpu.answer("amdsmi_get_gpu_compute_partition", 1, mode.encode() + b"\0")
        domain, bus, rest = bdf.split(":")
        device, function = rest.split(".")
        word = int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
        gpu.answer("amdsmi_get_gpu_device_bdf", 1, struct.pack("<Q", word))

    def _sockets(self) -> None:
        count = len(self.gpus)
        sockets = [0x51 + i for i in range(count)]
        out = {0: struct.pack("<I", count)}
        if count:
            out[1] = struct.pack(f"<{count}Q", *sockets)
        self.program.on("amdsmi_get_socket_handles", out=out)
        for socket, gpu in zip(sockets, self.gpus, strict=True):
            one = {1: struct.pack("<I", 1), 2: struct.pack("<Q", gpu.handle)}
            self.program.on("amdsmi_get_processor_handles", {0: socket}, out=one)
            self.program.on("amdsmi_get_processor_type", {0: gpu.handle}, out={1: struct.pack("<I", 1)})


def _types(rocm: Path) -> ModuleType:
    """The binding's structures; it cannot be imported without its library."""
    with mock.patch.dict(os.environ, {"ROCM_PATH": str(rocm), "ROCM_HOME": str(rocm)}):
        return importlib.import_module("amdsmi.amdsmi_wrapper")
