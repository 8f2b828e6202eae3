"""How numbers read: digits that carry something, units a person uses, n/a for what is unknown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

UNKNOWN = "n/a"
_HASH = re.compile(r"[0-9a-f]{32,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST = 48
UNITS = {"By": "GiB", "1": "", "Cel": "°C"}
_RATIOS = frozenset({"mfu", "mfu_measured", "throttled_ratio"})


def clean(document: Any) -> Any:
    """A copy of a document whose texts hold no control characters: names come from other machines."""
    if isinstance(document, str):
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", document)
    if isinstance(document, Mapping):
        return {clean(k): clean(v) for k, v in document.items()}
    if isinstance(document, (list, tuple)):
        return [clean(v) for v in document]
    return document


def unit(name: str, code: str) -> str:
    """The unit that `number` speaks in for metric `name` whose unit in JSON is `code`."""
    return "%" if name in _RATIOS else UNITS.get(code, code)


def number(name: str, value: float | None) -> str:
    """A metric's value in its unit: bytes as GiB, ratios as percent, four digits otherwise."""
    if value is None:
        return UNKNOWN
    if name.endswith("_by"):
        value /= 2**30
    if name in _RATIOS:
        value *= 100
    return plain(value)


def plain(value: float) -> str:
    """Four significant digits, thousands grouped: 4,095 or 0.2499."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or size < 1e-4:
        return f"{value:.3e}"
    digits = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:,.{digits}f}"


def span(name: str, ci: Sequence[float] | None) -> str:
    """An interval in the metric's unit, `4,083 to 4,107`; empty where there is none."""
    return f"{number(name, ci[0])} to {number(name, ci[1])}" if ci else ""


def change(ratio: float | None) -> str:
    """A ratio against the first side as its distance from it, `+0.4 %`."""
    return UNKNOWN if ratio is None else f"{_percent(ratio)} %"


def change_span(ci: Sequence[float] | None) -> str:
    """The same of an interval, `-0.8 to +1.6`; empty where there is none."""
    return f"{_percent(ci[0])} to {_percent(ci[1])}" if ci else ""


def relative(value: float | None) -> str:
    """A relative difference, e.g. of losses: `0.12 %`."""
    if value is None:
        return UNKNOWN
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"


def _percent(ratio: float) -> str:
    value = 100 * (ratio - 1)
    size = abs(value)
    return f"{value:+.{2 if size < 1 else 1 if size < 20 else 0}f}"


def values(key: str, found: object) -> str:
    """A difference's value on one side, as a person writes it."""
    if found is None:
        return "not recorded"
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, (int, float)) and key == "throttling":
        return f"{100 * found:.{0 if found >= 0.1 else 1}f} % of the time"
    if isinstance(found, float):
        return f"{found:g}"
    text = str(found)
    if _HASH.fullmatch(text):
        return f"{text[:12]}…"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
