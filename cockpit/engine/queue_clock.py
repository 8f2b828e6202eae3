"""The clock of one machine of a queue, measured while the queue is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.engine.queue_node import Node, step

_PAUSES_S = (1.0, 10.0, 60.0)  # before the program is started again; the last of them for ever
_MOST_IN_VAIN = 5


async def keep_clock(node: Node, note: Callable[[str, str], None]) -> None:
    """Keep `node.clock` up to date until cancelled. That a clock cannot be measured ends nothing: it is said once."""
    from cockpit.telemetry import clock, deploy

    vain = 0  # starts of the program that told nothing

    def take(line: Mapping[str, Any]) -> None:
        nonlocal vain
        node.clock, vain = line, 0

    while True:
        why = "the agent did not answer"
        try:
            argv = await step(deploy.command(node.host, node.path, "pong"))
            if argv is not None:
                vain += 1
                await clock.keep(node.host, argv, take)
        except TimeoutError:
            pass
        except ServerError as error:  # where the link is lost, whoever reads over it says so
            why = error.message
        if vain > _MOST_IN_VAIN:
            note("info", f"{node.host.name}: how its clock stands to this machine's is not known: {why}")
            return
        await asyncio.sleep(_PAUSES_S[min(vain, len(_PAUSES_S) - 1)])
