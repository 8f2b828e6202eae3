"""Words and values that came from elsewhere (a training, a server, a file name), made safe to show and to write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

# Whole escape sequences, then every control character but newline and tab; also those of Unicode's C1 range, the
# marks that turn the direction of writing, and halves of surrogate pairs, which JSON can say and nothing can encode.
_CONTROL = re.compile(
    r"\x9b[0-?]*[ -/]*[@-~]|\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` without escape sequences and control characters: nothing in it can move a cursor or name a window."""
    return text if text.isascii() and text.isprintable() else _CONTROL.sub("", text)


def finite(value: Any) -> Any:
    """A JSON value with None in place of each NaN and infinity, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def json_line(obj: Mapping[str, Any]) -> str:
    """`obj` as a line of JSON; a number that JSON does not have becomes null, and so does what is nested too deep."""
    try:
        return json.dumps(obj, allow_nan=False) + "\n"
    except (ValueError, RecursionError):
        return json.dumps({key: _bounded(value) for key, value in obj.items()}) + "\n"


def _bounded(value: Any) -> Any:
    try:
        found = finite(value)
        json.dumps(found)
    except RecursionError:  # nothing of ours: somebody tries what we bear
        return None
    return found


def size(by: int | None) -> str:
    """Bytes in a unit that reads well, or `-`."""
    if by is None:
        return "-"
    value = float(by)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
