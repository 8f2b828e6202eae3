"""The segments of telemetry on one machine of a queue: which one of each run is followed, and what comes after it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cockpit.engine.queue_node import BLOCK, Node, step

if TYPE_CHECKING:
    from cockpit.engine.follower import RunFollower

_NAME = re.compile(r"telemetry(?:\.(0|[1-9]\d{0,15}))?\.jsonl")
_MOST_AGAIN = 3  # times that a segment is read anew before what it says is believed
PLAIN = "telemetry.jsonl"  # of an agent before segments; it stands for all of a run's telemetry in sentences too


class NodeTicks:
    """Keeps one cursor a run among `node.cursors`.

    A segment that is not the last may be thinned while it is read: its bytes then do not continue, and it is read
    from its start again; what is here already is known by its numbers. `full(run)` is awaited when a run's telemetry
    has reached `most_by` bytes.
    """

    def __init__(
        self,
        node: Node,
        followers: Mapping[str, RunFollower],
        most_by: int,
        full: Callable[[Node, str, str], Awaitable[None]],
    ) -> None:
        self._node = node
        self._followers = followers
        self._most_by = most_by
        self._full = full
        self._at: dict[str, tuple[str, int]] = {}  # run: its segment's path, and with which number that begins
        self._again: dict[str, int] = {}  # run: how often this segment was begun anew

    async def find(self, runs: Iterable[str]) -> None:
        """Begin with the segment of each run that holds the first number which is not here."""
        there = await self._listed()
        for run in runs:
            first, name = _holding(there.get(run, {}), self._followers[run].next_tick(self._node.index))
            self._set(run, first, name)

    async def seek(self, runs: Iterable[str]) -> None:
        """Go on where a segment that is followed is not there: it was removed, or is an older agent's."""
        there = await self._listed()
        for run in runs:
            found, at = there.get(run, {}), self._at.get(run)
            if found and at is not None and at[1] not in found:
                first, name = _holding(found, self._followers[run].next_tick(self._node.index))
                self._set(run, first, name)

    async def take(self, run: str, path: str, offset: int, data: bytes) -> None:
        """Bytes of a segment."""
        async with self._node.lock:  # a run's end reads a node's files too
            at = self._at.get(run)
            if at is not None and at[0] == path:
                await self._take(run, at, offset, data)

    async def _take(self, run: str, at: tuple[str, int], offset: int, data: bytes) -> None:
        node, follower = self._node, self._followers[run]
        if offset == 0:
            follower.segment(at[1], node.index)
        sure = self._again.get(run, 0) >= _MOST_AGAIN
        sifted, full = await follower.telemetry(data, node.index, sure=sure, most_by=self._most_by)
        if node.clock is not None and sifted.lines:
            await follower.clock(node.clock, node.index)
        if full:
            self.drop(run)
            await self._full(node, run, PLAIN)
        elif sifted.doubt:
            self.anew(at[0])
        elif sifted.next_seq is not None:
            self._set(run, sifted.next_seq, f"telemetry.{sifted.next_seq}.jsonl")

    def anew(self, path: str) -> bool:
        """Read a segment from its start again; False where that was done often enough."""
        run = path.rsplit("/", 2)[1]
        if self._at.get(run, ("", 0))[0] != path or self._again.get(run, 0) > _MOST_AGAIN:
            return False
        self._again[run] = self._again.get(run, 0) + 1
        self._node.cursors[path] = 0
        return True

    async def drain(self, run: str) -> None:
        """Read a run's segments to where the last one ends now."""
        while (at := self._at.get(run)) is not None and (offset := self._node.cursors.get(at[0])) is not None:
            data = await step(self._node.host.read(at[0], offset, BLOCK))
            if self._node.cursors.get(at[0]) != offset:
                continue  # it was followed meanwhile
            if data:
                self._node.cursors[at[0]] = offset + len(data)
                await self.take(run, at[0], offset, data)
            elif not await self._later(run, *at):
                return

    def drop(self, run: str) -> None:
        """Follow a run's telemetry no more."""
        at = self._at.pop(run, None)
        if at is not None:
            self._node.cursors.pop(at[0], None)

    async def _later(self, run: str, path: str, first_seq: int) -> bool:
        """Whether there is more behind a segment that came to an end without naming the next."""
        found = (await self._listed()).get(run, {})
        later = [first for first in found if first > first_seq]
        if not later:
            return False
        thinned = first_seq in found and self._node.cursors.get(path, 0) > 0
        if not (thinned and self.anew(path)):
            self._set(run, min(later), found[min(later)])
        return True

    def _set(self, run: str, first_seq: int, name: str) -> None:
        self.drop(run)
        path = f"{self._node.path}/runs/{run}/{name}"
        if f"{self._node.path}/runs/{run}/{PLAIN}" not in self._node.gone:
            self._at[run] = path, first_seq
            self._again[run] = 0
            self._node.cursors[path] = 0

    async def _listed(self) -> dict[str, dict[int, str]]:
        """The segments that are there: first number to file name, a run each."""
        argv = ["find", f"{self._node.path}/runs", "-maxdepth", "2", "-name", "telemetry*.jsonl"]
        done = await step(self._node.host.run(argv))
        found: dict[str, dict[int, str]] = {}
        for path in done.stdout.decode(errors="replace").splitlines():
            parts = path.rsplit("/", 2)
            match = _NAME.fullmatch(parts[-1])
            if match and len(parts) == 3:
                found.setdefault(parts[1], {})[int(match[1] or 0)] = parts[2]
        return found


def _holding(segments: Mapping[int, str], seq: int) -> tuple[int, str]:
    """The segment that number `seq` is in, else the first after it; the very first where there is none yet."""
    firsts = sorted(segments)
    if not firsts:
        return 0, "telemetry.0.jsonl"
    first = firsts[max(0, bisect_right(firsts, seq) - 1)]
    return first, segments[first]
