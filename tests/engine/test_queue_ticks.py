"""The agent's segments and the cockpit that follows them: cut off, killed, away for a night, and lied to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.state import RunState
from cockpit.engine.follower import RunFollower
from cockpit.engine.queue_node import Node
from cockpit.engine.queue_ticks import NodeTicks
from cockpit.engine.reconnect import Link
from cockpit.hosts.base import FileTruncated
from cockpit.hosts.local import LocalHost
from cockpit.parse.ticklines import NOT_KEPT
from cockpit.store.rundir import RunDir
from runners.agent import segments
from runners.agent.ticks import TickFile

S = 1_000_000_000
RUN = "g.left.r1"


class Ear:
    """An observer that keeps ticks."""

    def __init__(self) -> None:
        self.ticks: list[Mapping[str, Any]] = []

    def begin(self, info: Any) -> None: ...
    def note(self, level: str, text: str) -> None: ...
    def end(self, outcome: Any) -> None: ...
    def event(self, run: str, event: Any) -> None: ...
    def log(self, run: str, offset: int, data: bytes) -> None: ...

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        self.ticks.append(tick)


class Agent:
    """The real writer of segments, on a server whose time a test lets pass: a GPU of 250 W, a tick every 100 ms."""

    def __init__(self, queue: Path, keep_by: int = 256 << 20) -> None:
        self.folder = queue / "runs" / RUN
        self.folder.mkdir(parents=True)
        self.keep_by, self.at_s, self.agents = keep_by, 5000.0, 0
        self.energy_j = 1e6
        self.file = self.begin()

    def begin(self) -> TickFile:
        self.agents += 1
        hello = {"type": "hello", "agent_id": f"a{self.agents}", "boot_id": "b", "hz": 10.0, "devices": []}
        now = lambda: (round(self.at_s * S), round((1e9 + self.at_s) * S))  # noqa: E731
        self.file = TickFile(str(self.folder), hello, 10.0, self.keep_by, now=now, background=False)
        return self.file

    def tick(self, count: int) -> None:
        for _ in range(count):
            self.at_s += 0.1
            self.energy_j += 25.0
            mono, wall = round(self.at_s * S), round((1e9 + self.at_s) * S)
            device = b'{"index":0,"util":0.5,"power_w":250.0,"energy_j":%.1f,"energy_at":%d}' % (self.energy_j, mono)
            self.file.tick(mono, wall, 0, {0: device}, None)

    def firsts(self) -> list[int]:
        return segments.segments_of(str(self.folder))

    def until_segments(self, count: int) -> None:
        while len(self.firsts()) < count:
            self.tick(1)


class Cockpit:
    """One life of a cockpit that follows the agent's telemetry."""

    def __init__(self, queue: Path, mirror: Path, most_by: int = 1 << 40) -> None:
        self.ear = Ear()
        self.told: list[str] = []
        self.mirror = mirror
        mirror.mkdir(exist_ok=True)
        self.node = Node(0, LocalHost(), str(queue), "python3", Link("here", lambda *_: None))
        self.follower = RunFollower(RunDir(mirror), RunState(run=RUN), self.ear, _once, nodes=1, log_node=0)
        self.ticks = NodeTicks(self.node, {RUN: self.follower}, most_by, self._full)

    async def _full(self, node: Node, run: str, name: str) -> None:
        self.told.append(name)
        node.gone.add(f"{node.path}/runs/{run}/{name}")

    async def connect(self) -> None:
        self.node.cursors.clear()
        await self.ticks.find([RUN])

    async def read(self, limit: int) -> bool:
        """One block of at most `limit` bytes, as following gives it; whether there was any."""
        (path,) = self.node.cursors
        offset = self.node.cursors[path]
        data = await self.node.host.read(path, offset, limit)
        if data:
            self.node.cursors[path] = offset + len(data)
            await self.ticks.take(RUN, path, offset, data)
        return bool(data)

    def lines(self) -> list[dict[str, Any]]:
        return list(RunDir(self.mirror).ticks())


async def _once(write: Callable[[], Any]) -> Any:
    return write()


def _lives(queue: Path, mirror: Path, *lives: Callable[[Cockpit], Any]) -> list[dict[str, Any]]:
    """Cockpits one after the other, each killed after its life; what is here then."""

    async def live(life: Callable[[Cockpit], Any]) -> None:
        cockpit = Cockpit(queue, mirror)
        await cockpit.follower.recover()
        await cockpit.connect()
        await life(cockpit)
        cockpit.follower.close()

    for life in lives:
        asyncio.run(live(life))
    return list(RunDir(mirror).ticks())


async def _to_the_end(cockpit: Cockpit) -> None:
    await cockpit.ticks.drain(RUN)


def _spans(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    found = []
    for line in lines:
        if line["type"] in ("tick", "gap"):
            last = line["seq"] if line["type"] == "tick" else line["to_seq"]
            found.append((line.get("from_seq", last), last))
    return found


def _whole(lines: list[dict[str, Any]], last: int) -> None:
    """Every number up to `last` is spoken of, and only what was thinned meanwhile twice."""
    spans = _spans(lines)
    assert spans[0][0] == 0
    assert spans[-1][1] == last
    for before, after in pairwise(spans):
        assert before[1] < after[1]
        assert after[0] <= before[1] + 1
        assert after[0] == before[1] + 1 or after[1] - after[0] > 1


def _energy(lines: list[dict[str, Any]]) -> float:
    ticks = [line["devices"][0] for line in lines if line["type"] == "tick"]
    return float(ticks[-1]["energy_j"] - ticks[0].get("first", ticks[0])["energy_j"])


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    return tmp_path / "q"


def test_all_segments_come_home_in_order_each_line_once(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=1 << 20)
    agent.until_segments(4)
    lines = _lives(queue, tmp_path / "r", _to_the_end)
    assert [line["type"] for line in lines[:2]] == ["hello", "tick"]
    assert sum(line["type"] == "hello" for line in lines) == 1
    assert [line["seq"] for line in lines[1:]] == list(range(agent.firsts()[-1]))


def test_followed_live_over_segments_and_an_agent_that_comes_again(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=1 << 20)

    async def follow(cockpit: Cockpit) -> None:
        async def work() -> None:
            async with contextlib.aclosing(cockpit.node.host.follow(cockpit.node.cursors, interval=0.005)) as chunks:
                async for chunk in chunks:
                    await cockpit.ticks.take(RUN, chunk.path, chunk.offset, chunk.data)
                    if cockpit.follower.next_tick() >= 3000:
                        return
                    if len(agent.firsts()) < 4:
                        agent.tick(700)
                    elif agent.agents == 1:
                        agent.at_s += 30.0  # killed: nobody said good-bye
                        agent.begin()
                        agent.tick(200)

        agent.tick(1)
        await asyncio.wait_for(work(), 30)
        assert cockpit.ear.ticks == cockpit.lines()

    lines = _lives(queue, tmp_path / "r", follow)
    _whole(lines, lines[-1]["seq"])
    (gap,) = (line for line in lines if line["type"] == "gap")
    assert (gap["reason"], gap["to_seq"] - gap["from_seq"]) == ("the agent was away", 298)
    assert {line["agent_id"] for line in lines if line["type"] == "hello"} == {"a1", "a2"}


@pytest.mark.parametrize("limit", [100, 5000, 70_000])
def test_a_killed_cockpit_goes_on_by_the_numbers(queue: Path, tmp_path: Path, limit: int) -> None:
    agent = Agent(queue, keep_by=1 << 20)
    agent.until_segments(3)

    async def some(cockpit: Cockpit) -> None:
        for _ in range(4):
            await cockpit.read(limit)

    mirror = tmp_path / "r"
    _lives(queue, mirror, some)
    torn = mirror / "telemetry.jsonl"
    torn.write_bytes(torn.read_bytes()[:-20])
    lines = _lives(queue, mirror, some, some, _to_the_end)
    assert [line["seq"] for line in lines if line["type"] == "tick"] == list(range(agent.firsts()[-1]))
    assert sum(line["type"] == "hello" for line in lines) == 1
    assert not any(line["type"] == "gap" for line in lines)


def test_a_night_without_a_cockpit_comes_home_thinned_with_all_its_energy(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=400_000)

    async def evening(cockpit: Cockpit) -> None:
        agent.tick(55)
        await cockpit.ticks.drain(RUN)

    _lives(queue, tmp_path / "r", evening)
    agent.tick(20_000)
    lines = _lives(queue, tmp_path / "r", _to_the_end)
    _whole(lines, 20_054)
    assert not any(line["type"] == "gap" for line in lines)
    assert {line.get("n", 1) for line in lines} >= {1, 10, 100}
    assert _energy(lines) == pytest.approx(25.0 * 20_054)


def test_back_in_the_middle_of_what_was_thinned_meanwhile(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=400_000)

    async def some(cockpit: Cockpit) -> None:
        agent.until_segments(3)
        while cockpit.follower.next_tick() < agent.firsts()[1] + 33:  # in the middle of the second segment
            await cockpit.read(1000)
        agent.tick(9000)

    lines = _lives(queue, tmp_path / "r", some, _to_the_end)
    _whole(lines, agent_last(agent))
    assert _energy(lines) == pytest.approx(25.0 * agent_last(agent))


def agent_last(agent: Agent) -> int:
    return agent.file._seq - 1


@pytest.mark.parametrize("ahead", [1000, 20_000, 40_000])
def test_a_segment_that_is_thinned_while_it_is_read_is_read_again(queue: Path, tmp_path: Path, ahead: int) -> None:
    agent = Agent(queue, keep_by=400_000)
    agent.until_segments(2)

    async def slow(cockpit: Cockpit) -> None:
        await cockpit.read(ahead)
        agent.tick(2500)  # the first segment is rewritten
        assert "every_s" in (agent.folder / "telemetry.0.jsonl").read_bytes().splitlines()[0].decode()
        await cockpit.ticks.drain(RUN)

    async def truncated(cockpit: Cockpit) -> None:
        """What following by offset would say of a file that is shorter than what was read of it."""
        path = str(agent.folder / "telemetry.0.jsonl")
        cockpit.node.cursors[path] = 1 << 20
        with pytest.raises(FileTruncated):
            async with contextlib.aclosing(cockpit.node.host.follow(cockpit.node.cursors)) as chunks:
                await anext(chunks)
        assert cockpit.ticks.anew(path)
        await cockpit.ticks.drain(RUN)

    lines = _lives(queue, tmp_path / "r", slow)
    _whole(lines, agent_last(agent))
    assert not any(line["type"] == "gap" for line in lines)
    _whole(_lives(queue, tmp_path / "r2", truncated), agent_last(agent))


def test_what_the_server_removed_is_declared_with_its_bounds(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=1 << 20)

    async def evening(cockpit: Cockpit) -> None:
        agent.tick(30)
        await cockpit.ticks.drain(RUN)

    _lives(queue, tmp_path / "r", evening)
    agent.until_segments(4)
    firsts = agent.firsts()
    for first in firsts[:2]:
        (agent.folder / f"telemetry.{first}.jsonl").unlink()
    lines = _lives(queue, tmp_path / "r", _to_the_end)
    gaps = [line for line in lines if line["type"] == "gap"]
    assert gaps == [{"type": "gap", "from_seq": 30, "to_seq": firsts[2] - 1, "reason": NOT_KEPT}]
    _whole(lines, agent_last(agent))


def test_a_segment_that_vanishes_while_it_is_followed_is_left_for_the_next(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=1 << 20)
    agent.until_segments(3)

    async def follow(cockpit: Cockpit) -> None:
        await cockpit.read(4000)
        (agent.folder / "telemetry.0.jsonl").unlink()
        assert not await cockpit.read(4000)
        await cockpit.ticks.seek([RUN])
        while await cockpit.read(1 << 20):
            pass

    lines = _lives(queue, tmp_path / "r", follow)
    assert [line["reason"] for line in lines if line["type"] == "gap"] == [NOT_KEPT]
    _whole(lines, agent_last(agent))


def test_the_bound_of_what_a_server_may_send_holds(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue, keep_by=1 << 20)
    agent.until_segments(3)

    async def follow() -> Cockpit:
        cockpit = Cockpit(queue, tmp_path / "r", most_by=20_000)
        await cockpit.connect()
        await cockpit.ticks.drain(RUN)
        await cockpit.connect()
        assert cockpit.node.cursors == {}
        cockpit.follower.close()
        return cockpit

    cockpit = asyncio.run(follow())
    size = (tmp_path / "r" / "telemetry.jsonl").stat().st_size
    assert 19_000 < size <= 20_000
    assert cockpit.told == ["telemetry.jsonl"]


def test_an_older_agents_plain_file_is_followed(queue: Path, tmp_path: Path) -> None:
    folder = queue / "runs" / RUN
    folder.mkdir(parents=True)
    ticks = [{"type": "tick", "seq": i, "t_mono_ns": i, "t_wall_ns": i, "devices": [], "host": {}} for i in range(40)]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in [{"type": "hello"}, *ticks])
    (folder / "telemetry.jsonl").write_bytes(data[:1000])

    async def more(cockpit: Cockpit) -> None:
        await cockpit.ticks.drain(RUN)
        (folder / "telemetry.jsonl").write_bytes(data)
        await cockpit.ticks.drain(RUN)

    lines = _lives(queue, tmp_path / "r", more, _to_the_end)
    assert lines == [{"type": "hello"}, *ticks]


def test_segments_that_lead_nowhere_backwards_or_in_circles_end(queue: Path, tmp_path: Path) -> None:
    folder = queue / "runs" / RUN
    folder.mkdir(parents=True)
    tick = {"type": "tick", "seq": 0, "t_mono_ns": 0, "t_wall_ns": 0, "devices": []}

    def write(first: int, *lines: Any) -> None:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        (folder / f"telemetry.{first}.jsonl").write_bytes(data)

    write(0, {"type": "segment", "first_seq": 0}, tick, {"type": "segment", "first_seq": 5})
    write(5, {"type": "segment", "first_seq": 0}, {**tick, "seq": 5}, {"type": "segment", "first_seq": 10**15})
    (folder / "telemetry.7.jsonl").mkdir()
    (folder / "telemetry.x.jsonl").write_bytes(b"")
    (folder / "telemetry.99999999999999999999.jsonl").write_bytes(b"")

    async def bounded(cockpit: Cockpit) -> None:
        with contextlib.suppress(Exception):  # a folder in a file's place is the server's error
            await asyncio.wait_for(cockpit.ticks.drain(RUN), 20)

    lines = _lives(queue, tmp_path / "r", bounded)
    assert _spans(lines) == [(0, 0), (1, 4), (5, 5)]


def test_what_was_measured_of_the_clock_stands_beside_the_ticks_once(queue: Path, tmp_path: Path) -> None:
    agent = Agent(queue)
    line = {"type": "clock", "t_wall_ns": 5, "offset_s": 90.0, "error_s": 0.001, "rtt_s": 0.002}

    async def follow(cockpit: Cockpit) -> None:
        cockpit.node.clock = line
        for _ in range(3):
            agent.tick(2)
            await cockpit.ticks.drain(RUN)
        cockpit.node.clock = {**line, "t_wall_ns": 6}
        agent.tick(1)
        await cockpit.ticks.drain(RUN)

    lines = _lives(queue, tmp_path / "r", follow, _to_the_end)
    assert [x["t_wall_ns"] for x in lines if x["type"] == "clock"] == [5, 6]
    assert [x["seq"] for x in lines if x["type"] == "tick"] == list(range(7))
