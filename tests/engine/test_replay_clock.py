"""Two servers whose clocks differ are played at the same time, each line as it stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cockpit.core.events import Iteration
from cockpit.core.state import RunState
from cockpit.engine.replay import _steps
from cockpit.store.rundir import RunDir

T = 1_800_000_000


def _run(folder: Path, server: str, ahead_s: float, *, measured: bool) -> tuple[RunDir, RunState]:
    """A run with an iteration and a tick a second, on a machine whose clock is `ahead_s` ahead."""
    path = folder / server
    path.mkdir(parents=True)
    run = RunDir(path)
    run.write_meta({"id": server, "group": "g", "server": server, "handle": {"queue": server}})
    lines: list[Mapping[str, Any]] = [{"type": "hello", "t_wall_ns": round((T + ahead_s) * 1e9)}]
    for i in range(5):
        wall = round((T + ahead_s + i) * 1e9)
        lines.append({"type": "tick", "seq": 2 * i, "t_mono_ns": wall, "t_wall_ns": wall, "devices": []})
        lines.append({"type": "gap", "from_seq": 2 * i + 1, "to_seq": 2 * i + 1, "reason": "late"})
    if measured:
        wall = round((T + ahead_s + 2) * 1e9)
        lines.append({"type": "clock", "t_wall_ns": wall, "offset_s": ahead_s, "error_s": 0.001, "rtt_s": 0.002})
    run.append_telemetry(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
    with run.journal() as journal:
        journal.append([Iteration(step=i, t=T + ahead_s + i + 0.5) for i in range(5)])
    run.close()
    return run, RunState(run=server, server=server)


class Ear:
    """Keeps which server spoke, and whether by a tick or an event."""

    def __init__(self) -> None:
        self.ticks: list[Mapping[str, Any]] = []

    def log(self, *_: Any) -> None: ...
    def event(self, *_: Any) -> None: ...

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        self.ticks.append(tick)


def _times(folder: Path, server: str, ahead_s: float, *, measured: bool) -> list[float]:
    async def play() -> list[float]:
        ear = Ear()
        found = []
        for t, _, act in _steps(*_run(folder, server, ahead_s, measured=measured), 0):
            found.append(t)
            act(ear)  # type: ignore[arg-type]
        stamps = [tick["t_wall_ns"] for tick in ear.ticks if tick["type"] == "tick"]
        assert stamps == [round((T + ahead_s + i) * 1e9) for i in range(5)], "no stamp is rewritten"
        assert sum(tick["type"] == "gap" for tick in ear.ticks) == 5
        return found

    return asyncio.run(play())


def test_a_server_whose_clock_was_measured_is_played_at_the_cockpits_time(tmp_path: Path) -> None:
    left = _times(tmp_path, "left", 0.0, measured=True)
    right = _times(tmp_path, "right", 90.0, measured=True)
    assert max(abs(a - b) for a, b in zip(left, right, strict=True)) < 0.05
    assert left[0] == T


def test_one_that_was_not_is_played_as_it_says(tmp_path: Path) -> None:
    assert _times(tmp_path, "left", 90.0, measured=False)[0] == T + 90.0
