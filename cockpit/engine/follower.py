"""One run's bytes on their one way: mirror, parse, journal, state, observer.

What is on disk is the truth. After a crash the mirror goes on at its size; the output is parsed again from its
start, so that the parser knows what it knew, and the events that the journal already holds are skipped: each
iteration is there exactly once. Lines of telemetry are known by their numbers. Where several nodes train together,
all this holds for each of them by itself, so the events of one node do not depend on how its bytes arrive among the
others'.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cockpit.core.events import Artifact, Event, Iteration, State, StateChange
from cockpit.core.state import RunState, reduce
from cockpit.engine.observer import Observer
from cockpit.parse.states import parse_states
from cockpit.parse.stream import Declared, StreamParser
from cockpit.parse.ticklines import Line, Sifted, TickLines, line_bytes

if TYPE_CHECKING:
    from cockpit.store.rundir import RunDir

Patient = Callable[[Callable[[], Any]], Awaitable[Any]]
_BLOCK = 1 << 20


@dataclass(slots=True)
class _Node:
    """One node's streams."""

    parser: StreamParser
    known: int = 0  # events that the parser gave again and the journal already has
    ticks: TickLines = field(default_factory=TickLines)
    waiting: list[tuple[bytes, Line]] = field(default_factory=list)  # lines of telemetry that are not on disk yet
    clock: Mapping[str, Any] | None = None  # the last that was written of the node's clock


class RunFollower:
    """Follows one run. `patient` calls a writer again until the disk has room for what it writes.

    `nodes` is how many nodes it runs on (None: as run.json says), `log_node` the one whose output tells iterations;
    everything else is taken from all. An observer is handed the log of the log node alone, to which the iterations'
    offsets belong, and the ticks of all nodes, those of another than the first with their `node`.
    """

    def __init__(
        self,
        run_dir: RunDir,
        state: RunState,
        observer: Observer,
        patient: Patient,
        *,
        nodes: int | None = None,
        log_node: int | None = None,
    ) -> None:
        self.dir = run_dir
        self.state = state
        self._observer = observer
        self._patient = patient
        self._journal = run_dir.journal()
        meta = run_dir.meta() if nodes is None or log_node is None else {}
        self.log_node = int((meta.get("plan") or {}).get("log_node") or 0) if log_node is None else log_node
        declared = declared_of(meta.get("config") or {})
        self._nodes = [_Node(StreamParser(declared)) for _ in range(run_dir.nodes if nodes is None else nodes)]
        self._states_rest = b""
        self.ending: StateChange | None = None

    @property
    def nodes(self) -> int:
        """How many nodes the run has."""
        return len(self._nodes)

    async def recover(self) -> None:
        """Play what is on disk: journal, mirrored output, telemetry; journal what a crash kept from it."""
        for event in self._journal.read():
            self._tell(event)
        for i, node in enumerate(self._nodes):
            node.known = self._journal.line_events(i)
            offset = 0
            while block := await asyncio.to_thread(self.dir.read_stdout, offset, _BLOCK, i):
                await self._parsed(i, offset, block)
                offset += len(block)
            offset = 0
            while block := await asyncio.to_thread(self.dir.read_telemetry, offset, _BLOCK, i):
                for line in node.ticks.known(block):
                    self._tick(i, line)
                offset += len(block)

    async def output(self, offset: int, data: bytes, node: int = 0) -> None:
        """Raw output of a node from `offset` on; what is mirrored already is dropped."""
        start = max(offset, self.dir.stdout_size_of(node))
        end = offset + len(data)
        while (have := self.dir.stdout_size_of(node)) < end:
            await self._patient(partial(self.dir.append_stdout, data[have - offset :], have, node))
        if start < end:
            await self._parsed(node, start, data[start - offset :])

    def next_tick(self, node: int = 0) -> int:
        """The first number of a node's telemetry that is not here."""
        return self._nodes[node].ticks.last + 1

    def segment(self, first_seq: int, node: int = 0) -> None:
        """What `telemetry` gets next is the start of the segment that begins with `first_seq`."""
        self._nodes[node].ticks.begin(first_seq)

    async def telemetry(
        self, data: bytes, node: int = 0, *, sure: bool = False, most_by: int = sys.maxsize
    ) -> tuple[Sifted, bool]:
        """The next bytes of a segment of a node's telemetry; what is here already is dropped.

        `sure` as in TickLines.feed. The answer's second part says that a line would have made the telemetry larger
        than `most_by` bytes: it and all after it were not taken.
        """
        state = self._nodes[node]
        sifted = state.ticks.feed(data, sure=sure)
        size, full = self.dir.telemetry_size_of(node), False
        for raw, line in sifted.lines:
            size += len(raw)
            full = full or size > most_by
            if not full:
                state.waiting.append((raw, line))
        await self._keep_ticks(node)
        return sifted, full

    async def clock(self, line: Mapping[str, Any], node: int = 0) -> None:
        """Keep what was measured of a node's clock beside its telemetry, once."""
        state = self._nodes[node]
        if state.clock is not line:
            state.clock = line
            state.waiting.append((line_bytes(line), dict(line)))
            await self._keep_ticks(node)

    async def _keep_ticks(self, node: int) -> None:
        """Write what waits. It waits on where this is cancelled, since the sieve gives no line twice."""
        waiting = self._nodes[node].waiting
        if not waiting:
            return
        taken = list(waiting)
        await self._patient(partial(self.dir.append_telemetry, b"".join(raw for raw, _ in taken), node))
        del waiting[: len(taken)]
        for _, line in taken:
            self._tick(node, line)

    async def _parsed(self, node: int, offset: int, data: bytes) -> None:
        """Output that is mirrored: shown, parsed, journaled."""
        if node == self.log_node:
            self._observer.log(self.state.run, offset, data)
        await self._journal_events(self._unknown(node, self._nodes[node].parser.feed(data, offset)))

    def _unknown(self, node: int, events: Sequence[Event]) -> list[Event]:
        """A node's events as the journal has them, without those that it holds already."""
        if self.nodes > 1:
            events = [_of_node(e, node) for e in events if node == self.log_node or not isinstance(e, Iteration)]
        skipped = min(self._nodes[node].known, len(events))
        self._nodes[node].known -= skipped
        return list(events[skipped:])

    async def states(self, data: bytes) -> None:
        """The next bytes of the agent's state file; an end is kept back until all output is home."""
        whole, self._states_rest = _whole_lines(self._states_rest + data)
        for change in parse_states(whole):
            if change.state.ended:
                self.ending = change
            elif change.agent_seq is None or change.agent_seq > self._journal.agent_seq:
                await self._journal_events([change])

    def states_anew(self) -> None:
        """The state file was cut: it is read from its start again, and what the journal knows is passed over."""
        self._states_rest = b""

    async def finish(self) -> None:
        """All output is home: give what the parsers held back, then the end that the agent told."""
        for i, node in enumerate(self._nodes):
            await self._journal_events(self._unknown(i, node.parser.finish()))
            gap = node.ticks.missing_until(self.ending.t) if i == 0 and self.ending and self.ending.t else None
            if gap is not None:  # whoever sampled did not live to the end, and nobody came after it to say so
                node.waiting.append((line_bytes(gap), gap))
            await self._keep_ticks(i)
        if self.ending is not None:
            await self._journal_events([self.ending])

    async def own(self, event: Event) -> None:
        """An event that the cockpit itself makes: SUBMITTED, LOST, a bound that was reached."""
        await self._journal_events([event])

    async def found(self, data: bytes, queue: str) -> None:
        """A run that was LOST takes what stands in its whole state file; what is new there comes by `states`."""
        changes = parse_states(_whole_lines(data)[0])
        if not changes:
            await self.own(StateChange(state=State.SUBMITTED, reason=f"in queue {queue}"))
            return
        last = changes[-1]
        if not last.state.ended and (last.agent_seq is None or last.agent_seq <= self._journal.agent_seq):
            await self.own(replace(last, agent_seq=None))

    def close(self) -> None:
        """Close the journal and the mirrors."""
        self._journal.close()
        self.dir.close()

    async def _journal_events(self, events: Sequence[Event]) -> None:
        if not events:
            return
        for event in await self._patient(partial(self._journal.append, events)):
            self._tell(event)
            if isinstance(event, StateChange):  # a listing reads run.json
                await self._patient(partial(self.dir.update_meta, state=event.state.value, reason=event.reason))

    def _tell(self, event: Event) -> None:
        reduce(self.state, event)
        self._observer.event(self.state.run, event)

    def _tick(self, node: int, line: Line) -> None:
        self._observer.tick(self.state.run, {**line, "node": node} if node else line)


def declared_of(config: Mapping[str, Any]) -> Declared:
    """What a run's configuration declares of its log; nothing but for the runner `command`."""
    runner = config.get("runner") or {}
    said = runner.get("declares") or {}
    return Declared(said.get("sequence_length"), said.get("global_batch"), runner.get("log_format") or "auto")


def _of_node(event: Event, node: int) -> Event:
    """An event of a node's line. What other nodes made lies below a folder of theirs, as it comes home."""
    if node == 0:
        return event
    if isinstance(event, Artifact):
        return replace(event, node=node, path=f"node{node}/{event.path}")
    return replace(event, node=node)


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """`data` up to its last newline, and the rest."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]
