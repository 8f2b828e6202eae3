"""A queue's way home: the files of its runs fetched, and its folder taken off the machines when all of it is here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cockpit.core.errors import ServerError
from cockpit.core.records import Limits
from cockpit.engine.fetch import Left, Source, Wanted
from cockpit.engine.finish import finish_run
from cockpit.engine.queue_clock import Clocks
from cockpit.engine.queue_node import Node, clean_queue

if TYPE_CHECKING:
    from cockpit.engine.apart import Apart
    from cockpit.engine.follower import RunFollower
    from cockpit.engine.observer import Observer
    from cockpit.engine.patience import Patience


@dataclass(frozen=True, slots=True)
class Room:
    """What the queues of a session share."""

    observer: Observer
    patience: Patience
    apart: Apart
    wanted: Wanted
    limits: Limits
    group: str
    once: bool = False
    clocks: Clocks = field(default_factory=Clocks)


class WayHome:
    """Of one queue. `keep` says that something of it is not home: it then stays on its machines."""

    def __init__(self, followers: Mapping[str, RunFollower], nodes: Sequence[Node], room: Room) -> None:
        self._followers = followers
        self._nodes = nodes
        self._room = room
        self._left = Left()
        self.keep = False

    async def fetch(self, run: str, there: bool = True) -> None:
        """Bring a run that has ended home; without `there` from what is here already."""
        follower = self._followers[run]
        sources = [
            Source(n.host, f"{n.path}/runs/{run}/out", f"node{n.index}/" if n.index else "")
            for n in self._nodes
            if there and not n.out and not (n.index and n.link.away)
        ]
        left = await self._room.patience.until_done(
            lambda: finish_run(follower, sources, self._room.wanted, self._room.apart)
        )
        follower.dir.close()  # a group may have many runs, and a process may not have many files open
        self._left.add(left)
        for sentence in left.sentences:
            self.keep = True
            self._room.observer.note("warning", f"{run}: not fetched: {sentence}")

    async def tidy(self) -> None:
        """All of it is home: take the queue's folder off the servers. A leftover is no reason to fail."""
        observer = self._room.observer
        for sentence in self._left.told(self._nodes[0].host.name, self._room.group):
            self.keep = True
            observer.note("warning", sentence)
        for node in self._nodes:
            if self.keep or node.out:
                observer.note("warning", f"{node.path} stays on {node.host.name}: not all of it is home.")
                continue
            try:
                await clean_queue(node.host, node.path, led=node.index > 0)
            except (ServerError, TimeoutError) as error:
                why = str(error) or "its agent still lives"
                observer.note("warning", f"{node.path} stays on {node.host.name}: {why}")
