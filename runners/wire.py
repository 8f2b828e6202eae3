"""What a runner prints for the cockpit: one line with `@ekvi ` and a JSON object. Standard library only.

Launchers put prefixes before a line, so the mark may stand anywhere in it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MARK = "@ekvi "
_MARK = MARK.encode()


def render(kind: str, **fields: Any) -> str:
    """The line, without its newline: wall and monotonic time (seconds) first. Raises ValueError on NaN."""
    body = {"type": kind, "t": time.time(), "mono": time.monotonic(), **fields}
    return MARK + json.dumps(body, separators=(",", ":"), allow_nan=False)


def emit(kind: str, **fields: Any) -> None:
    """Print one wire line with a single write, so that lines of several processes do not mix."""
    sys.stdout.write(render(kind, **fields) + "\n")
    sys.stdout.flush()


def parse(line: bytes) -> dict[str, Any] | None:
    """The object of a wire line, or None where `line` has none or a damaged one."""
    at = line.find(_MARK)
    if at < 0:
        return None
    try:
        obj = json.loads(line[at + len(_MARK) :])
    except ValueError:
        return None
    return obj if isinstance(obj, dict) and isinstance(obj.get("type"), str) else None
