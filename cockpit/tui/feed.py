"""The one subscriber behind the screen: it takes everything in, and says which panels have something new.

Taking in is not painting: every call here ends after an append or two and a mark; the screen's timer asks for the
marks and paints what they name.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cockpit.core.events import Event, Iteration
from cockpit.core.gpu import DeviceNow, MachineNow, news, number
from cockpit.core.state import RunState
from cockpit.core.text import printable
from cockpit.engine.observer import GroupInfo, Outcome
from cockpit.tui.logs import LogStore

SPEED_STEPS = 10  # steps over which the chart says tokens a second
HISTORY = 60  # samples of a server's load that are kept for its trace
_TRACE_NS = 450_000_000  # between two of them by the server's clock: a trace of ten a second would show a second
BEGIN, RUNS, CHARTS, SERVERS, LOG, END = "begin", "runs", "charts", "servers", "log", "end"
_SOURCE_CHARS = 24


@dataclass(slots=True)
class ServerView:
    """What is shown of a server's telemetry. `now` is given the feed's clock."""

    name: str
    side: int
    vendor: str = ""
    now: MachineNow = field(default_factory=MachineNow)
    history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    traced_ns: int | None = None

    @property
    def devices(self) -> list[DeviceNow]:
        """The GPUs by index."""
        return list(self.now.each())

    @property
    def source(self) -> str | None:
        """Who reads the sensors, by the name that the agent gives it."""
        return printable(str((self.now.hello or {}).get("backend") or ""))[:_SOURCE_CHARS] or None

    def trace(self) -> None:
        """Keep the load of the last sample, where the one before it is old enough."""
        at = self.now.at_ns
        if at is not None and (self.traced_ns is None or not 0 <= at - self.traced_ns < _TRACE_NS):
            load = load_of(self.now)
            self.traced_ns = at
            self.history.append(math.nan if load is None else load)


class Feed:
    """What the screen knows of a session. An Observer: called on the event loop's thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held: float | None = None
        self._lost = 0.0  # seconds that the clock stood still
        self._dirty: set[str] = set()
        self._speeds: dict[str, array[float]] = {}
        self.info: GroupInfo | None = None
        self.runs: dict[str, RunState] = {}
        self.servers: dict[str, ServerView] = {}
        self.logs = LogStore()
        self.notes: deque[tuple[str, str]] = deque(maxlen=100)
        self.outcome: Outcome | None = None
        self.trouble: str | None = None  # why the session broke off, where it did

    # What the engine calls.

    def begin(self, info: GroupInfo) -> None:
        """The session begins."""
        self.info = info
        for run in info.runs:
            self.runs[run.run] = run
            self.logs.know(run.run, run.server)
            if run.server not in self.servers:
                self.servers[run.server] = ServerView(run.server, len(self.servers), run.vendor)
        self.mark(BEGIN, RUNS, CHARTS, SERVERS)

    def event(self, run: str, event: Event) -> None:
        """One event, already reduced into its run's state."""
        self._dirty.add(RUNS)
        if isinstance(event, Iteration):
            self._dirty.add(CHARTS)

    def log(self, run: str, offset: int, data: bytes) -> None:
        """Bytes of a run's output."""
        view = self.logs.view
        if self.logs.feed(run, offset, data) or view.end == view.first:  # an empty one says what it holds back
            self._dirty.add(LOG)

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        """One line of ekvi.gpu/1."""
        state = self.runs.get(run)
        server = self.servers.get(state.server) if state else None
        if server is None or tick.get("node"):  # of several nodes the first one is shown
            return
        before = server.source
        kind = server.now.take(tick, self.now())
        if kind is None:
            return
        if kind == "tick":
            server.trace()
        elif kind == "err" and (told := news(tick)):
            self.note(told[0], f"{server.name}{told[1]}")
        elif kind == "hello" and before and server.source and server.source != before:
            self.note("warning", f"{server.name}: sensors are read by {server.source} now, before by {before}")
        self._dirty.add(SERVERS)

    def note(self, level: str, text: str) -> None:
        """A sentence for the user."""
        self.notes.append((level, text))
        self.logs.say(level, text)
        self._dirty.add(LOG)

    def end(self, outcome: Outcome) -> None:
        """The session ended."""
        self.outcome = outcome
        self.mark(END, RUNS, CHARTS, SERVERS)

    def fail(self, text: str) -> None:
        """The session broke off before it could say how it ended."""
        self.trouble = text
        self.note("error", text)
        self.mark(END, RUNS)

    # What the screen asks.

    def mark(self, *panels: str) -> None:
        """Say that panels have something new."""
        self._dirty.update(panels)

    def take(self, panel: str) -> bool:
        """Whether a panel has something new; asking clears the mark."""
        if panel not in self._dirty:
            return False
        self._dirty.discard(panel)
        return True

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.outcome is not None or self.trouble is not None

    def now(self) -> float:
        """The clock by which samples age, in seconds; it stands still while a replay is paused."""
        return (self._now() if self._held is None else self._held) - self._lost

    def hold(self, still: bool) -> None:
        """Stop the clock, or let it go on from where it stood."""
        if still and self._held is None:
            self._held = self._now()
        elif not still and self._held is not None:
            self._lost += self._now() - self._held
            self._held = None

    def speed(self, run: RunState) -> array[float]:
        """Tokens a second over the last SPEED_STEPS steps, an entry an iteration (NaN where unknown); grows.

        All tokens over all time of those steps, as the summary has it. The first step stands for itself: what it does
        once would hang in the windows of the next ones.
        """
        column = self._speeds.setdefault(run.run, array("d"))
        tokens, step_s = run.series.tokens, run.series.step_s
        for i in range(len(column), len(run.series)):
            first = max(min(1, i), i - SPEED_STEPS + 1)
            pairs = zip(tokens[first : i + 1], step_s[first : i + 1], strict=True)
            known = [(n, s) for n, s in pairs if n >= 0 and s > 0]
            time_s = math.fsum(s for _, s in known)
            column.append(math.fsum(n for n, _ in known) / time_s if time_s > 0 else math.nan)
        return column

    def current(self, server: str) -> RunState | None:
        """The run of a server to look at: the one that runs, else the last that has shown an iteration."""
        runs = [r for r in self.runs.values() if r.server == server]
        alive = [r for r in runs if r.started_t is not None and not r.state.ended]
        shown = [r for r in runs if r.last is not None]
        chosen = alive or shown
        return chosen[-1] if chosen else None

    def progress(self) -> float | None:
        """The share of the group's work that is done, 0..1, each run counting alike; None without runs."""
        if not self.runs:
            return None
        return math.fsum(run_progress(r) or 0.0 for r in self.runs.values()) / len(self.runs)

    def elapsed_s(self) -> float | None:
        """Seconds by the servers' clocks from the first start to the last word; None before a start."""
        runs = self.runs.values()
        starts = [r.started_t for r in runs if r.started_t is not None]
        ends = [r.ended_t for r in runs if r.ended_t is not None]
        ends += [r.last.t for r in runs if r.last is not None and r.last.t is not None]
        return max(0.0, max(ends) - min(starts)) if starts and ends else None


def run_progress(run: RunState) -> float | None:
    """The share of a run that is done, 0..1; None where its length is not known."""
    if run.state.final:
        return 1.0
    if run.last is None:
        return 0.0
    return min(1.0, run.last.step / run.total) if run.total else None


def load_of(now: MachineNow) -> float | None:
    """A machine's load 0..1: the mean of its GPUs where it has some, else its CPU."""
    if now.devices:
        loads = [load for device in now.devices.values() if (load := device.number("util")) is not None]
        return math.fsum(_share(load) for load in loads) / len(loads) if loads else None
    known = now.host.get("cpu_util")
    load = None if known is None else number(known.value)
    return None if load is None else _share(load)


def _share(load: float) -> float:
    return min(1.0, max(0.0, load))
