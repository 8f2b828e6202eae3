"""Fetching from a group again: files that stayed on its servers, by other patterns or with a larger bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ServerError
from cockpit.core.events import State
from cockpit.core.records import Access
from cockpit.core.text import size
from cockpit.core.within import within
from cockpit.engine.fetch import Left, Source, Wanted, fetch
from cockpit.engine.queue_node import clean_queue, nodes_of

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store

_TIMEOUT_S = 60.0


async def fetch_more(
    store: Store,
    group: GroupRecord,
    connect: Callable[[Access], Host],
    wanted: Wanted,
    say: Callable[[str], None],
) -> bool:
    """Bring home what `wanted` names of runs that have ended, and tidy up where nothing is left on a server.

    Whether a server made trouble; its sentence goes to `say`, and the others are asked all the same.
    """
    nodes = [(q, i, n) for q in group.queues if "path" in q for i, n in enumerate(nodes_of(q))]
    work = [_node(store, queue, index, node, connect, wanted, say) for queue, index, node in nodes]
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, ServerError):
            say(f"warning: {answer}")
        elif isinstance(answer, BaseException):
            raise answer
    return any(isinstance(a, ServerError) for a in answers)


async def _node(
    store: Store,
    queue: Mapping[str, Any],
    index: int,
    node: Mapping[str, Any],
    connect: Callable[[Access], Host],
    wanted: Wanted,
    say: Callable[[str], None],
) -> None:
    host = connect(Access.from_json(node["access"]))
    left, ended = Left(), True
    try:
        if not await within(_TIMEOUT_S, host.read(f"{node['path']}/queue.json", 0, 1)):
            return
        for run in queue["runs"]:
            run_dir = store.run_dir(run)
            if not State(run_dir.meta()["state"]).final:
                ended = False
                continue
            source = Source(host, f"{node['path']}/runs/{run}/out", f"node{index}/" if index else "")
            found = await fetch(run_dir, source, wanted, again=False)
            left.add(found)
            left.sentences += [f"{run}: {s}" for s in found.sentences]
        for sentence in left.sentences:
            say(f"warning: not fetched: {sentence}")
        files, by = left.total
        if files:
            say(f"{files} files of {size(by)} are still on {host.name}.")
        elif ended and not left.sentences:
            await clean_queue(host, node["path"])
    except TimeoutError:
        raise ServerError(f"{host.name} did not answer in time.") from None
    finally:
        await within(_TIMEOUT_S, host.close())
