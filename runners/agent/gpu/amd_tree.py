"""AMD's GPUs in sysfs: which there are, what they are, how they are linked, and who computes on them."""

from __future__ import annotations

import glob
import os
import platform
import re
from typing import Any, Dict, List, NamedTuple, Optional

from .amd_values import is_two_dies, pair_dies
from .source import DEVICE_KEYS
from .sysfile import numa_node, text, whole

_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_IDS = ("/opt/amdgpu/share/libdrm/amdgpu.ids", "/usr/share/libdrm/amdgpu.ids")
_LINKS = {2: "PCIe", 11: "XGMI"}
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # by GT/s
_UW = 1e6
_WHOLE = ("mem_total", "power_limit_w", "power_limit_default_w", "power_limit_max_w")


class Node(NamedTuple):
    """A GPU as the compute driver numbers it: `number` in the topology, `gpu_id` in the lists of processes."""

    number: int
    gpu_id: int
    properties: Dict[str, int]


class Card(NamedTuple):
    """One device of the list: a GPU, or one of its partitions."""

    folder: str  # of the PCI device
    device: Dict[str, Any]  # DEVICE_KEYS
    node: Optional[Node]
    partition: int  # 0 too where there are none
    second_die: bool
    rdna3: Optional[bool]  # None: not known


def find(sys_root: str) -> List[Card]:
    """All of them, by bus address and partition, as the vendor's own tools count."""
    folders = {bdf: folder for folder in _folders(sys_root) for bdf in [_bdf(folder)] if bdf is not None}
    nodes = _nodes(sys_root)
    found: List[Card] = []
    for bdf in sorted(folders):
        here = _nodes_of(bdf, sorted(folders), nodes)
        for partition, node in enumerate(here or [None]):
            device = _device(sys_root, folders[bdf], bdf, node)
            if len(here) > 1:
                device.update(partition=partition, package_id=bdf, power_scope="package")
            if partition:  # what the driver tells is the whole GPU's, which the first partition stands for
                device.update(dict.fromkeys(_WHOLE))
            found.append(Card(folders[bdf], device, node, partition, False, _rdna3(folders[bdf], node)))
    two = [_two_dies(card) for card in found]
    second = pair_dies([card.device for card in found], two)
    found = [card._replace(second_die=is_second) for card, is_second in zip(found, second)]  # noqa: B905
    for index, card in enumerate(found):
        card.device["index"] = index
    _link(sys_root, found)
    return found


def users(sys_root: str, cards: List[Card]) -> Optional[List[List[Dict[str, Any]]]]:
    """For each card the processes that hold memory of it, by the compute driver; None where it is not to be asked.

    Names and runs are not looked for. The vendor's tools may start a context of their own on the GPU when they are
    asked for processes; this does not.
    """
    root = sys_root + "/class/kfd/kfd/proc"
    try:
        pids = sorted(int(name) for name in os.listdir(root) if name.isdecimal())
    except OSError:
        return None
    out: List[List[Dict[str, Any]]] = [[] for _ in cards]
    for pid in pids:
        for card, mine in zip(cards, out):  # noqa: B905
            if card.node is None:
                continue
            path = "%s/%d/vram_%d" % (root, pid, card.node.gpu_id)
            held = whole(path)
            if held or (held is None and os.path.exists(path)):
                mine.append({"pid": pid, "mem": held})
    return out


def errors(folder: str) -> Dict[str, Optional[int]]:
    """Corrected ("ce") and uncorrected ("ue") errors over all blocks since the driver was loaded; None: not told."""
    total: Dict[str, Optional[int]] = {"ce": None, "ue": None}
    for path in glob.glob(glob.escape(folder) + "/ras/*_err_count"):
        for kind, count in re.findall(r"^(ue|ce)\s*:\s*(\d+)\s*$", text(path) or "", re.MULTILINE):
            total[kind] = (total[kind] or 0) + int(count)
    return total


def hwmon(folder: str) -> Optional[str]:
    """The folder of the GPU's sensors."""
    for path in sorted(glob.glob(glob.escape(folder) + "/hwmon/hwmon*")):
        if text(path + "/name") in ("amdgpu", None):
            return path
    return None


def driver(sys_root: str) -> Optional[str]:
    """Version of the module where it has one of its own, else of the kernel that it came with."""
    return text(sys_root + "/module/amdgpu/version") or platform.release() or None


def rocm() -> Optional[str]:
    """Version of the ROCm that is installed here, by $ROCM_PATH or in /opt."""
    roots = [os.environ.get("ROCM_PATH") or "", "/opt/rocm", *sorted(glob.glob("/opt/rocm-*"), reverse=True)]
    for root in roots:
        found = text(root + "/.info/version") if root else None
        if found is not None:
            return found.split("-")[0]
    return None


def pcie_generation(gt_s: Any) -> Optional[int]:
    """1 to 6 of a speed in GT/s, as number or text."""
    try:
        return _GENERATIONS.get(float(gt_s))
    except (TypeError, ValueError):
        return None


def _folders(sys_root: str) -> List[str]:
    cards = glob.glob(glob.escape(sys_root) + "/class/drm/card*/device")
    return [path for path in cards if text(path + "/vendor") == "0x1002"]


def _bdf(folder: str) -> Optional[str]:
    for line in (text(folder + "/uevent") or "").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.partition("=")[2].strip().lower()
    name = os.path.basename(os.path.realpath(folder)).lower()
    return name if _BDF.match(name) else None


def _nodes(sys_root: str) -> List[Node]:
    found = []
    for path in glob.glob(glob.escape(sys_root) + "/class/kfd/kfd/topology/nodes/*"):
        gpu_id = whole(path + "/gpu_id")
        if gpu_id and os.path.basename(path).isdecimal():
            found.append(Node(int(os.path.basename(path)), gpu_id, _properties(path + "/properties")))
    return sorted(found)


def _properties(path: str) -> Dict[str, int]:
    lines = (line.split() for line in (text(path) or "").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}


def _nodes_of(bdf: str, bdfs: List[str], nodes: List[Node]) -> List[Node]:
    """The nodes at this address: one for each partition.

    Drivers put a partition's number above the address or in the place of its function; a function that is another
    device of the machine (a virtual one) is that, and no partition.
    """
    mine = []
    for node in nodes:
        place, domain = node.properties.get("location_id"), node.properties.get("domain", 0)
        if place is None:
            continue
        exact = "%04x:%02x:%02x.%x" % (domain, place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7)
        if exact == bdf or (exact not in bdfs and exact[:-1] == bdf[:-1] and bdf[-1] == "0"):
            mine.append(node)
    return mine


def _device(sys_root: str, folder: str, bdf: str, node: Optional[Node]) -> Dict[str, Any]:
    device: Dict[str, Any] = dict.fromkeys(DEVICE_KEYS)
    sensors = hwmon(folder)
    unique, version = text(folder + "/unique_id"), rocm()
    cap = {name: _watts(sensors, name) for name in ("power1_cap", "power1_cap_default", "power1_cap_max")}
    device.update(
        uuid="GPU-%s" % unique if unique and unique.strip("0") else None,
        bdf=bdf,
        model=_model(folder, node),
        compute_mode=text(folder + "/current_compute_partition"),
        memory_mode=text(folder + "/current_memory_partition"),
        driver=driver(sys_root),
        runtime="ROCm " + version if version else None,
        vbios=text(folder + "/vbios_version"),
        ecc=_ecc(folder),
        numa_node=numa_node(folder),
        mem_total=whole(folder + "/mem_info_vram_total") or None,
        power_limit_w=cap["power1_cap"],
        power_limit_default_w=cap["power1_cap_default"],
        power_limit_max_w=cap["power1_cap_max"],
        power_kind="socket",
        power_scope="gpu",
        clk_sm_max_mhz=_most_mhz(folder, node),
        pcie=_pcie(folder),
        links=[],
    )
    return device


def _watts(sensors: Optional[str], name: str) -> Optional[float]:
    micro = whole("%s/%s" % (sensors, name)) if sensors else None
    return micro / _UW if micro else None


def _ecc(folder: str) -> Optional[bool]:
    """Whether the memory controller's errors are corrected and counted: the first bit of the mask of RAS blocks."""
    found = re.search(r"0x([0-9a-fA-F]+)", text(folder + "/ras/features") or "")
    return bool(int(found.group(1), 16) & 1) if found else None


def _most_mhz(folder: str, node: Optional[Node]) -> Optional[float]:
    steps = re.findall(r"^S?\d+:\s*(\d+)Mhz", text(folder + "/pp_dpm_sclk") or "", re.MULTILINE | re.IGNORECASE)
    if steps:
        return float(max(map(int, steps))) or None
    most = node.properties.get("max_engine_clk_fcompute") if node else None
    return float(most) if most else None


def _pcie(folder: str) -> Optional[Dict[str, Any]]:
    speed = (text(folder + "/current_link_speed") or "").split()
    width = whole(folder + "/current_link_width")
    generation = pcie_generation(speed[0]) if speed else None
    return {"gen": generation, "width": width or None} if generation or width else None


def _model(folder: str, node: Optional[Node]) -> Optional[str]:
    name = text(folder + "/product_name")
    if name:
        return name
    ident, revision = text(folder + "/device") or "", text(folder + "/revision") or ""
    for path in _IDS:
        found = _listed(path, ident, revision)
        if found:
            return found
    version = node.properties.get("gfx_target_version") if node else None
    return "AMD %s%s" % (ident, " (%s)" % _gfx(version) if version else "") if ident else None


def _listed(path: str, ident: str, revision: str) -> Optional[str]:
    """The name in the list that libdrm brings: lines `device, revision, name`, in hexadecimal."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in f:
                words = [word.strip() for word in line.split(",", 2)]
                if len(words) == 3 and words[0].lower() == ident[2:].lower() and _same_hex(words[1], revision):
                    return words[2]
    except OSError:
        return None
    return None


def _same_hex(a: str, b: str) -> bool:
    try:
        return int(a, 16) == int(b, 16)
    except ValueError:
        return False


def _gfx(version: int) -> str:
    return "gfx%d%x%x" % (version // 10000, version // 100 % 100, version % 100)


def _rdna3(folder: str, node: Optional[Node]) -> Optional[bool]:
    version = node.properties.get("gfx_target_version") if node else None
    major = version // 10000 if version else whole(folder + "/ip_discovery/die/0/GC/0/major")
    return None if major is None else major == 11


def _two_dies(card: Card) -> bool:
    return card.device["partition"] is None and is_two_dies(card.device["model"], text(card.folder + "/device"))


def _link(sys_root: str, cards: List[Card]) -> None:
    """Fill `links` from the topology: direct links first, then those over PCIe. Their number is not told."""
    index = {card.node.number: card.device["index"] for card in cards if card.node is not None}
    for card in cards:
        if card.node is None:
            continue
        root = "%s/class/kfd/kfd/topology/nodes/%d" % (sys_root, card.node.number)
        seen: Dict[int, str] = {}
        for kind in ("io_links", "p2p_links"):
            for path in sorted(glob.glob("%s/%s/*/properties" % (glob.escape(root), kind))):
                link = _properties(path)
                to = index.get(link.get("node_to", -1))
                if to is not None and to != card.device["index"]:
                    seen.setdefault(to, _LINKS.get(link.get("type", -1), "other"))
        card.device["links"] = [{"to": to, "kind": kind, "count": None} for to, kind in sorted(seen.items())]
