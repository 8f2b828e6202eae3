"""One machine of a queue: where it is, whether its agent lives, and taking its folder away in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cockpit.core.errors import ServerError
from cockpit.core.within import within
from cockpit.engine.reconnect import AWAY, Link
from cockpit.parse.states import parse_states
from cockpit.store.records import access_of

if TYPE_CHECKING:
    from cockpit.engine.follower import RunFollower
    from cockpit.hosts.base import Host

STEP_TIMEOUT_S = 60.0
BLOCK = 8 << 20  # read at once where it is not followed: each read starts a Python on the server
STATES_BY = 16 * 1024 * 1024  # of one run's states: they are read whole, and a server must not fill the memory
CLEAN_S = 900.0  # a queue's folder may hold checkpoints, on a slow disk
_MOST_RESTARTS = 5  # of an agent that says nothing new in between
_TIDY_RETRY_S = 0.2
_T = TypeVar("_T")


@dataclass(slots=True)
class Node:
    """One machine of a queue. `gone` are files that are not followed any more."""

    index: int
    host: Host
    path: str
    python: str
    link: Link
    cursors: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    heard: float = 0.0  # when the agent last wrote anything (loop time, s)
    restarts: int = 0  # of the agent since it last told a state
    out: bool = False  # it will not be asked again
    clock: Mapping[str, Any] | None = None  # the last that was measured of it: a line of ekvi.gpu/1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def keep_agent(node: Node, key: str, runs: Sequence[str], note: Callable[[str, str], None]) -> None:
    """Start the agent of queue `key` anew where it was killed; it finds its running process again.

    Raises ServerError where it ends again and again, LaunchRefused where it cannot be started.
    """
    from cockpit.telemetry import deploy

    if await step(deploy.alive(node.host, node.path)):
        return
    if await _ended_there(node, runs):  # asked when none lives, so that none can end in between
        return
    await step(deploy.start(node.host, node.path, node.python))
    node.restarts += 1
    if node.restarts > _MOST_RESTARTS:
        raise ServerError(
            f"The agent of queue {key} on {node.host.name} ends again and again.",
            hint=f"{node.path}/agent.log says why; what it started goes on.",
        )
    note("warning", f"The agent of queue {key} did not live: started it again.")


async def _ended_there(node: Node, runs: Sequence[str]) -> bool:
    """Whether every run has ended on the server: then its agent has left because there is nothing left to do."""
    for run in runs:
        data = await whole(node.host, f"{node.path}/runs/{run}/states.jsonl")
        if not any(change.state.ended for change in parse_states(data)):
            return False
    return True


async def clean_queue(host: Host, path: str, *, led: bool = False) -> None:
    """Wait until the queue's agent has left, and take its folder off the server; goes on over a loss of the link.

    An agent that is `led` by another node's may not know yet that all is over: it is told. TimeoutError where the
    agent does not leave, or the server stays away.
    """
    from cockpit.telemetry import deploy

    now = asyncio.get_running_loop().time
    async with asyncio.timeout(STEP_TIMEOUT_S) as bound:

        async def once() -> None:
            if led and await deploy.alive(host, path):
                await deploy.stop(host, path)
            # another process lets go: there is no event to wait on
            while await deploy.alive(host, path):  # noqa: ASYNC110
                await asyncio.sleep(_TIDY_RETRY_S)
            bound.reschedule(now() + CLEAN_S)
            try:
                await deploy.clean(host, path, timeout=CLEAN_S)
            except AWAY:
                bound.reschedule(now() + STEP_TIMEOUT_S)
                raise

        await Link(host.name, lambda *_: None).keep(once)


def nodes_of(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The machines of a queue in a group's file: path, python, workdir and how each is reached."""
    nodes = [n for n in record.get("nodes") or () if "path" in n]
    return nodes or [{**record, "access": access_of(record).to_json()}]


async def step(work: Awaitable[_T]) -> _T:
    """What `work` gives; TimeoutError where a server does not answer."""
    return await within(STEP_TIMEOUT_S, work)


async def whole(host: Host, path: str) -> bytes:
    """A small file of a server, from its start to where it ends now. Raises ServerError on one without end."""
    data = b""
    while more := await step(host.read(path, len(data), BLOCK)):
        data += more
        if len(data) > STATES_BY:
            raise endless(host, path)
    return data


def endless(host: Host, path: str) -> ServerError:
    """The error of a file of states that is longer than any agent makes it."""
    return ServerError(f"{path} on {host.name} has more than {STATES_BY} bytes: it is not read further.")


def spool_size(follower: RunFollower, node: int) -> int:
    """Bytes of a node's output that are home."""
    return follower.dir.stdout_size_of(node) if node else follower.dir.stdout_size


async def take(put: Callable[..., Awaitable[None]], offset: int, data: bytes, node: int) -> None:
    """Hand a node's bytes to a follower."""
    await (put(offset, data, node=node) if node else put(offset, data))
