"""A wish to stop, put on the servers of a group without following it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ServerError
from cockpit.core.records import Access
from cockpit.core.within import within
from cockpit.engine.queue_node import nodes_of

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord

_TIMEOUT_S = 60.0


async def put_stop(
    group: GroupRecord, run: str | None, connect: Callable[[Access], Host]
) -> tuple[bool, list[ServerError]]:
    """Ask the agents to stop `run`, or all of the group, on all servers at once.

    Says whether anything of it runs still, and the errors of servers that did not take the wish.
    """
    queues = [q for q in group.queues if "path" in q and (run is None or run in q["runs"])]
    wishes = [_put(node, run, connect) for queue in queues for node in nodes_of(queue)]
    answers = await asyncio.gather(*wishes, return_exceptions=True)
    errors = [a for a in answers if isinstance(a, ServerError)]
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, ServerError):
            raise answer
    return any(a is True for a in answers), errors


async def _put(node: Mapping[str, Any], run: str | None, connect: Callable[[Access], Host]) -> bool:
    from cockpit.telemetry import deploy

    host = connect(Access.from_json(node["access"]))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            there = bool(await host.read(f"{node['path']}/queue.json", 0, 1))
            if there:
                await deploy.stop(host, node["path"], run)
            return there
    except TimeoutError:
        raise ServerError(f"{host.name} did not take the wish to stop within {_TIMEOUT_S:.0f} s.") from None
    finally:
        await within(_TIMEOUT_S, host.close())
