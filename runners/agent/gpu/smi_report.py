"""Reads what nvidia-smi writes: CSV of `--query-gpu`, `-q` as text and as XML (DTD v11 to v13), dmon, topo.

Every parser is a pure function of the text. What a line does not say is absent from the row; `smi_values` says why.
"""

from __future__ import annotations

import csv
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

from .smi_values import Row, number_of

_XML = {  # name of --query-gpu: where it stands below <gpu>, the first found counts
    "name": ("product_name",),
    "architecture": ("product_architecture",),
    "uuid": ("uuid",),
    "vbios_version": ("vbios_version",),
    "mig.mode.current": ("mig_mode/current_mig",),
    "ecc.mode.current": ("ecc_mode/current_ecc",),
    "pcie.link.gen.current": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie.link.width.current": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie.tx": ("pci/tx_util",),
    "pcie.rx": ("pci/rx_util",),
    "fan.speed": ("fan_speed",),
    "memory.total": ("fb_memory_usage/total",),
    "memory.used": ("fb_memory_usage/used",),
    "utilization.gpu": ("utilization/gpu_util",),
    "utilization.memory": ("utilization/memory_util",),
    "temperature.gpu": ("temperature/gpu_temp",),
    "temperature.memory": ("temperature/memory_temp",),
    "power.draw.instant": ("gpu_power_readings/instant_power_draw",),
    "power.draw": ("gpu_power_readings/power_draw", "power_readings/power_draw"),
    "power.draw.average": ("gpu_power_readings/average_power_draw",),
    "enforced.power.limit": ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
    "power.default_limit": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "power.max_limit": ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
    "clocks.current.sm": ("clocks/sm_clock",),
    "clocks.current.memory": ("clocks/mem_clock",),
    "clocks.max.sm": ("max_clocks/sm_clock",),
    "clocks_event_reasons_counters.sw_power_cap": (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",
    ),
    "clocks_event_reasons_counters.sw_thermal_slowdown": (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_therm_slowdown",
    ),
    "clocks_event_reasons_counters.hw_thermal_slowdown": (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown",
    ),
}
_TEXT = {  # the same in the text of -q
    "name": ("Product Name",),
    "architecture": ("Product Architecture",),
    "uuid": ("GPU UUID",),
    "vbios_version": ("VBIOS Version",),
    "mig.mode.current": ("MIG Mode/Current",),
    "ecc.mode.current": ("ECC Mode/Current", "Ecc Mode/Current"),
    "pcie.link.gen.current": ("PCI/GPU Link Info/PCIe Generation/Current",),
    "pcie.link.width.current": ("PCI/GPU Link Info/Link Width/Current",),
    "pcie.tx": ("PCI/Tx Throughput",),
    "pcie.rx": ("PCI/Rx Throughput",),
    "fan.speed": ("Fan Speed",),
    "memory.total": ("FB Memory Usage/Total",),
    "memory.used": ("FB Memory Usage/Used",),
    "utilization.gpu": ("Utilization/GPU", "Utilization/Gpu"),
    "utilization.memory": ("Utilization/Memory",),
    "temperature.gpu": ("Temperature/GPU Current Temp",),
    "temperature.memory": ("Temperature/Memory Current Temp",),
    "power.draw.instant": ("GPU Power Readings/Instantaneous Power Draw",),
    "power.draw": ("GPU Power Readings/Power Draw", "Power Readings/Power Draw"),
    "power.draw.average": ("GPU Power Readings/Average Power Draw",),
    "enforced.power.limit": ("GPU Power Readings/Current Power Limit", "Power Readings/Enforced Power Limit"),
    "power.default_limit": ("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
    "power.max_limit": ("GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
    "clocks.current.sm": ("Clocks/SM",),
    "clocks.current.memory": ("Clocks/Memory",),
    "clocks.max.sm": ("Max Clocks/SM",),
    "clocks_event_reasons_counters.sw_power_cap": ("Clocks Event Reasons Counters/SW Power Capping",),
    "clocks_event_reasons_counters.sw_thermal_slowdown": ("Clocks Event Reasons Counters/SW Thermal Slowdown",),
    "clocks_event_reasons_counters.hw_thermal_slowdown": ("Clocks Event Reasons Counters/HW Thermal Slowdown",),
}
_REASONS = (  # name in XML, in text, bit of the mask
    ("gpu_idle", "Idle", 0x1),
    ("applications_clocks_setting", "Applications Clocks Setting", 0x2),
    ("sw_power_cap", "SW Power Cap", 0x4),
    ("hw_slowdown", "HW Slowdown", 0x8),
    ("sync_boost", "Sync Boost", 0x10),
    ("sw_thermal_slowdown", "SW Thermal Slowdown", 0x20),
    ("hw_thermal_slowdown", "HW Slowdown/HW Thermal Slowdown", 0x40),
    ("hw_power_brake_slowdown", "HW Slowdown/HW Power Brake Slowdown", 0x80),
    ("display_clocks_setting", "Display Clock Setting", 0x100),
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_COMPUTES = ("C", "C+G", "M+C")


class Gpu(NamedTuple):
    """One GPU of a report: its row, its compute processes (None: not said), its MIG instances."""

    row: Row
    procs: Optional[List[Dict[str, Any]]]
    instances: List[Dict[str, Any]]


def rows_of_csv(text: str, names: Optional[Sequence[str]] = None) -> List[Row]:
    """Rows of `--format=csv`, with a header (its units are taken off the names) or by `names` where there is none.

    A line of another length, such as a warning, is left out.
    """
    lines = list(csv.reader(text.splitlines(), skipinitialspace=True))
    if names is None:
        start = next((i for i, line in enumerate(lines) if len(line) > 1), len(lines))
        names = [re.sub(r"\s*\[[^\]]*\]$", "", name.strip()) for name in lines[start]] if lines[start:] else []
        lines = lines[start + 1 :]
    return [
        {name: word.strip() for name, word in zip(names, line)}  # noqa: B905 (strict came with 3.10)
        for line in lines
        if len(line) == len(names)
    ]


def report_of_xml(text: str) -> List[Gpu]:
    """The GPUs of `nvidia-smi -q -x`. Raises ValueError where it is no such report."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 (expat has bounded the growth of entities since 2.4)
    except ElementTree.ParseError as e:
        raise ValueError("no XML of nvidia-smi: %s" % e) from None
    if root.tag != "nvidia_smi_log":
        raise ValueError("no report of nvidia-smi: it begins with <%s>" % root.tag)
    head = {"driver_version": root.findtext("driver_version"), "cuda_version": root.findtext("cuda_version")}
    return [_gpu_of_xml(gpu, {k: v for k, v in head.items() if v}) for gpu in root.findall("gpu")]


def _gpu_of_xml(gpu: Any, head: Row) -> Gpu:
    def said(path: str) -> Optional[str]:
        word = gpu.findtext(path)
        return None if word is None else str(word).strip()

    row = {**head, **_row(_XML, said), "pci.bus_id": gpu.get("id", "")}
    for kind in ("clocks_event_reason", "clocks_throttle_reason"):
        _mask(row, {bit: said("%ss/%s_%s" % (kind, kind, name)) for name, _, bit in _REASONS})
    _sums(row, lambda name: said("ecc_errors/volatile/" + name))
    procs = []
    for process in gpu.findall("processes/process_info"):
        if (process.findtext("type") or "C") in _COMPUTES and (process.findtext("pid") or "").isdigit():
            procs.append(_process(process.findtext("pid") or "", process.findtext("used_memory")))
    places = ("gpu_instance_id", "compute_instance_id", "fb_memory_usage/total", "fb_memory_usage/used")
    instances = [
        _instance(*(mig.findtext(place) for place in places)) for mig in gpu.findall("mig_devices/mig_device")
    ]
    return Gpu(row, procs if gpu.find("processes") is not None else None, instances)


def report_of_text(text: str) -> List[Gpu]:
    """The GPUs of `nvidia-smi -q`. Raises ValueError where it is no such report."""
    if "NVSMI LOG" not in text:
        raise ValueError("no report of nvidia-smi")
    head: Row = {}
    found: List[Tuple[str, List[Tuple[str, str]]]] = []
    for path, word in _paths(text):
        if path.startswith("GPU ") and "/" not in path and not word:
            found.append((path[4:], []))
        elif found:
            found[-1][1].append((path.partition("/")[2], word))
        elif path == "Driver Version":
            head["driver_version"] = word
        elif path == "CUDA Version":
            head["cuda_version"] = word
    return [_gpu_of_text(bus, lines, head) for bus, lines in found]


def _paths(text: str) -> Iterator[Tuple[str, str]]:
    """Each line of an indented report as (path of headings, value); a heading has the value ''."""
    stack: List[Tuple[int, str]] = []
    for line in text.splitlines():
        name, colon, word = line.partition(" : ")
        if not name.strip() or name.strip().startswith("==="):
            continue
        indent = len(name) - len(name.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, name.strip()))
        yield "/".join(part for _, part in stack), word.strip() if colon else ""


def _gpu_of_text(bus: str, lines: List[Tuple[str, str]], head: Row) -> Gpu:
    first: Dict[str, str] = {}
    for path, word in lines:
        first.setdefault(path, word)
    row = {**head, **_row(_TEXT, first.get), "pci.bus_id": bus}
    for section in ("Clocks Event Reasons", "Clocks Throttle Reasons"):
        _mask(row, {bit: first.get("%s/%s" % (section, name)) for _, name, bit in _REASONS})
    errors = "ECC Errors/Volatile/"
    ecc = {path[len(errors) :]: word for path, word in first.items() if path.startswith(errors)}
    counts = {name.replace(" ", "_").replace("-", "").lower(): word for name, word in ecc.items()}
    _sums(row, counts.get)
    return Gpu(row, _procs_of_text(lines), _instances_of_text(lines))


def _procs_of_text(lines: List[Tuple[str, str]]) -> Optional[List[Dict[str, Any]]]:
    found: Optional[List[Dict[str, Any]]] = None
    kinds: List[str] = []
    for path, word in lines:
        if path == "Processes":
            found = []
        elif found is not None and path == "Processes/Process ID" and word.isdigit():
            found.append(_process(word, None))
            kinds.append("C")
        elif found and path == "Processes/Process ID/Type":
            kinds[-1] = word
        elif found and path == "Processes/Process ID/Used GPU Memory":
            found[-1].update(_process(str(found[-1]["pid"]), word))
    return None if found is None else [p for p, kind in zip(found, kinds) if kind in _COMPUTES]  # noqa: B905


def _instances_of_text(lines: List[Tuple[str, str]]) -> List[Dict[str, Any]]:
    groups: List[Dict[str, str]] = []
    for path, word in lines:
        if path == "MIG Device":
            groups.append({})
        elif groups and path.startswith("MIG Device/"):
            groups[-1].setdefault(path[len("MIG Device/") :], word)
    return [
        _instance(g.get("GPU Instance ID"), g.get("Compute Instance ID"), _either(g, "FB Memory Usage/Total"),
                  _either(g, "FB Memory Usage/Used"))
        for g in groups
    ]  # fmt: skip


def _either(group: Dict[str, str], name: str) -> Optional[str]:
    return group.get(name, group.get("Shared " + name))


def _row(places: Dict[str, Tuple[str, ...]], said: Any) -> Row:
    row: Row = {}
    for name, paths in places.items():
        words = [word for word in (said(path) for path in paths) if word is not None]
        if words:
            row[name] = words[0]
    return row


def _mask(row: Row, words: Dict[int, Optional[str]]) -> None:
    """The reasons that are active as one mask; where none is said to be or not to be, what is said instead."""
    told = {bit: word for bit, word in words.items() if word is not None}
    known = {bit: word == "Active" for bit, word in told.items() if word in ("Active", "Not Active")}
    if known:
        row["clocks_event_reasons.active"] = "0x%016X" % sum(bit for bit, active in known.items() if active)
    elif told:
        row["clocks_event_reasons.active"] = next(iter(told.values()))


def _sums(row: Row, said: Any) -> None:
    """ECC totals of SRAM and DRAM; unknown where one of the parts is."""
    parts: Dict[str, Tuple[str, ...]] = {
        "corrected": ("sram_correctable", "dram_correctable"),
        "uncorrected": ("sram_uncorrectable", "dram_uncorrectable"),
    }
    if said("sram_uncorrectable") is None:
        secded = (
            "sram_uncorrectable_secded" if said("sram_uncorrectable_secded") is not None else "sram_uncorrectable_sec"
        )
        parts["uncorrected"] = ("sram_uncorrectable_parity", secded, "dram_uncorrectable")
    for kind, names in parts.items():
        words = [said(name) for name in names]
        if any(word is None for word in words):
            continue
        numbers = [number_of(word, 1) for word in words]
        wordless = next((word for word, number in zip(words, numbers) if number is None), None)  # noqa: B905
        total = wordless if wordless is not None else "%d" % sum(n for n in numbers if n is not None)
        row["ecc.errors.%s.volatile.total" % kind] = total


def _process(pid: str, used: Optional[str]) -> Dict[str, Any]:
    memory = None if used is None else number_of(used, float(1 << 20))
    return {"pid": int(pid), "mem": None if memory is None else int(memory)}


def _instance(
    gpu: Optional[str], compute: Optional[str], total: Optional[str], used: Optional[str]
) -> Dict[str, Any]:
    sizes = [None if word is None else number_of(word, float(1 << 20)) for word in (total, used)]
    whole = [None if size is None else int(size) for size in sizes]
    return {"partition": "%s/%s" % (gpu, compute), "mem_total": whole[0], "mem_used": whole[1]}


def rows_of_dmon(text: str) -> List[Tuple[int, Row]]:
    """(index, row) of each line of `nvidia-smi dmon`; a dash stays a dash, which stands for no value."""
    names = {
        "pwr": "power.draw", "gtemp": "temperature.gpu", "mtemp": "temperature.memory", "sm": "utilization.gpu",
        "mem": "utilization.memory", "mclk": "clocks.current.memory", "pclk": "clocks.current.sm",
    }  # fmt: skip
    columns: List[str] = []
    found = []
    for line in text.splitlines():
        words = line.replace("#", " ", 1).split()
        if words and words[0] == "gpu":
            columns = words
        elif columns and len(words) == len(columns) and words[0].isdigit():
            row = {names[c]: w for c, w in zip(columns, words) if c in names}  # noqa: B905
            found.append((int(words[0]), row))
    return found


def links_of_topo(text: str) -> Dict[int, List[Dict[str, Any]]]:
    """By index, how each GPU is joined to the others, from the matrix of `nvidia-smi topo -m`."""
    lines = [_ESCAPE.sub("", line).split("\t") for line in text.splitlines()]
    heads = next(
        ([w.strip() for w in line] for line in lines if line and "GPU0" in (w.strip() for w in line[1:])), []
    )
    found: Dict[int, List[Dict[str, Any]]] = {}
    for line in lines:
        name = line[0].strip()
        if not re.match(r"GPU\d+$", name) or len(line) < 2:
            continue
        joined = found.setdefault(int(name[3:]), [])
        for head, word in zip(heads[1:], (w.strip() for w in line[1:])):  # noqa: B905
            if not re.match(r"GPU\d+$", head) or word in ("X", ""):
                continue
            bonded = re.match(r"NV(\d+)$", word)
            link = (
                {"kind": "NVLink", "count": int(bonded.group(1))}
                if bonded
                else {"kind": "PCIe", "count": 1, "path": word}
            )
            joined.append({"to": int(head[3:]), **link})
    return found


def names_of_help(text: str) -> List[str]:
    """The names that `nvidia-smi --help-query-gpu` (or another --help-query-...) says are valid."""
    found: List[str] = []
    for line in text.splitlines():
        if line.startswith('"'):
            found += re.findall(r'"([^"]+)"', line)
    return found
