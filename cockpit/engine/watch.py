"""The sensors of all servers at once, live and without a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cockpit.core.errors import CockpitError
from cockpit.core.gpu import MachineNow
from cockpit.core.records import Access, ServerSpec
from cockpit.engine.admit import Connect, accesses, close
from cockpit.engine.reconnect import AWAY as GONE
from cockpit.hosts.backoff import Backoff
from cockpit.hosts.base import LoginRefused

if TYPE_CHECKING:
    from cockpit.telemetry.live import Wanted

CONNECTING, LIVE, AWAY, REFUSED = "connecting", "live", "away", "refused"
_PUT_S = 60.0


@dataclass(slots=True)
class Machine:
    """One machine that is watched. `why` is a sentence where it is away or refused, `mend` what helps.

    `reached`: a line of it came once.
    """

    name: str  # the server's, with its node where it has several
    server: str
    access: Access
    python: str
    workdir: str | None
    wanted: Wanted
    state: str = CONNECTING
    why: str | None = None
    mend: str | None = None
    reached: bool = False
    now: MachineNow = field(default_factory=MachineNow)


class Face(Protocol):
    """Who looks on. Calls come on the event loop and must not block."""

    def line(self, machine: Machine, line: Mapping[str, Any]) -> None:
        """One line of ekvi.gpu/1, taken into `machine.now` already."""

    def changed(self, machine: Machine) -> None:
        """`machine.state` is another."""


def machines(servers: Sequence[ServerSpec], wanted: Mapping[str, Wanted]) -> list[Machine]:
    """Every machine of these servers, nodes each by itself; `wanted` by the server's name."""
    from cockpit.launch import interpreter

    found = []
    for server in servers:
        ways = accesses(server)
        for i, access in enumerate(ways):
            name = f"{server.name}/{server.nodes[i]}" if len(ways) > 1 else server.name
            python = interpreter(server)
            found.append(Machine(name, server.name, access, python, server.workdir, wanted[server.name]))
    return found


async def watch(watched: Sequence[Machine], connect: Connect, face: Face, *, seconds: float | None = None) -> None:
    """Watch until cancelled, for `seconds`, or until every machine was refused; what went away is tried again."""
    from cockpit.telemetry.pack import build_agent

    agent = await asyncio.to_thread(build_agent)
    tasks = [asyncio.ensure_future(_keep(machine, agent, connect, face)) for machine in watched]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


async def _keep(machine: Machine, agent: Any, connect: Connect, face: Face) -> None:
    """Listen to one machine, again whenever it went away; while a server boots, it may fail in any way.

    What is refused before its very first line stays so, and a login always.
    """
    pauses = Backoff()
    while True:
        try:
            await _once(machine, agent, connect, face)
        except GONE as error:
            why = error.message if isinstance(error, CockpitError) else f"{machine.name} did not answer in time."
        except CockpitError as error:
            if not machine.reached or isinstance(error, LoginRefused):
                _change(machine, face, REFUSED, error.message, error.hint)
                return
            why = error.message
        if machine.state == LIVE:
            pauses.reset()
        if machine.state != AWAY:
            _change(machine, face, AWAY, why)
        await asyncio.sleep(pauses.next())


async def _once(machine: Machine, agent: Any, connect: Connect, face: Face) -> None:
    host = connect(machine.access)
    try:
        await _listen(machine, host, agent, face)
    finally:
        await close([host])


async def _listen(machine: Machine, host: Any, agent: Any, face: Face) -> None:
    from cockpit.telemetry.clock import Pings
    from cockpit.telemetry.live import listen, put_agent

    async with asyncio.timeout(_PUT_S):
        path = await put_agent(host, machine.workdir, agent)
    pings = Pings()

    def take(line: dict[str, Any]) -> None:
        told = pings.pong(line) if line.get("type") == "pong" else line
        if told is None or machine.now.take(told, time.monotonic()) is None:
            return
        if machine.state != LIVE:
            machine.reached = True
            _change(machine, face, LIVE)
        face.line(machine, told)

    argv = [machine.python, path, "stream", *machine.wanted.argv()]
    await listen(host, argv, take, ping=pings.ping)


def _change(machine: Machine, face: Face, state: str, why: str | None = None, mend: str | None = None) -> None:
    machine.state, machine.why, machine.mend = state, why, mend
    face.changed(machine)
