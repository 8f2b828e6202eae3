"""Telemetry of a whole group's way home: agents and cockpits that are killed leave every number spoken of once."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.conftest import Duel, eventually

pytestmark = pytest.mark.timeout(120)


def _lines(duel: Duel, run: str) -> list[dict[str, Any]]:
    path = duel.runs / run / "telemetry.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(raw) for raw in data[: data.rfind(b"\n") + 1].splitlines()]


def _ticks(duel: Duel, run: str) -> int:
    return sum(line["type"] == "tick" for line in _lines(duel, run))


def _whole(lines: list[dict[str, Any]]) -> None:
    spans: list[tuple[int, int]] = []
    for line in lines:
        if line["type"] in ("tick", "gap"):
            last = line["seq"] if line["type"] == "tick" else line["to_seq"]
            spans.append((line.get("from_seq", last), last))
    assert spans[0][0] == 0
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))


def _first(duel: Duel) -> str:
    def running() -> str | None:
        found = [p.parent.name for p in duel.runs.glob("*/telemetry.jsonl") if _ticks(duel, p.parent.name) >= 2]
        return found[0] if found else None

    return str(eventually(running))


def test_a_killed_agents_silence_is_declared_and_the_clock_stands_beside(duel: Duel) -> None:
    duel.write(hold=True, repeats=1)
    cockpit = duel.start("run", "--profile", "toy", "--servers", "left")
    run = _first(duel)
    agent = json.loads(next(duel.work.glob("groups/*/agent.json")).read_text())
    os.kill(agent["pid"], signal.SIGKILL)
    eventually(lambda: sum(line["type"] == "hello" for line in _lines(duel, run)) == 2)
    had = _ticks(duel, run)
    eventually(lambda: _ticks(duel, run) > had)
    duel.release()
    assert cockpit.wait(60) == 0, (duel.home / "err.txt").read_text()
    lines = _lines(duel, run)
    _whole(lines)
    gaps = [line for line in lines if line["type"] == "gap"]
    assert "the agent was away" in {gap["reason"] for gap in gaps}
    clocks = [line for line in lines if line["type"] == "clock"]
    assert clocks
    assert all(abs(line["offset_s"]) < 60 and 0 < line["error_s"] < 1 for line in clocks)


def test_a_killed_cockpit_takes_each_line_once(duel: Duel) -> None:
    duel.write(hold=True, repeats=1)
    cockpit = duel.start("run", "--profile", "toy", "--servers", "left")
    run = _first(duel)
    cockpit.send_signal(signal.SIGKILL)
    cockpit.wait(10)
    path = duel.runs / run / "telemetry.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # in the middle of a line
    had = _ticks(duel, run)
    segment = next(duel.work.glob(f"groups/*/runs/{run}/telemetry.0.jsonl"))
    eventually(lambda: segment.read_bytes().count(b'"tick"') > had + 3)
    duel.release()
    attached = duel.call("attach", "last", "--output", "json", "--with", "gpu")
    assert attached.returncode == 0, attached.stderr
    lines = _lines(duel, run)
    _whole(lines)
    assert sum(line["type"] == "hello" for line in lines) == 1
    assert not any(line["type"] == "gap" and line["reason"] != "late" for line in lines)
    seqs = [line["seq"] for line in lines if line["type"] == "tick"]
    assert len(seqs) == len(set(seqs))
