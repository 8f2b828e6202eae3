"""The clocks of the machines that are followed, each measured by one program however many queues it has."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.core.records import Access
from cockpit.engine.queue_node import Node, step

_PAUSES_S = (1.0, 10.0, 60.0)  # before the program is started again; the last of them for ever
_MOST_IN_VAIN = 5


class Clocks:
    """Of one session."""

    def __init__(self) -> None:
        self._turns: defaultdict[Access, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._nodes: defaultdict[Access, list[Node]] = defaultdict(list)

    async def keep(self, node: Node, note: Callable[[str, str], None]) -> None:
        """Keep `node.clock` up to date until cancelled.

        That a clock cannot be measured ends nothing: it is said once.
        """
        access = node.host.access
        nodes = self._nodes[access]
        nodes.append(node)
        try:
            async with self._turns[access]:  # whoever has it measures for all
                await self._measure(node, nodes, note)
        finally:
            nodes.remove(node)

    async def _measure(self, node: Node, nodes: list[Node], note: Callable[[str, str], None]) -> None:
        from cockpit.telemetry import clock, deploy

        vain = 0  # starts of the program that told nothing

        def take(line: Mapping[str, Any]) -> None:
            nonlocal vain
            vain = 0
            for each in nodes:
                each.clock = line

        while vain <= _MOST_IN_VAIN:
            why = "the agent did not answer"
            vain += 1
            try:
                argv = await step(deploy.command(node.host, node.path, "pong"))
                if argv is not None:
                    await clock.keep(node.host, argv, take)
            except TimeoutError:
                pass
            except ServerError as error:  # where the link is lost, whoever reads over it says so
                why = error.message
            await asyncio.sleep(_PAUSES_S[min(vain, len(_PAUSES_S) - 1)])
        note("info", f"{node.host.name}: how its clock stands to this machine's is not known: {why}")
