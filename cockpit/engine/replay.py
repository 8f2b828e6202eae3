"""A recorded run or group, played as if it were live: from the run directory, through the same observer.

Everything is played at the server's time of it, set right by what pings told of the server's clock, runs of a group
merged; a log line comes before the event that was made from it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, Exit
from cockpit.core.events import Event
from cockpit.core.state import RunState, reduce
from cockpit.engine.apart import Apart
from cockpit.engine.finish import compare_words
from cockpit.engine.observer import GroupInfo, Observer, Outcome
from cockpit.metrics.clock import Clock, points_of

if TYPE_CHECKING:
    from cockpit.store.rundir import RunDir
    from cockpit.store.store import Store

_MOST_NS = 1 << 63
_LONGEST_PAUSE_S = 2.0  # of recorded time: nobody watches a cool-down
Step = tuple[float, int, Callable[[Observer], None]]


def demo_store() -> Store:
    """The recorded duel that ships with the product, opened for reading."""
    from cockpit.store.store import Store

    return Store.open_readonly(Path(__file__).resolve().parents[1] / "demo" / "duel.zip")


class ReplaySession:
    """Plays `runs` of a store at `speed` times real time; 0 pauses, infinity does not wait at all."""

    def __init__(self, store: Store, runs: list[str], *, speed: float, screen: bool = False) -> None:
        """`screen` keeps statistics out of this process."""
        self._store = store
        self._runs = runs
        self._speed = speed
        self._screen = screen
        self._leave = asyncio.Event()
        self._paced = asyncio.Event()

    @property
    def speed(self) -> float:
        """Times real time; 0 while it is paused."""
        return self._speed

    async def stop(self, run: str | None = None) -> None:
        """A replay has nothing to stop but itself."""
        self._leave.set()

    def detach(self) -> None:
        """End the replay."""
        self._leave.set()

    def pace(self, speed: float) -> None:
        """Play at another speed from now on."""
        self._speed = max(0.0, speed)
        self._paced.set()

    async def run(self, observer: Observer) -> Outcome:
        """Play to the end, or until detach."""
        dirs = [self._store.run_dir(r) for r in self._runs]
        states = [_state(d) for d in dirs]
        observer.begin(self._info(dirs[0], states))
        clock: float | None = None
        steps = (_steps(d, s, i) for i, (d, s) in enumerate(zip(dirs, states, strict=True)))
        for number, (t, _, act) in enumerate(heapq.merge(*steps)):
            if clock is not None and not await self._wait(min(t - clock, _LONGEST_PAUSE_S)):
                break
            clock = t
            act(observer)
            if number % 256 == 0:
                await asyncio.sleep(0)  # a replay without pauses must not starve the screen
        outcome = await self._outcome(states)
        observer.end(outcome)
        return outcome

    def _info(self, first: RunDir, states: list[RunState]) -> GroupInfo:
        record = self._store.group(states[0].group)
        return GroupInfo(record.id, str(first.meta()["profile"]), record.theme, tuple(states), live=False)

    async def _wait(self, recorded_s: float) -> bool:
        """Wait for that much recorded time; False where the replay was left meanwhile."""
        left = recorded_s
        while left > 1e-9 and not self._leave.is_set():
            if self._speed == float("inf"):
                return True
            self._paced.clear()
            timeout = left / self._speed if self._speed > 0 else None
            began, speed = asyncio.get_running_loop().time(), self._speed
            waits = [asyncio.ensure_future(e.wait()) for e in (self._leave, self._paced)]
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            left -= (asyncio.get_running_loop().time() - began) * speed
        return not self._leave.is_set()

    async def _outcome(self, states: list[RunState]) -> Outcome:
        if self._leave.is_set():
            return Outcome(states[0].group, "DETACHED", int(Exit.OK))
        comparison: Mapping[str, Any] | None = None
        apart = Apart(process=self._screen)
        try:
            comparison = await apart(compare_words, self._store.root, self._store.readonly, self._runs_or_group())
        except CockpitError:
            comparison = None  # an old recording that cannot be compared is still a recording
        finally:
            apart.close()
        failed = any(s.state.failed for s in states)
        return Outcome(states[0].group, "FAILED" if failed else "SUCCEEDED", int(Exit.OK), comparison)

    def _runs_or_group(self) -> list[str]:
        group = self._store.run_dir(self._runs[0]).meta()["group"]
        return [group] if list(self._store.group(group).runs) == self._runs else self._runs


def _state(run_dir: RunDir) -> RunState:
    meta = run_dir.meta()
    return RunState(
        run=meta["id"],
        group=meta["group"],
        server=meta["server"],
        vendor=meta["vendor"],
        queue=(meta.get("handle") or {}).get("queue", ""),
        repeat=meta["repeat"],
        sweep=dict(meta["sweep"]),
        total=meta.get("total"),
    )


def _steps(run_dir: RunDir, state: RunState, order: int) -> Iterator[Step]:
    """A run's events, output and telemetry, in the order of their time."""
    yield from heapq.merge(_event_steps(run_dir, state, order * 2), _tick_steps(run_dir, state, order * 2 + 1))


def _event_steps(run_dir: RunDir, state: RunState, order: int) -> Iterator[Step]:
    shown, t = 0, 0.0
    node = int((run_dir.meta().get("plan") or {}).get("log_node") or 0)
    times = _times(run_dir, node)
    for event in run_dir.journal_events():
        t = max(t, times(event.t) if event.t else event.t_recv or t)
        data, start = b"", shown
        if event.offset is not None and event.node == node and event.offset >= shown:
            data = run_dir.read_stdout_to_line_end(shown, event.offset, node)
            shown += len(data)
        yield t, order, _event_act(state, event, start, data)
    rest = run_dir.read_stdout(shown, 1 << 22, node)
    if rest:
        yield t, order, lambda o: o.log(state.run, shown, rest)


def _event_act(state: RunState, event: Event, start: int, data: bytes) -> Callable[[Observer], None]:
    def act(observer: Observer) -> None:
        if data:
            observer.log(state.run, start, data)
        reduce(state, event)
        observer.event(state.run, event)

    return act


def _tick_steps(run_dir: RunDir, state: RunState, order: int) -> Iterator[Step]:
    of_nodes = [_node_steps(run_dir, state, order, node) for node in range(run_dir.nodes)]
    yield from heapq.merge(*of_nodes, key=lambda step: step[0])


def _node_steps(run_dir: RunDir, state: RunState, order: int, node: int) -> Iterator[Step]:
    times, t = _times(run_dir, node), 0.0
    for line in run_dir.ticks(node):
        wall = line.get("t_wall_ns")
        if isinstance(wall, int) and 0 < wall < _MOST_NS:
            t = max(t, times(wall / 1e9))
        if t > 0:  # a gap has no time of its own
            tick = {**line, "node": node} if node else line
            yield t, order, lambda o, tick=tick: o.tick(state.run, tick)  # type: ignore[misc]


def _times(run_dir: RunDir, node: int) -> Callable[[float], float]:
    """From a node's wall clock (s) to the cockpit's, as far as that was measured."""
    clock = Clock(points_of(run_dir.clock_lines(node)))

    def time_of(t: float) -> float:
        found = clock.to_cockpit(t)
        return t if found is None else found[0]

    return time_of
