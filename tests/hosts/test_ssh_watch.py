"""Sensors watched over a real sshd, by both transports: a cut link, a server that is gone for a while, the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from cockpit.core.records import Access
from cockpit.engine.watch import Machine, watch
from cockpit.hosts import Host, connect
from cockpit.telemetry.live import Wanted
from tests.hosts.sshd import Sshd

pytestmark = pytest.mark.hosts

LIMIT_S = 30.0


class Seen:
    """A face that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.states: list[tuple[str, str | None]] = []
        self.tries = 0

    def connect(self, access: Access) -> Host:
        """A way to the server, counted."""
        self.tries += 1
        return connect(access)

    def line(self, machine: Machine, line: Mapping[str, Any]) -> None:
        self.lines.append(line)

    def changed(self, machine: Machine) -> None:
        self.states.append((machine.state, machine.why))

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["type"] == kind]


@contextlib.asynccontextmanager
async def watched(server: Sshd, folder: Path, transport: str) -> AsyncIterator[Seen]:
    access = server.access(transport=transport)
    machine = Machine("box", "box", access, "python3", str(folder), Wanted("cpu", None, 20.0, 5.0))
    seen = Seen()
    task = asyncio.ensure_future(watch([machine], seen.connect, seen))
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.timeout(LIMIT_S):
                await task


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not what():
            await asyncio.sleep(0.02)


def _agents(folder: Path) -> list[psutil.Process]:
    """The agents on the server that stream from this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "stream" in words and any(word.startswith(str(folder)) for word in words) and "python" in words[0]:
            found.append(process)
    return found


@pytest.mark.parametrize("transport", ["asyncssh", "openssh"])
async def test_a_cut_link_is_said_and_mended_and_its_agent_does_not_stay(
    server: Sshd, tmp_path: Path, transport: str
) -> None:
    async with watched(server, tmp_path, transport) as seen:
        await until(lambda: len(seen.of("tick")) > 3 and seen.of("clock"))
        (first,) = _agents(tmp_path)
        assert server.cut() > 0
        await until(lambda: [state for state, _ in seen.states] == ["live", "away", "live"])
        assert seen.states[1][1], "a sentence says why"
        await until(lambda: len(seen.of("hello")) == 2 and len(seen.of("clock")) >= 2)
        known = len(seen.of("tick"))
        await until(lambda: len(seen.of("tick")) > known + 3)
        await until(lambda: not first.is_running())
        assert len({hello["agent_id"] for hello in seen.of("hello")}) == 2
    await until(lambda: not _agents(tmp_path))
    for clock in seen.of("clock"):
        assert abs(clock["offset_s"]) <= clock["error_s"], "one machine has one clock"


async def test_a_server_that_is_gone_for_a_while_is_said_once(server: Sshd, tmp_path: Path) -> None:
    async with watched(server, tmp_path, "asyncssh") as seen:
        await until(lambda: seen.of("tick"))
        server.stop()
        try:
            await until(lambda: seen.states[-1][0] == "away")
            before = seen.tries
            await until(lambda: seen.tries >= before + 3)
        finally:
            server.start()
        await until(lambda: seen.states[-1][0] == "live")
        assert [state for state, _ in seen.states] == ["live", "away", "live"]


async def test_a_key_that_the_server_does_not_take_is_refused_at_once(server: Sshd, tmp_path: Path) -> None:
    access = server.access(identity=str(tmp_path / "none"))
    machine = Machine("box", "box", access, "python3", str(tmp_path), Wanted("cpu"))
    seen = Seen()
    async with asyncio.timeout(LIMIT_S):
        await watch([machine], seen.connect, seen)
    assert [state for state, _ in seen.states] == ["refused"]
