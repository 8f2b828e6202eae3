"""Who computes on a GPU: a process by its number, as the `procs` field tells it."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ..procs import PROC, inspect

_RUN = b"EKVI_RUN="


def user(pid: int, mem: Optional[int], proc: str = PROC) -> Dict[str, Any]:
    """pid, name (None where the process cannot be seen from here), mem in bytes, run (its EKVI_RUN, or None)."""
    process = inspect(pid, proc)
    return {"pid": pid, "name": None if process is None else process.name, "mem": mem, "run": _run(pid, proc)}


def _run(pid: int, proc: str) -> Optional[str]:
    try:
        with open("%s/%d/environ" % (proc, pid), "rb") as f:
            environ = f.read()
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_RUN):
            return os.fsdecode(entry[len(_RUN) :]) or None
    return None
