"""A watch kept in a file, and played again: JSON Lines of ekvi.gpu/1, each with its server and when it came."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import StoreError, UsageError
from cockpit.core.gpu import number
from cockpit.core.records import Access
from cockpit.core.text import json_line

if TYPE_CHECKING:
    from cockpit.engine.watch import Face, Machine

_FLUSH_S = 1.0
_LINE_BY = 4 << 20
_MOST_MACHINES = 10_000


class Recorder:
    """Writes a watch into a new file, a line at a time; a context manager. Raises UsageError, StoreError."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self._file = open(path, "x", encoding="utf-8", opener=_private)  # noqa: SIM115  closed at the exit
        except FileExistsError:
            raise UsageError(f"--record {path}: the file is there already.", hint="Name another one.") from None
        except OSError as e:
            raise StoreError(f"--record {path}: {e.strerror}.") from e
        self._flushed = time.monotonic()
        self._failed = False

    def add(self, server: str, line: Mapping[str, Any]) -> str | None:
        """Write one line; a sentence where the disk refuses it (once: after that nothing more is written)."""
        if self._failed:
            return None
        try:
            self._file.write(json_line({**line, "server": server, "t_recv": time.time()}))
            if (now := time.monotonic()) - self._flushed >= _FLUSH_S:
                self._flushed = now
                self._file.flush()
        except OSError as e:
            self._failed = True
            return f"{self._path} cannot be written any more ({e.strerror}): the watch goes on without it."
        return None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.close()
        except OSError as e:
            if not self._failed:
                raise StoreError(f"The end of {self._path} could not be written: {e.strerror}.") from e


def _private(path: str, flags: int) -> int:
    """It tells who computes what on whose GPUs: its user's alone."""
    return os.open(path, flags, 0o600)


def _lines(path: Path) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """(server, when it came, line) of each whole line; a torn last one is left out."""
    with path.open("rb") as file:
        for count, raw in enumerate(iter(lambda: file.readline(_LINE_BY + 1), b""), 1):
            try:
                said = json.loads(raw) if len(raw) <= _LINE_BY else None
            except (ValueError, RecursionError):
                if not raw.endswith(b"\n"):
                    return
                said = None
            t = number(said.get("t_recv")) if isinstance(said, dict) else None
            if not isinstance(said, dict) or not isinstance(said.get("server"), str) or t is None:
                raise UsageError(
                    f"{path}:{count} is no line of a recorded watch.", hint="`telemetry --record FILE` writes one."
                )
            yield said["server"], t, {k: v for k, v in said.items() if k not in {"server", "t_recv"}}


def recorded(path: str) -> dict[str, Machine]:
    """The machines of a recorded watch by name, in the order they came. Raises UsageError, StoreError."""
    from cockpit.engine.watch import LIVE, Machine
    from cockpit.telemetry.live import Wanted

    found: dict[str, Machine] = {}
    try:
        for server, _, _ in _lines(Path(path)):
            if server not in found and len(found) < _MOST_MACHINES:
                found[server] = Machine(server, server, Access(), "", None, Wanted(), state=LIVE)
    except OSError as e:
        raise StoreError(f"{path} cannot be read: {e.strerror}.") from e
    if not found:
        raise UsageError(f"{path} holds no line of a watch.")
    return found


async def play(path: str, watched: Mapping[str, Machine], face: Face, *, speed: float = 1.0) -> None:
    """Hand on the lines of a record at `speed` times their own pace."""
    first: float | None = None
    began = time.monotonic()
    for server, t, line in _lines(Path(path)):
        first = t if first is None else first
        due = began + (t - first) / speed
        if math.isfinite(due) and (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        machine = watched.get(server)
        if machine is not None and machine.now.take(line, time.monotonic()) is not None:
            face.line(machine, line)
