"""What amd-smi prints, in all its forms, as the fields of the schema: pure functions from text to readings.

JSON came as a list, then as {"gpu_data": [...]}; its numbers bare, then as {"value", "unit"}; other words may stand
before it. The text form nests by indentation, tables have one line a GPU, CSV one column a number. A reading has a
field only where the text speaks of it.
"""

from __future__ import annotations

import csv
import json
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from .amd_values import clock_range
from .source import BAD_VALUE, NOT_SUPPORTED, SENTINEL, Reading, number

Nested = Dict[str, Any]
MIB, GIB = 1 << 20, 1 << 30
_EMPTY = (0xFFFF, 0xFFFFFFFF, 2**64 - 1)
_NUMBER = re.compile(r"\(?\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![xX\d.])")
_VIOLATIONS = (
    ("ppt", "power"), ("socket_thermal", "thermal"), ("vr_thermal", "thermal"), ("hbm_thermal", "thermal"),
    ("prochot", "hw"),
)  # fmt: skip
_WATT_LIMITS = ("socket_power", "socket_power_limit", "current_power", "power_cap", "power_limit")


class Told(NamedTuple):
    """What one text says of one GPU; `why` of each field of `reading` that is None: (code, text)."""

    gpu: int
    partition: Optional[int]
    reading: Reading
    why: Dict[str, Tuple[str, str]]


class Reader:
    """Collects the fields of one GPU."""

    def __init__(self) -> None:
        self.reading: Reading = {}
        self.why: Dict[str, Tuple[str, str]] = {}

    def put(
        self, field: str, raw: Any, times: float = 1.0, counter: bool = False, most: Optional[float] = None
    ) -> None:
        """`field` from what stands in its place, times its unit. Counters may be 65535."""
        value = number_in(raw, counter)
        if value is None:
            self.none(field, SENTINEL, "the tool prints %s" % _shown(raw))
        elif (most is not None and not 0 <= value <= most) or (field == "power_w" and not value > 0):
            self.none(field, BAD_VALUE, "%s cannot be" % _shown(raw))
        else:
            self.reading[field] = _times(value, times)
            self.why.pop(field, None)

    def none(self, field: str, code: str, text: str) -> None:
        """Say why a field is None; a value that another place gave stays."""
        if self.reading.get(field) is None:
            self.reading[field] = None
            self.why.setdefault(field, (code, text))

    def clocks(self, told: List[Any]) -> None:
        """clk_sm_mhz and its range from the compute dies' clocks."""
        if not told:
            return
        found = clock_range([value for value in map(number_in, told) if value is not None])
        for field, value in zip(("clk_sm_mhz", "clk_min_mhz", "clk_max_mhz"), found):  # noqa: B905
            self.reading[field] = value
            if value is None:
                self.why[field] = (SENTINEL, "the tool prints no clock of a compute die")

    def energy(self, joules: Optional[float], raw: Any) -> None:
        """energy_j; a counter at 0 is none."""
        if joules == 0:
            self.none("energy_j", BAD_VALUE, "the energy counter stands at 0")
        else:
            self.put("energy_j", joules if joules is not None else raw, counter=True)

    def told(self, gpu: int, partition: Optional[int] = None) -> Told:
        """All of it."""
        return Told(gpu, partition, self.reading, self.why)


def number_in(raw: Any, counter: bool = False) -> Optional[float]:
    """The number in 712, "712 W", "(500Mhz)" or {"value": 712, "unit": "W"}; None for "N/A" and for all bits set."""
    if isinstance(raw, dict):
        raw = raw.get("value")
    if isinstance(raw, bool) or raw is None:
        return None
    if isinstance(raw, str):
        found = _NUMBER.match(raw.strip())
        if found is None:
            return None
        digits = found.group(1)
        raw = int(digits) if digits.lstrip("-").isdecimal() else float(digits)
    value = number(raw)
    return None if value in (_EMPTY[1:] if counter else _EMPTY) else value


def word_in(raw: Any) -> Optional[str]:
    """A word, or None for "N/A", nothing, and what is redacted."""
    if not isinstance(raw, (str, int)) or isinstance(raw, bool):
        return None
    word = str(raw).strip()
    return None if not word or word.startswith(("N/A", "[N/A", "<")) else word


def json_in(text: str) -> Any:
    """The JSON value in a tool's output, whatever stands before or after it. Raises ValueError where there is none.

    It begins in a line without indentation: what begins in others is a part of one that was cut off.
    """
    decoder = json.JSONDecoder()
    for line in re.finditer(r"^\S.*$", text, re.MULTILINE):
        for found in re.finditer(r"[{\[]", line.group()):
            try:
                value, _ = decoder.raw_decode(text, line.start() + found.start())
            except ValueError:
                continue
            if isinstance(value, (dict, list)) and value:
                return value
    raise ValueError("no JSON stands in the output: %s" % _shown(text.strip()[:80]))


def gpus_in(document: Any) -> List[Nested]:
    """The GPUs of an amd-smi document. Raises ValueError where it has none."""
    if isinstance(document, dict) and "gpu_data" in document:
        document = document["gpu_data"]
    if isinstance(document, dict):
        document = [document]
    found = [gpu for gpu in document if isinstance(gpu, dict) and isinstance(gpu.get("gpu"), int)]
    if not found:
        raise ValueError("the output names no GPU")
    return found


def nested(text: str) -> List[Nested]:
    """The GPUs of amd-smi's text form, as its JSON would have them; keys in lower case, values as printed.

    A part of an output that begins below its `GPU:` line is one GPU, by the -g of its command, else 0.
    """
    asked = re.search(r"-g[ =](\d+)", text)
    gpus: List[Nested] = []
    other = False
    stack: List[Tuple[int, Nested]] = []
    last: Optional[Tuple[Nested, str]] = None  # a list may go on in the next lines
    for line in text.splitlines():
        words = line.strip()
        at = len(line) - len(line.lstrip())
        found = re.match(r"([A-Za-z][\w /-]*):(?:\s+(.*))?$", words)
        if last is not None and found is None and words and str(last[0][last[1]]).startswith("["):
            last[0][last[1]] = "%s %s" % (last[0][last[1]], words)
            continue
        if found is None:
            last = None
            continue
        key, value = found.group(1).strip().lower().replace(" ", "_"), (found.group(2) or "").strip()
        if key in ("gpu", "cpu", "core") and value.isdecimal():
            other = key != "gpu"
            stack = [] if other else [(at, {"gpu": int(value)})]
            gpus += [] if other else [stack[0][1]]
            continue
        if other or words.startswith(("$", "#")):
            continue
        if not stack:
            stack = [(-1, {"gpu": int(asked.group(1)) if asked else 0})]
            gpus.append(stack[0][1])
        while len(stack) > 1 and stack[-1][0] >= at:
            stack.pop()
        last = None
        if value:
            stack[-1][1][key] = value
            last = (stack[-1][1], key)
        else:
            inner: Any = stack[-1][1].setdefault(key, {})
            stack += [(at, inner)] if isinstance(inner, dict) else []
    return gpus


def metric(gpu: Nested) -> Told:
    """One GPU of `amd-smi metric`."""
    reader = Reader()
    usage, temperature, memory, energy, ecc, fan = (
        _part(gpu, name) for name in ("usage", "temperature", "mem_usage", "energy", "ecc", "fan")
    )
    for part, key, field, times, most in (
        (usage, "gfx_activity", "util", 0.01, 100.0),
        (usage, "umc_activity", "mem_busy", 0.01, 100.0),
        (temperature, "edge", "temp_edge_c", 1.0, 250.0),
        (temperature, "hotspot", "temp_hot_c", 1.0, 250.0),
        (temperature, "mem", "temp_mem_c", 1.0, 250.0),
        (memory, "used_vram", "mem_used", MIB, None),
        (memory, "total_vram", "mem_total", MIB, None),
        (ecc, "total_correctable_count", "ecc_corr", 1.0, None),
        (ecc, "total_uncorrectable_count", "ecc_uncorr", 1.0, None),
        (fan, "usage", "fan", 0.01, 100.0),
    ):
        if key in part:
            reader.put(field, part[key], times, counter=part is memory or part is ecc, most=most)
    if "total_energy_consumption" in energy:
        raw = energy["total_energy_consumption"]
        reader.energy(number_in(raw, counter=True), raw)
    _power(reader, _part(gpu, "power"))
    _clocks(reader, gpu)
    _violations(reader, _part(gpu, "throttle"))
    _pcie(reader, _part(gpu, "pcie"))
    return reader.told(gpu["gpu"])


def metrics(gpus: Iterable[Nested]) -> List[Told]:
    """All of them that hold a value of the schema."""
    return [told for told in map(metric, gpus) if told.reading]


_MONITOR = {  # columns over the versions, of tables and of CSV
    "power": ("power_w", 1.0), "power_usage": ("power_w", 1.0), "gpu_temp": ("temp_hot_c", 1.0),
    "gpu_t": ("temp_hot_c", 1.0), "hotspot_temperature": ("temp_hot_c", 1.0), "mem_temp": ("temp_mem_c", 1.0),
    "mem_t": ("temp_mem_c", 1.0), "memory_temperature": ("temp_mem_c", 1.0), "gfx_util": ("util", 0.01),
    "gfx%": ("util", 0.01), "gfx": ("util", 0.01), "mem_util": ("mem_busy", 0.01), "mem%": ("mem_busy", 0.01),
    "gfx_clock": ("clk_sm_mhz", 1.0), "gfx_clk": ("clk_sm_mhz", 1.0), "mem_clock": ("clk_mem_mhz", 1.0),
    "vram_used": ("mem_used", MIB), "vram_total": ("mem_total", MIB), "single_ecc": ("ecc_corr", 1.0),
    "double_ecc": ("ecc_uncorr", 1.0), "pviol": ("thr_power", 0.01), "tviol": ("thr_thermal", 0.01),
    "gfx_activity": ("util", 0.01), "umc_activity": ("mem_busy", 0.01), "socket_power": ("power_w", 1.0),
    "edge": ("temp_edge_c", 1.0), "hotspot": ("temp_hot_c", 1.0), "mem": ("temp_mem_c", 1.0),
    "mem_0_clk": ("clk_mem_mhz", 1.0), "used_vram": ("mem_used", MIB), "total_vram": ("mem_total", MIB),
    "total_correctable_count": ("ecc_corr", 1.0), "total_uncorrectable_count": ("ecc_uncorr", 1.0),
    "ppt_violation_activity": ("thr_power", 0.01), "socket_thermal_violation_activity": ("thr_thermal", 0.01),
}  # fmt: skip
_COUNTS = ("mem_used", "mem_total", "ecc_corr", "ecc_uncorr")


def monitor(text: str) -> List[Told]:
    """The lines of `amd-smi monitor`'s table; lines that it shortened are left out."""
    found: List[Told] = []
    names: List[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["GPU"] and "NAME" not in words and len(words) > 1:
            names = [word.lower() for word in words]
        elif not words or not words[0].isdecimal():
            names = names if not words or words[0] == "..." else []
        elif names:
            cells = re.split(r"\s{2,}", line.strip())
            if len(cells) == len(names):
                found.append(_flat(dict(zip(names, cells))))  # noqa: B905
    return [told for told in found if told.reading]


def comma_separated(text: str) -> List[Told]:
    """The rows of `amd-smi metric --csv` or `monitor --csv`, also of its watch mode, in their order."""
    rows = [row for row in csv.reader(text.splitlines()) if row]
    names = [name.strip().lower() for name in rows[0]] if rows else []
    if "gpu" not in names:
        raise ValueError("the first line has no column gpu")
    cells = [dict(zip(names, row)) for row in rows[1:] if len(row) == len(names)]  # noqa: B905
    return [told for told in (_flat(row) for row in cells if row["gpu"].strip().isdecimal()) if told.reading]


def _flat(cells: Dict[str, str]) -> Told:
    reader = Reader()
    for name, raw in cells.items():
        if name in _MONITOR:
            field, times = _MONITOR[name if name != "mem" or "hotspot" in cells else "mem%"]
            most = 100.0 if times == 0.01 else None
            reader.put(field, raw, times, counter=field in _COUNTS, most=most)
    if "vram_usage" in cells:
        used, _, total = cells["vram_usage"].partition("/")
        reader.put("mem_used", used, GIB)
        reader.put("mem_total", total or "N/A", GIB)
    dies = [cells[name] for name in cells if re.match(r"gfx_\d+_clk$", name)]
    reader.clocks(dies)
    if "total_energy_consumption" in cells:
        raw = cells["total_energy_consumption"]
        reader.energy(number_in(raw, counter=True), raw)
    if "throttle_status" in cells:
        _status(reader, cells["throttle_status"])
    partition = number_in(cells.get("xcp"))
    return reader.told(int(cells["gpu"]), None if partition is None else int(partition))


def _part(gpu: Nested, name: str) -> Nested:
    part = gpu.get(name)
    return part if isinstance(part, dict) else {}


def _power(reader: Reader, power: Nested) -> None:
    for key in ("socket_power", "current_socket_power", "average_socket_power"):
        if key in power and reader.reading.get("power_w") is None:
            reader.put("power_w", power[key])
    if "throttle_status" in power:
        _status(reader, power["throttle_status"])


def _status(reader: Reader, raw: Any) -> None:
    """One word for all reasons: which one holds is not said, and on RDNA3 it says so always."""
    word = word_in(raw)
    if word == "UNTHROTTLED":
        reader.reading["throttle"] = []
    elif word == "THROTTLED":
        reader.reading["throttle"] = ["other"]
    else:
        reader.none("throttle", SENTINEL, "the tool prints %s" % _shown(raw))


def _clocks(reader: Reader, gpu: Nested) -> None:
    clocks = _part(gpu, "clock") or {key: value for key, value in gpu.items() if re.match(r"(gfx|mem)_\d+$", key)}
    dies = [_clock(part) for key, part in clocks.items() if re.match(r"gfx_\d+$", key)]
    reader.clocks([die for die in dies if die is not None])
    memory = _clock(clocks.get("mem_0"))
    if memory is not None:
        reader.put("clk_mem_mhz", memory)


def _clock(part: Any) -> Any:
    if not isinstance(part, dict):
        return None
    return part.get("clk", part.get("cur_clk"))


def _violations(reader: Reader, throttle: Nested) -> None:
    found, known = set(), False
    for name, reason in _VIOLATIONS:
        word = word_in(throttle.get(name + "_violation_status"))
        known = known or word is not None
        if word == "ACTIVE":
            found.add(reason)
    if known:
        reader.reading["throttle"] = sorted(found)
        reader.why.pop("throttle", None)
    for name, field in (("ppt", "thr_power"), ("socket_thermal", "thr_thermal")):
        key = name + "_violation_activity"
        if key in throttle:
            reader.put(field, throttle[key], 0.01, most=100.0)


def _pcie(reader: Reader, pcie: Nested) -> None:
    for key, field in (("current_bandwidth_sent", "pcie_tx_bps"), ("current_bandwidth_received", "pcie_rx_bps")):
        if key in pcie:
            text = "the tool tells no rate of one direction (%s)" % _shown(pcie[key])
            reader.none(field, NOT_SUPPORTED, text)


def identity(gpu: Nested) -> Dict[str, Any]:
    """DEVICE_KEYS as far as one GPU of `amd-smi list` or `amd-smi static` tells them; `device_id`, `gfx`."""
    asic, bus, limit, vbios, parts = (_part(gpu, name) for name in ("asic", "bus", "limit", "vbios", "partition"))
    vbios = vbios or _part(gpu, "ifwi")
    limit = _part(limit, "ppt0") or limit
    serial = word_in(asic.get("asic_serial"))
    bdf = word_in(gpu.get("bdf")) or word_in(bus.get("bdf"))
    partition = number_in(gpu.get("partition_id", parts.get("partition_id")))
    watts = [number_in(limit.get(key)) for key in _WATT_LIMITS if key in limit]
    gt_s = number_in(bus.get("max_pcie_speed"))
    told = {
        "bdf": bdf.lower() if bdf else None,
        "partition": None if partition is None else int(partition),
        "uuid": "GPU-" + serial[2:].lower().zfill(16) if serial and serial.lower().startswith("0x") else None,
        "model": word_in(asic.get("market_name")),
        "vbios": word_in(vbios.get("part_number")) or word_in(vbios.get("version")),
        "driver": word_in(_part(gpu, "driver").get("version")),
        "numa_node": number_in(_part(gpu, "numa").get("node")),
        "mem_total": _mib(_part(gpu, "vram").get("size")),
        "compute_mode": word_in(parts.get("accelerator_partition")) or word_in(parts.get("compute_partition")),
        "memory_mode": word_in(parts.get("memory_partition")),
        "power_limit_w": next((watt for watt in watts if watt), None),
        "power_limit_max_w": number_in(limit.get("max_power", limit.get("max_power_limit"))) or None,
        "device_id": word_in(asic.get("device_id")),
        "gfx": word_in(asic.get("target_graphics_version")),
        "max_pcie_gt_s": gt_s,
    }
    return {key: value for key, value in told.items() if value is not None}


def _times(value: float, times: float) -> float:
    if times == 1.0:
        return value
    return value / 100 if times == 0.01 else round(value * times)


def _mib(raw: Any) -> Optional[float]:
    value = number_in(raw, counter=True)
    return None if value is None else value * MIB


def _shown(raw: Any) -> str:
    return json.dumps(raw, ensure_ascii=False, default=str)[:60]
