"""A server's clock measured over a real sshd by the packed agent: within its bound, and over deaths and cuts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from cockpit.engine import queue_clock
from cockpit.engine.queue_node import Node
from cockpit.engine.reconnect import Link
from cockpit.hosts import Host
from cockpit.metrics.clock import point_of
from cockpit.telemetry import clock, deploy
from cockpit.telemetry.pack import Package, build_agent

pytestmark = pytest.mark.hosts

LIMIT_S = 30.0
QUEUE: dict[str, Any] = {"code": None}


@pytest.fixture(scope="module")
def agent() -> Package:
    return build_agent()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pings at a distance that a test can wait for."""
    monkeypatch.setattr(clock, "EVERY_S", 0.05)
    monkeypatch.setattr(clock, "_FIRST_EVERY_S", 0.05)
    monkeypatch.setattr(queue_clock, "_PAUSES_S", (0.05,))


@contextlib.asynccontextmanager
async def running(notes: list[str], *nodes: Node) -> AsyncIterator[list[asyncio.Task[None]]]:
    clocks = queue_clock.Clocks()
    tasks = [asyncio.ensure_future(clocks.keep(node, lambda level, text: notes.append(text))) for node in nodes]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(what: Callable[[], Any]) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while not (found := what()):
            await asyncio.sleep(0.02)
    return found


async def _queue(host: Host, folder: Path, agent: Package) -> str:
    """A queue's folder as far as its agent needs to be known."""
    q = f"{folder}/groups/g.q"
    await host.put(agent.data, f"{folder}/bin/agent-{agent.sha256[:16]}.pyz")
    await host.put(b'{"agent":"%s","python":"python3"}' % agent.sha256[:16].encode(), f"{q}/launch.json")
    return q


def _pongs(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[-1:] == ["pong"] and str(folder) in " ".join(words) and "python" in words[0]:
            found.append(process)
    return found


async def test_the_offset_of_one_machine_to_itself_is_nothing_within_the_bound(
    host: Host, tmp_path: Path, agent: Package, often: None
) -> None:
    q = await _queue(host, tmp_path, agent)
    argv = await deploy.command(host, q, "pong")
    assert argv is not None
    lines: list[Mapping[str, Any]] = []
    task = asyncio.ensure_future(clock.keep(host, argv, lines.append))
    await until(lambda: lines)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    here = clock.here()["offset_s"]
    for line in lines:
        point = point_of(line)
        assert point is not None
        assert abs(point.offset_s - here) <= point.error_s + 0.001
        assert 0 < line["rtt_s"] < 5
    await until(lambda: not _pongs(tmp_path))


async def test_it_is_one_process_that_is_started_again_when_it_dies_and_ends_with_the_session(
    plain: Host, tmp_path: Path, agent: Package, often: None
) -> None:
    node = Node(0, plain, await _queue(plain, tmp_path, agent), "python3", Link("x", lambda *_: None))
    notes: list[str] = []
    async with running(notes, node):
        first = await until(lambda: node.clock)
        (pong,) = _pongs(tmp_path)
        pong.kill()
        await until(lambda: node.clock is not first)
        assert len(_pongs(tmp_path)) <= 1
    await until(lambda: not _pongs(tmp_path))
    assert notes == []


async def test_queues_of_one_machine_share_it_and_another_takes_over(
    plain: Host, tmp_path: Path, agent: Package, often: None
) -> None:
    q = await _queue(plain, tmp_path, agent)
    nodes = [Node(0, plain, q, "python3", Link("x", lambda *_: None)) for _ in range(3)]
    async with running([], *nodes) as tasks:
        await until(lambda: all(node.clock for node in nodes))
        assert len(_pongs(tmp_path)) == 1
        tasks[0].cancel()  # the first of the queues is done
        seen = nodes[2].clock
        await until(lambda: nodes[2].clock is not seen)
        assert nodes[1].clock is nodes[2].clock
    await until(lambda: not _pongs(tmp_path))


async def test_an_agent_that_knows_no_pings_is_said_once_and_ends_nothing(
    plain: Host, tmp_path: Path, often: None
) -> None:
    old = Package(b"import sys\nsys.exit(2)\n", "0" * 64)
    node = Node(0, plain, await _queue(plain, tmp_path, old), "python3", Link("x", lambda *_: None))
    notes: list[str] = []
    async with running(notes, node):
        await until(lambda: notes)
    assert len(notes) == 1
    assert "its clock" in notes[0]
    assert node.clock is None
