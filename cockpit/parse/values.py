"""Values as logs write them."""

from __future__ import annotations

import math
import re
from functools import lru_cache

_LEADING = re.compile(r"\s*([+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_NOT_WORD = re.compile(r"[^a-z0-9]+")


def number(text: str) -> float | None:
    """The leading number of `text` ("12.5/13.1", "663.5 (avg 660.2)", "3,120"); None for none, NaN or infinity."""
    try:
        value = float(text)
    except ValueError:
        found = _LEADING.match(text)
        if found is None:
            return None
        value = float(found[1].replace(",", ""))
    return value if math.isfinite(value) else None


def count(text: str) -> int | None:
    """The leading number of `text` as a count; None where it has a fraction."""
    try:
        return int(text) if len(text) < 40 else None
    except ValueError:
        value = number(text)
        return int(value) if value is not None and value.is_integer() else None


@lru_cache(maxsize=1024)
def name(text: str) -> str:
    """A log's words for a value as a key: "number of nan iterations" -> number_of_nan_iterations."""
    return _NOT_WORD.sub("_", text.lower()).strip("_")[:64]
