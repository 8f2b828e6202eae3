"""Several nodes' streams into one journal: whatever comes first, and wherever the cockpit is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.core.events import Artifact, Event, Iteration
from cockpit.core.state import RunState
from cockpit.engine.follower import RunFollower
from cockpit.parse.stream import StreamParser
from cockpit.store.rundir import RunDir

NODES = 3
LOG_NODE = 2


class Ear:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.heard = b""
        self.ticks: list[Mapping[str, Any]] = []

    def begin(self, info: Any) -> None: ...
    def note(self, level: str, text: str) -> None: ...
    def end(self, outcome: Any) -> None: ...

    def event(self, run: str, event: Event) -> None:
        self.events.append(event)

    def log(self, run: str, offset: int, data: bytes) -> None:
        assert offset == len(self.heard)
        self.heard += data

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        self.ticks.append(tick)


def _wire(kind: str, **fields: Any) -> bytes:
    return b"@ekvi " + json.dumps({"type": kind, "t": 1.0, "mono": 1.0, **fields}).encode() + b"\n"


def _log(node: int) -> bytes:
    """A node's output: iterations from each, as a careless program prints them, and words of its own."""
    lines = [b"hello from node %d\n" % node]
    for step in range(1, 6):
        lines.append(_wire("iteration", step=step, total=5, loss=1.0 / step, step_s=0.1, tokens=8, samples=1))
        lines.append(
            _wire("diagnostic", level="info", code="x", message=f"{node}.{step}", data={"node": 7, "offset": 1})
        )
    lines.append(_wire("artifact", path="model.bin", bytes=1, sha256="00"))
    lines.append(_wire("stage", stage="train", status="done", message=None)[:-1])  # no newline at the very end
    return b"".join(lines)


LOGS = [_log(node) for node in range(NODES)]
TICKS = b"".join(
    b'{"type":"tick","seq":%d,"t_mono_ns":%d,"t_wall_ns":%d,"devices":[]}\n' % (i, i, i) for i in range(2)
)


async def _once(write: Callable[[], Any]) -> Any:
    return write()


def _follower(folder: Path, ear: Ear) -> RunFollower:
    return RunFollower(RunDir(folder), RunState(run="r"), ear, _once, nodes=NODES, log_node=LOG_NODE)


def _facts(events: list[Event]) -> list[tuple[Any, ...]]:
    """What each event says, by node and in its order there."""
    found = []
    for e in sorted(events, key=lambda e: e.node):
        body = {k: v for k, v in e.to_json().items() if k not in ("seq", "t_recv", "run")}
        found.append((e.node, json.dumps(body, sort_keys=True)))
    return found


def _wanted() -> list[tuple[Any, ...]]:
    """The events of each log parsed alone."""
    events: list[Event] = []
    for node, data in enumerate(LOGS):
        parser = StreamParser()
        for e in [*parser.feed(data, 0), *parser.finish()]:
            if not isinstance(e, Iteration) or node == LOG_NODE:
                fields = {"node": node}
                if isinstance(e, Artifact) and node:
                    fields["path"] = f"node{node}/{e.path}"  # type: ignore[assignment]
                events.append(_replaced(e, **fields))
    return _facts(events)


def _replaced(event: Event, **fields: Any) -> Event:
    from dataclasses import replace

    return replace(event, **fields)


async def _session(folder: Path, order: list[int], sizes: list[int], blocks: int | None) -> tuple[Ear, int]:
    """One life of a cockpit: what is there, then `blocks` more (all: None), nodes by turns as `order` says."""
    ear = Ear()
    follower = _follower(folder, ear)
    await follower.recover()
    given_ = 0
    turns, lengths = itertools.cycle(order), itertools.cycle(sizes)
    while blocks is None or given_ < blocks:
        at = [follower.dir.stdout_size_of(node) for node in range(NODES)]
        if all(at[node] == len(LOGS[node]) for node in range(NODES)):
            break
        node = next(turns)
        if at[node] == len(LOGS[node]):
            node = next(n for n in range(NODES) if at[n] < len(LOGS[n]))
        back = max(0, at[node] - 3)  # a block may begin where another already was
        await follower.output(back, LOGS[node][back : at[node] + next(lengths)], node)
        given_ += 1
    if blocks is None:
        for node in range(NODES):
            await follower.telemetry(TICKS, node)
        await follower.finish()
    follower.close()
    return ear, given_


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, NODES - 1), min_size=1, max_size=8),
    st.lists(st.integers(1, 400), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 25), st.integers(0, 400)), max_size=3),
)
def test_any_interleaving_and_any_crash_give_each_event_once(
    tmp_path: Path, order: list[int], sizes: list[int], crashes: list[tuple[int, int]]
) -> None:
    folder = tmp_path / "r"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for blocks, lost_by in crashes:
        asyncio.run(_session(folder, order, sizes, blocks))
        journal = folder / "events.jsonl"
        journal.write_bytes(journal.read_bytes()[: -lost_by or None])  # what a killed writer did not bring to disk
    ear, _ = asyncio.run(_session(folder, order, sizes, None))
    assert _facts(ear.events) == _wanted()
    assert _facts(list(RunDir(folder).journal_events())) == _wanted()
    assert [e.seq for e in RunDir(folder).journal_events()] == list(range(len(ear.events)))
    assert ear.heard == LOGS[LOG_NODE]
    assert [t.get("node", 0) for t in ear.ticks] == [n for n in range(NODES) for _ in range(2)]
    for node, name in enumerate(("stdout.log", "stdout.node1.log", "stdout.node2.log")):
        assert (folder / name).read_bytes() == LOGS[node]


def test_iterations_come_from_the_log_node_alone(tmp_path: Path) -> None:
    ear, _ = asyncio.run(_session(tmp_path, [0, 1, 2], [50], None))
    assert {(e.node, type(e).type) for e in ear.events if isinstance(e, Iteration)} == {(LOG_NODE, "iteration")}
    assert [e.step for e in ear.events if isinstance(e, Iteration)] == [1, 2, 3, 4, 5]
    assert sorted(e.path for e in ear.events if isinstance(e, Artifact)) == [
        "model.bin", "node1/model.bin", "node2/model.bin",
    ]  # fmt: skip


def test_a_plain_runs_journal_is_as_it_was(tmp_path: Path) -> None:
    async def follow() -> None:
        follower = RunFollower(RunDir(tmp_path), RunState(run="r"), Ear(), _once, nodes=1, log_node=0)
        await follower.recover()
        await follower.output(0, LOGS[0])
        await follower.finish()
        follower.close()

    asyncio.run(follow())
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert all("node" not in line for line in lines)
    assert [line["step"] for line in lines if line["type"] == "iteration"] == [1, 2, 3, 4, 5]
