"""What nvidia-smi's words mean: from one GPU's row, by the names of `--query-gpu`, to the fields of source.py.

Every way of asking (`--query-gpu` as CSV with or without units, `-q` as text or XML) ends in such a row, so each
field has one rule. A word that stands for no value is None with its reason, never 0.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from .nvml_hot import throttle
from .source import (
    BAD_VALUE,
    DEVICE_KEYS,
    FAILED,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SENTINEL,
    Reading,
    Reasons,
)

Row = Dict[str, str]

_NOTHING = {  # in lower case, without brackets
    "n/a": NOT_SUPPORTED,
    "not supported": NOT_SUPPORTED,
    "requested functionality has been deprecated": NOT_SUPPORTED,
    "function not found": NOT_FOUND,
    "not found": NOT_FOUND,
    "insufficient permissions": NO_PERMISSION,
    "no permission": NO_PERMISSION,
    "gpu is lost": FAILED,
    "gpu requires reset": FAILED,
    "unknown error": FAILED,
    "err!": FAILED,
    "error": FAILED,
    "": SENTINEL,
    "-": NOT_SUPPORTED,  # of dmon
}
_NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*([A-Za-z%/]*)$")
_MIB = float(1 << 20)
_FACTORS = {"MiB": _MIB, "KiB": 1024.0, "GiB": _MIB * 1024, "B": 1.0, "%": 0.01, "KB/s": 1e3, "MB/s": 1e6, "us": 1e-6}
_ALL_BITS = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


class Rule(NamedTuple):
    """Names of `--query-gpu`, the first that holds a value counts; the factor of a bare number; what can be true."""

    names: Tuple[str, ...]
    factor: float
    low: float
    high: float
    whole: bool = False


RULES = {
    "util": Rule(("utilization.gpu",), 0.01, 0, 1),
    "mem_busy": Rule(("utilization.memory",), 0.01, 0, 1),
    "mem_used": Rule(("memory.used",), _MIB, 0, 1 << 50, True),
    "power_w": Rule(("power.draw.instant", "power.draw", "power.draw.average"), 1, 0.001, 20_000),
    "temp_edge_c": Rule(("temperature.gpu",), 1, 1, 200),
    "temp_mem_c": Rule(("temperature.memory",), 1, 1, 200),
    "clk_sm_mhz": Rule(("clocks.current.sm", "clocks.sm"), 1, 0, 20_000),
    "clk_mem_mhz": Rule(("clocks.current.memory", "clocks.mem"), 1, 0, 20_000),
    "pcie_tx_bps": Rule(("pcie.tx",), 1e3, 0, 1e13),
    "pcie_rx_bps": Rule(("pcie.rx",), 1e3, 0, 1e13),
    "mem_total": Rule(("memory.total",), _MIB, 1, 1 << 50, True),
    "power_limit_w": Rule(("enforced.power.limit", "power.limit"), 1, 0.001, 20_000),
    "ecc_corr": Rule(("ecc.errors.corrected.volatile.total",), 1, 0, 1 << 62, True),
    "ecc_uncorr": Rule(("ecc.errors.uncorrected.volatile.total",), 1, 0, 1 << 62, True),
    "fan": Rule(("fan.speed",), 0.01, 0, 2),
}
REASON_NAMES = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
POWER_COUNTERS = ("clocks_event_reasons_counters.sw_power_cap",)
THERMAL_COUNTERS = (
    "clocks_event_reasons_counters.sw_thermal_slowdown",
    "clocks_event_reasons_counters.hw_thermal_slowdown",
)


def no_value(word: str) -> Optional[Tuple[str, str]]:
    """Code and text of a word that stands for no value; None for any other."""
    bare = word.strip().strip("[]").strip()
    code = _NOTHING.get(bare.lower())
    return None if code is None else (code, "nvidia-smi says %s" % (bare or "nothing"))


def number_of(word: str, factor: float) -> Optional[float]:
    """A number with or without its unit, in the schema's units; `factor` is that of a bare one."""
    found = _NUMBER.match(word.strip())
    if found is None:
        return None
    digits, unit = found.groups()
    return float(digits) * (_FACTORS.get(unit, 1.0) if unit and unit != "x" else factor)


def value(row: Row, field: str, reasons: Reasons) -> Any:
    """One field by its rule, None with its reason."""
    rule = RULES[field]
    why = (NOT_FOUND, "this nvidia-smi does not have %s" % rule.names[0])
    for name in rule.names:
        if name not in row:
            continue
        nothing = no_value(row[name])
        if nothing is not None:
            why = nothing
            continue
        found = number_of(row[name], rule.factor)
        every_bit = found is not None and not rule.whole and round(found / rule.factor) in _ALL_BITS
        if found is not None and rule.low <= found <= rule.high and not every_bit:
            return int(found) if rule.whole or (found.is_integer() and rule.factor == 1) else round(found, 6)
        code = SENTINEL if every_bit else BAD_VALUE
        why = (code, "nvidia-smi says %r" % row[name])
    reasons.none(field, *why)
    return None


def throttled(row: Row, reasons: Reasons) -> Optional[List[str]]:
    """The set of throttle reasons from the mask of those that are active."""
    why = (NOT_FOUND, "this nvidia-smi does not have %s" % REASON_NAMES[0])
    for name in REASON_NAMES:
        if name not in row:
            continue
        nothing = no_value(row[name])
        try:
            bits = int(row[name], 16)
            if bits < 1 << 63:
                return throttle(bits)
        except ValueError:
            pass
        why = nothing or (BAD_VALUE, "nvidia-smi says %r" % row[name])
    reasons.none("throttle", *why)
    return None


def reading(row: Row, fields: Iterable[str], reasons: Reasons) -> Reading:
    """Those of `fields` that a row can tell, by their rules."""
    found: Reading = {}
    for field in fields:
        if field in RULES:
            found[field] = value(row, field, reasons)
        elif field == "throttle":
            found[field] = throttled(row, reasons)
    return found


def throttle_seconds(row: Row, names: Iterable[str]) -> Optional[float]:
    """Seconds of throttling so far, the sum of these counters; None where one of them is missing."""
    total = 0.0
    for name in names:
        word = row.get(name)
        seconds = None if word is None else number_of(word, 1e-6)
        if seconds is None:
            return None
        total += seconds
    return total


def power_kind(row: Row) -> Optional[str]:
    """How `power_w` of this row is measured: from Ampere on `power.draw` is a mean over a second, but for GA100."""
    if "power.draw.instant" in row and number_of(row["power.draw.instant"], 1) is not None:
        return "instant"
    capability = number_of(row.get("compute_cap", ""), 1)
    if capability is not None:
        return "avg1s" if capability > 8.0 else "instant"
    generation = row.get("architecture", "")
    if generation in ("Kepler", "Maxwell", "Pascal", "Volta", "Turing"):
        return "instant"
    ga100 = re.search(r"\b(A100|A30|A800)\b", row.get("name", "")) is not None
    return None if not generation else "instant" if ga100 else "avg1s"


def device(row: Row, index: int) -> Dict[str, Any]:
    """DEVICE_KEYS of a row but `numa_node` and `links`."""
    unsaid = Reasons()
    found: Dict[str, Any] = dict.fromkeys(DEVICE_KEYS)
    bus = re.match(r"0*([0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$", row.get("pci.bus_id", "").lower())
    gen, width = _count(row, "pcie.link.gen.current"), _count(row, "pcie.link.width.current")
    cuda = _word(row, "cuda_version")
    found.update(
        index=index,
        uuid=_word(row, "uuid"),
        bdf=None if bus is None else "%s:%s" % bus.groups(),
        model=_word(row, "name"),
        compute_mode="MIG" if _word(row, "mig.mode.current") == "Enabled" else None,
        driver=_word(row, "driver_version"),
        runtime=None if cuda is None else "CUDA " + cuda,
        vbios=_word(row, "vbios_version"),
        ecc={"Enabled": True, "Disabled": False}.get(_word(row, "ecc.mode.current") or ""),
        mem_total=value(row, "mem_total", unsaid),
        power_limit_w=value(row, "power_limit_w", unsaid),
        power_limit_default_w=number_of(row.get("power.default_limit", ""), 1),
        power_limit_max_w=number_of(row.get("power.max_limit", ""), 1),
        power_kind=power_kind(row),
        power_scope="gpu",
        clk_sm_max_mhz=_count(row, "clocks.max.sm"),
        pcie=None if gen is None and width is None else {"gen": gen, "width": width},
        links=[],
    )
    return found


def _word(row: Row, name: str) -> Optional[str]:
    word = row.get(name, "").strip()
    return word if word and no_value(word) is None else None


def _count(row: Row, name: str) -> Optional[int]:
    found = number_of(row.get(name, ""), 1)
    return None if found is None else int(found)
