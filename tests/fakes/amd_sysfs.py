"""A tree like /sys of a machine with AMD GPUs, with files that a test may change, deny or take away.

tree = Tree(tmp_path / "sys")
gpu = tree.gpu("0000:0c:00.0", "v1.6", MI300X_LOAD)
source = AmdSysfs(str(tree.root))
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.gpu_metrics import blob

MI300X = {
    "temperature_hotspot": 59, "temperature_mem": 51, "curr_socket_power": 705, "average_gfx_activity": 100,
    "average_umc_activity": 41, "current_gfxclk": [1304, 1275, 1317, 1283, 1298, 1281, 1309, 1287],
    "current_uclk": 1300, "energy_accumulator": 655_360_000, "accumulation_counter": 55257356,
    "ppt_residency_acc": 749905, "socket_thm_residency_acc": 0, "vr_thm_residency_acc": 0, "hbm_thm_residency_acc": 0,
    "prochot_residency_acc": 0, "xgmi_read_data_acc": [1000, 2000], "xgmi_write_data_acc": [500, 500],
}  # fmt: skip
MI250 = {
    "temperature_edge": 45, "temperature_hotspot": 52, "temperature_mem": 49, "average_socket_power": 402,
    "average_gfx_activity": 88, "average_umc_activity": 12, "current_gfxclk": 1700, "current_uclk": 1600,
    "energy_accumulator": 6122129286992, "indep_throttle_status": 0,
}  # fmt: skip
GIB = 1 << 30


class Gpu:
    """One PCI device of the tree."""

    def __init__(self, folder: Path, version: str, values: Mapping[str, Any]) -> None:
        self.folder = folder
        self.version = version
        self.values: dict[str, Any] = dict(values)
        self.sensors = folder / "hwmon" / "hwmon3"

    def set(self, **values: Any) -> None:
        """Change the metrics table in place, as the driver's next reading does."""
        self.values.update(values)
        self.raw(blob(self.version, self.values))

    def raw(self, content: bytes) -> None:
        """Any bytes as the metrics table."""
        (self.folder / "gpu_metrics").write_bytes(content)

    def write(self, name: str, content: object) -> None:
        """A file of the device."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")

    def remove(self, *names: str) -> None:
        """Take files away."""
        for name in names:
            (self.folder / name).unlink()

    def vanish(self) -> None:
        """The driver is unloaded."""
        shutil.rmtree(self.folder)


class Tree:
    """The root stands for /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes = 0
        self._write("class/kfd/kfd/topology/nodes/0/gpu_id", 0)
        self._write("class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\nlocation_id 0")
        self._write("module/amdgpu/version", "6.12.12")
        (root / "class/kfd/kfd/proc").mkdir(parents=True)

    def gpu(
        self,
        bdf: str,
        version: str,
        values: Mapping[str, Any],
        *,
        device_id: str = "0x74a1",
        model: str | None = "AMD Instinct MI300X OAM",
        gfx: int | None = 90402,
        partitions: int = 1,
        mode: str | None = "SPX",
        ras: bool = True,
        shift: int = 28,
    ) -> Gpu:
        """Add one. `gfx` None: the compute driver does not know it. `partitions` nodes share its address, with their
        numbers at bit `shift` of it: 28, or 0 as some drivers have it."""
        folder = self.root / "devices" / "pci0000:00" / bdf
        folder.mkdir(parents=True)
        card = len(list((self.root / "class/drm").glob("card*"))) if (self.root / "class/drm").exists() else 0
        link = self.root / f"class/drm/card{card}/device"
        link.parent.mkdir(parents=True)
        link.symlink_to(folder)
        gpu = Gpu(folder, version, values)
        gpu.set()
        files: dict[str, object] = {
            "vendor": "0x1002", "device": device_id, "revision": "0x00", "numa_node": 1,
            "vbios_version": "113-M3000100-102",
            "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={bdf}", "unique_id": f"{card + 0xA0:016x}",
            "mem_info_vram_total": 192 * GIB, "mem_info_vram_used": 150 * GIB, "gpu_busy_percent": 97,
            "mem_busy_percent": 40, "current_link_speed": "32.0 GT/s PCIe", "current_link_width": 16,
            "current_memory_partition": "NPS1", "pp_dpm_sclk": "0: 132Mhz *\n1: 2100Mhz",
            "hwmon/hwmon3/name": "amdgpu", "hwmon/hwmon3/power1_cap": 750_000_000,
            "hwmon/hwmon3/power1_cap_default": 750_000_000, "hwmon/hwmon3/power1_cap_max": 750_000_000,
        }  # fmt: skip
        if model is not None:
            files["product_name"] = model
        if mode is not None:
            files["current_compute_partition"] = mode
        if ras:
            files["ras/features"] = "feature mask: 0x7"
            files["ras/umc_err_count"] = "ue: 1\nce: 30"
            files["ras/gfx_err_count"] = "ue: 0\nce: 4"
        for name, content in files.items():
            gpu.write(name, content)
        for partition in range(partitions if gfx is not None else 0):
            self._node(bdf, gfx, partition << shift if partitions > 1 else 0)
        return gpu

    def link(self, a: int, b: int, kind: int = 11) -> None:
        """A link between two nodes, both ways: 11 XGMI, 2 PCIe."""
        for node, to in ((a, b), (b, a)):
            path = self.root / f"class/kfd/kfd/topology/nodes/{node}/io_links"
            count = len(list(path.glob("*"))) if path.exists() else 0
            self._write(f"{path}/{count}/properties", f"type {kind}\nnode_from {node}\nnode_to {to}\nweight 15")

    def process(self, pid: int, held: Mapping[int, int]) -> None:
        """A process that computes: bytes of video memory by the node's number."""
        for node in range(1, self._nodes + 1):
            self._write(f"class/kfd/kfd/proc/{pid}/vram_{1000 + node}", held.get(node, 0))

    def _node(self, bdf: str, gfx: int | None, partition: int) -> None:
        self._nodes += 1
        domain, bus, rest = bdf.split(":")
        device, function = rest.split(".")
        place = int(bus, 16) << 8 | int(device, 16) << 3 | int(function) | partition
        at = f"class/kfd/kfd/topology/nodes/{self._nodes}"
        self._write(f"{at}/gpu_id", 1000 + self._nodes)
        self._write(f"{at}/properties", f"location_id {place}\ndomain {int(domain, 16)}\ngfx_target_version {gfx}")

    def _write(self, name: str, content: object) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def sensors(gpu: Gpu, temperatures: Sequence[tuple[str, float]], power_w: float | None = None) -> None:
    """hwmon's own readings: label and degrees Celsius each, average power."""
    for i, (label, degrees) in enumerate(temperatures, 1):
        gpu.write(f"hwmon/hwmon3/temp{i}_label", label)
        gpu.write(f"hwmon/hwmon3/temp{i}_input", round(degrees * 1000))
    if power_w is not None:
        gpu.write("hwmon/hwmon3/power1_average", round(power_w * 1e6))
