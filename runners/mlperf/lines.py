"""One `:::MLLOG` line: the mark, and a JSON object in the order and with the names of mlperf-logging."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARK = ":::MLLOG "
EVENT, BEGIN, END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_ROOT = Path(__file__).parents[2]


def render(event: str, key: str, value: Any, where: Mapping[str, Any], metadata: Mapping[str, Any], t: float) -> str:
    """The line, without its newline. `t` is wall time in seconds; `where` names file and line of what is logged.

    Raises ValueError on NaN, which is no JSON.
    """
    body = {
        "namespace": "",
        "time_ms": int(t * 1e3),
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {**where, **metadata},
    }
    return MARK + json.dumps(body, allow_nan=False)


def caller() -> dict[str, Any]:
    """The file (below the project's folder) and the line that called `say`, as the metadata names them."""
    frame = sys._getframe(2)
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name
    return {"file": name, "lineno": frame.f_lineno}


def say(event: str, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None) -> None:
    """Print one line with a single write, so that lines of several processes do not mix."""
    line = render(event, key, value, caller(), metadata or {}, time.time())
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
