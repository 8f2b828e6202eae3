"""The sensors of one machine, live and without a run: the agent's `stream`, talked with over one connection."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.hosts import Host, layout
from cockpit.hosts.base import Talk
from cockpit.telemetry import deploy
from cockpit.telemetry.pack import Package

_LINE_BY = 4 << 20  # a line without end must not fill the memory
_SILENT_S = 30.0  # an agent whose driver hangs goes on ticking; one that says nothing for so long is not there
PING_S = 10.0
_FIRST_S = 1.0  # the first ping waits for the agent to start, and says little of its clock


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of an agent: vendor nvidia, amd, cpu or auto; GPUs by index, all where None; samples a second.

    `idle_end_s`: the agent ends by itself when it has heard nothing for so long (s).
    """

    vendor: str = "auto"
    gpus: tuple[int, ...] | None = None
    hz: float = 10.0
    idle_end_s: float = 60.0

    def argv(self) -> list[str]:
        """The words after `stream`."""
        words = ["--vendor", self.vendor, "--hz", f"{self.hz:g}", "--idle-end", f"{self.idle_end_s:g}"]
        return [*words, "--gpus", ",".join(map(str, self.gpus))] if self.gpus is not None else words


class Lines:
    """Whole lines of a byte stream, as JSON objects; what is none is passed over and counted in `bad`."""

    def __init__(self) -> None:
        self._rest = b""
        self.bad = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The objects of the lines that are whole now."""
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LINE_BY:
            self.bad, rest = self.bad + 1, b""
        self._rest = rest
        for line in lines:
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                said = None
            if isinstance(said, dict):
                yield said
            else:
                self.bad += 1


async def put_agent(host: Host, workdir: str | None, agent: Package) -> str:
    """See that the agent stands in the machine's work folder, and return its path there. Raises ServerError."""
    folder = await host.workdir(workdir)
    path = layout.agent_file(folder, agent.sha256)
    await deploy.put_package(host, agent, path)
    return path


async def listen(
    host: Host,
    argv: list[str],
    take: Callable[[dict[str, Any]], None],
    *,
    ping: Callable[[], Mapping[str, Any]],
    every_s: float = PING_S,
) -> None:
    """Start the agent's `stream` as `argv` and hand on its lines, pongs among them, until cancelled.

    `ping` makes the next ping line; one is sent at once and then every `every_s`, which also keeps the agent alive.
    Raises ServerError when the agent ends, ServerLost when the connection does.
    """
    async with host.talk(argv) as talk:
        pinging = asyncio.ensure_future(_ping(talk, ping, every_s))
        lines = Lines()
        try:
            while True:
                try:
                    async with asyncio.timeout(_SILENT_S):
                        data = await talk.read()
                except TimeoutError:
                    raise ServerError(f"The agent on {host.name} said nothing for {_SILENT_S:.0f} s.") from None
                if not data:
                    ended = await talk.ended()
                    words = ended.last_words.rstrip(".") or f"it ended with status {ended.rc}"
                    raise ServerError(f"The agent on {host.name} ended: {words}.")
                for line in lines.feed(data):
                    take(line)
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)  # a cut link fails it too, and was told already


async def _ping(talk: Talk, ping: Callable[[], Mapping[str, Any]], every_s: float) -> None:
    for pause_s in itertools.chain((_FIRST_S, _FIRST_S), itertools.repeat(every_s)):
        async with asyncio.timeout(_SILENT_S):
            await talk.send(json.dumps(ping()).encode() + b"\n")
        await asyncio.sleep(min(pause_s, every_s))
