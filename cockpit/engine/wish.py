"""A wish to stop, put on the servers of a group without following it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cockpit.core.errors import ServerError
from cockpit.core.records import Access
from cockpit.store.records import access_of

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store

_TIMEOUT_S = 60.0


async def put_stop(store: Store, group: GroupRecord, run: str | None, connect: Callable[[Access], Host]) -> bool:
    """Ask the agents to stop `run`, or all of the group; False where nothing of it runs any more.

    Raises ServerError where a server does not take the wish.
    """
    from cockpit.telemetry import deploy

    put = False
    for queue in group.queues:
        if run is not None and run not in queue["runs"]:
            continue
        host = connect(access_of(queue))
        try:
            if await asyncio.wait_for(host.read(f"{queue['path']}/queue.json", 0, 1), _TIMEOUT_S):
                await asyncio.wait_for(deploy.stop(host, queue["path"], run), _TIMEOUT_S)
                put = True
        except TimeoutError:
            raise ServerError(
                f"server {queue['address']} did not take the wish to stop within {_TIMEOUT_S:.0f} s."
            ) from None
        finally:
            await asyncio.wait_for(host.close(), _TIMEOUT_S)
    return put
