"""One run's bytes on their one way: mirror, parse, journal, state, observer.

What is on disk is the truth. After a crash the mirror goes on at its size; the output is parsed again from its
start, so that the parser knows what it knew, and the events that the journal already holds are skipped: each
iteration is there exactly once. Where several nodes train together, all this holds for each of them by itself, so
the events of one node do not depend on how its bytes arrive among the others'.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cockpit.core.events import Artifact, Event, Iteration, StateChange
from cockpit.core.state import RunState, reduce
from cockpit.engine.observer import Observer
from cockpit.parse.states import parse_states
from cockpit.parse.stream import StreamParser

if TYPE_CHECKING:
    from cockpit.store.rundir import RunDir

Patient = Callable[[Callable[[], Any]], Awaitable[Any]]
_BLOCK = 1 << 20


@dataclass(slots=True)
class _Node:
    """One node's streams."""

    parser: StreamParser = field(default_factory=StreamParser)
    known: int = 0  # events that the parser gave again and the journal already has
    tick_rest: bytes = b""


class RunFollower:
    """Follows one run. `patient` calls a writer again until the disk has room for what it writes.

    `nodes` is how many nodes it runs on (None: as run.json says), `log_node` the one whose output tells iterations;
    everything else is taken from all. An observer is handed log and ticks of the log node alone.
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
        self._parser = StreamParser()
        self._journal = run_dir.journal()
        self._known = 0  # events that the parser gave again and the journal already has
        self._tick_rest = b""
        self._states_rest = b""
        self.ending: StateChange | None = None

    async def recover(self) -> None:
        """Play what is on disk: journal, mirrored output, telemetry; journal what a crash kept from it."""
        for event in self._journal.read():
            self._tell(event)
        self._known = self._journal.line_events
        offset = 0
        while block := await asyncio.to_thread(self.dir.read_stdout, offset, _BLOCK):
            self._observer.log(self.state.run, offset, block)
            await self._journal_events(self._unknown(self._parser.feed(block, offset)))
            offset += len(block)
        offset = 0
        while block := await asyncio.to_thread(self.dir.read_telemetry, offset, _BLOCK):
            self._ticks(block)
            offset += len(block)

    def _unknown(self, events: Sequence[Event]) -> list[Event]:
        """The events that the journal does not hold yet."""
        skipped = min(self._known, len(events))
        self._known -= skipped
        return list(events[skipped:])

    async def output(self, offset: int, data: bytes) -> None:
        """Raw output from `offset` on; what is mirrored already is dropped."""
        start = max(offset, self.dir.stdout_size)
        end = offset + len(data)
        while (have := self.dir.stdout_size) < end:
            await self._patient(partial(self.dir.append_stdout, data[have - offset :], have))
        fresh = data[start - offset :] if start < end else b""
        if fresh:
            self._observer.log(self.state.run, start, fresh)
            await self._journal_events(self._unknown(self._parser.feed(fresh, start)))

    async def telemetry(self, offset: int, data: bytes) -> None:
        """Lines of telemetry from `offset` on; what is mirrored already is dropped."""
        start = max(offset, self.dir.telemetry_size)
        end = offset + len(data)
        while (have := self.dir.telemetry_size) < end:
            await self._patient(partial(self.dir.append_telemetry, data[have - offset :], have))
        if start < end:
            self._ticks(data[start - offset :])

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
        """All output is home: give what the parser held back, then the end that the agent told."""
        await self._journal_events(self._unknown(self._parser.finish()))
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

    def _ticks(self, data: bytes) -> None:
        whole, self._tick_rest = _whole_lines(self._tick_rest + data)
        for line in whole.splitlines():
            try:
                tick = json.loads(line)
            except ValueError:
                continue  # a torn line of an agent that was killed; its gap is declared by the next one
            if isinstance(tick, dict):
                self._observer.tick(self.state.run, tick)


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """`data` up to its last newline, and the rest."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]
