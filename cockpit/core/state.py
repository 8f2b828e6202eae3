"""Run state: what the events so far say about a run. `reduce(state, event)` is the only way it changes."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cockpit.core.events import Artifact, Diagnostic, Event, Iteration, Stage, State, StateChange

_NAN = math.nan
_MOST_OF_A_CODE = 1000  # diagnostics that are kept in memory; all of them stand in the journal
_MOST = 20_000  # diagnostics in all, and artifacts


@dataclass(slots=True)
class Series:
    """Columns of a run's iterations, one entry an iteration; NaN where a value is unknown.

    step (count), loss, step_s (seconds), tokens (of that step), t (server's wall clock, seconds).
    """

    step: array[float] = field(default_factory=lambda: array("d"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    step_s: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    t: array[float] = field(default_factory=lambda: array("d"))

    def append(self, e: Iteration) -> None:
        """Add one iteration."""
        self.step.append(e.step)
        self.loss.append(_NAN if e.loss is None else e.loss)
        self.step_s.append(_NAN if e.step_s is None else e.step_s)
        self.tokens.append(_NAN if e.tokens is None else e.tokens)
        self.t.append(_NAN if e.t is None else e.t)

    def __len__(self) -> int:
        return len(self.step)


@dataclass(slots=True)
class RunState:
    """A run as its events tell it.

    `diagnostics` holds the first thousand of each code: a run may tell one at every step.
    `started_t` and `ended_t` are the server's wall clock in seconds; runs of the same `queue` take turns in its
    `slots`.
    """

    run: str
    group: str = ""
    server: str = ""
    vendor: str = ""
    queue: str = ""
    slots: int = 1
    repeat: int = 0
    sweep: dict[str, str] = field(default_factory=dict)
    state: State = State.PLANNED
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    stage: str | None = None
    last: Iteration | None = None
    total: int | None = None
    started_t: float | None = None
    ended_t: float | None = None
    series: Series = field(default_factory=Series)
    artifacts: list[Artifact] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)  # diagnostics by code, also those that are not kept
    provenance: dict[str, Any] = field(default_factory=dict)
    events: int = 0

    @property
    def step(self) -> int | None:
        """The last iteration's number, or None before the first."""
        return self.last.step if self.last else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of the last iteration, or None where the log does not say."""
        if self.last is None or not self.last.tokens or not self.last.step_s:
            return None
        return self.last.tokens / self.last.step_s


def reduce(state: RunState, event: Event) -> RunState:
    """Apply one event to a run's state, in place, and return it.

    Events come in journal order. A state after an ended one is ignored, so that a late word of an agent cannot
    bring a finished run back; LOST alone is not final, since the server that was lost may know better.
    """
    state.events += 1
    if isinstance(event, Iteration):
        state.series.append(event)
        state.last = event
        state.total = event.total if event.total is not None else state.total
    elif isinstance(event, StateChange):
        _state_change(state, event)
    elif isinstance(event, Stage):
        state.stage = event.stage if event.status == "start" else state.stage
    elif isinstance(event, Artifact):
        if len(state.artifacts) < _MOST:
            state.artifacts.append(event)
    else:
        if len(state.diagnostics) < _MOST:
            state.told[event.code] += 1
            if state.told[event.code] <= _MOST_OF_A_CODE:
                state.diagnostics.append(event)
        if event.code == "provenance":
            state.provenance.update(event.data)
    return state


def _state_change(state: RunState, event: StateChange) -> None:
    if state.state.final:
        return
    state.state = event.state
    state.reason = event.reason
    state.stage = event.stage or state.stage
    if event.state is State.RUNNING and state.started_t is None:
        state.started_t = event.t
    ended = event.state.ended
    state.exit_code, state.signal = (event.exit_code, event.signal) if ended else (None, None)
    state.ended_t = event.t if ended else None
