"""From a run's output on this machine to its journal: lines a second, by CPU time of mirror, parser and journal."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cockpit.core.events import Event
from cockpit.core.state import RunState
from cockpit.engine.follower import RunFollower
from cockpit.store.rundir import RunDir
from tests.bench.parse import wire_log

_LINES = 50_000
_BLOCK = 1 << 18


class _Nobody:
    """An observer that looks away."""

    def begin(self, info: Any) -> None: ...
    def event(self, run: str, event: Event) -> None: ...
    def log(self, run: str, offset: int, data: bytes) -> None: ...
    def tick(self, run: str, tick: Any) -> None: ...
    def note(self, level: str, text: str) -> None: ...
    def end(self, outcome: Any) -> None: ...


async def _once(write: Callable[[], Any]) -> Any:
    return write()


async def _follow(folder: Path, data: bytes) -> float:
    follower = RunFollower(RunDir(folder), RunState(run="r"), _Nobody(), _once, nodes=1, log_node=0)
    await follower.recover()
    began = time.process_time()
    for offset in range(0, len(data), _BLOCK):
        await follower.output(offset, data[offset : offset + _BLOCK])
    await follower.finish()
    spent = time.process_time() - began
    follower.close()
    assert len(follower.state.series) == _LINES
    return spent


def measure() -> list[tuple[str, float, str, str, str]]:
    """Iteration lines a CPU second from bytes to journal and state."""
    data = wire_log(_LINES)
    with tempfile.TemporaryDirectory() as folder:
        spent = asyncio.run(_follow(Path(folder), data))
    return [("iteration lines to journal and state", _LINES / spent, "lines/s", "-", f"{_LINES:,} lines, no network")]
