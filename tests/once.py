"""What is expensive is made once a session, also where several workers share its tests."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def once(folder: Path, make: Callable[[], Any]) -> Any:
    """What `make()` gave, as JSON brings it back: the first worker makes it in `folder`, the others wait for it.

    An error of `make` is the one of each worker that asks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "made.json"
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(json.dumps(make()))
    return json.loads(made.read_text())
