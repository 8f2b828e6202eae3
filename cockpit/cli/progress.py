"""Headless progress on stderr: a bar a run on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cockpit.core.events import Diagnostic, Event, Iteration, State, StateChange
from cockpit.core.state import RunState
from cockpit.core.text import printable
from cockpit.engine.eta import eta_s
from cockpit.engine.observer import GroupInfo, Observer, Outcome

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_ANSWERS = ("calibrate",)  # diagnostics that are what a stage was run for
_USUAL = ("waits for its turn", "its turn has come", "waits for a cool-down")  # what every run of a queue says
_PLAIN_SHARE = 10  # without a terminal a run says something this many times on its way


def progress() -> Observer:
    """The progress that suits stderr."""
    return Bars() if sys.stderr.isatty() else Plain()


def duration(seconds: float | None) -> str:
    """`3:05` or `1:02:03`, or `-` where it is unknown."""
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def numbers(state: RunState) -> str:
    """Loss and speed of a run's last iteration; a missing one is left out, not 0."""
    if state.last is None:
        return "waits" if state.state is State.PENDING else printable(state.stage or "")
    parts = [f"loss {state.last.loss:.3f}" if state.last.loss is not None else ""]
    speed = state.tokens_per_s
    parts.append(f"{speed:,.0f} tok/s" if speed is not None else "")
    return "  ".join(p for p in parts if p)


def remaining(state: RunState, states: Iterable[RunState]) -> str:
    """The group's `ETA 1:05`; nothing where it is unknown or not a second, and at the end of a run."""
    left = eta_s(states)
    done = state.last is not None and state.total is not None and state.last.step >= state.total
    return f"ETA {duration(left)}" if left is not None and left >= 1 and not done else ""


def title(state: RunState) -> str:
    """What a run is called in a list of its group: server, sweep point, repeat."""
    point = "|".join(f"{k}={v}" for k, v in state.sweep.items())
    return printable(f"{state.server}{' ' + point if point else ''} #{state.repeat + 1}")


def ending(state: RunState) -> str:
    """How a run ended, in words: state, signal or exit code, reason."""
    words = [state.state.value]
    if state.signal is not None:
        words.append(f"signal {state.signal}")
    elif state.exit_code:
        words.append(f"exit {state.exit_code}")
    if state.reason:
        words.append(f"({state.reason})")
    return " ".join(words)


def last_lines(event: StateChange) -> list[str]:
    """The last lines that a run printed before it failed, for people: wire lines say nothing to them.

    None of a run that was stopped: its lines tell nothing of why.
    """
    if event.state is State.CANCELLED:
        return []
    tail = (event.data or {}).get("tail") or []
    return [f"  | {printable(line)}" for line in tail if "@ekvi " not in line]


class Quiet:
    """Sentences alone: for commands that look at a group without following it."""

    def begin(self, info: GroupInfo) -> None:
        """Nothing is shown of what is known already."""

    def event(self, run: str, event: Event) -> None:
        """Events are for those who follow."""

    def log(self, run: str, offset: int, data: bytes) -> None:
        """Output is for those who follow."""

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        """Telemetry is for those who follow."""

    def note(self, level: str, text: str) -> None:
        """Say a sentence."""
        sys.stderr.write(f"{text if level == 'info' else f'{level}: {text}'}\n")

    def end(self, outcome: Outcome) -> None:
        """The command says what it did."""


class Bars:
    """One bar a run, with step, loss, tokens/s, and the group's ETA."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._states: dict[str, RunState] = {}

    def begin(self, info: GroupInfo) -> None:
        """Draw a bar for each run."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._states = {r.run: r for r in info.runs}
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.fields[state]}", style="bold", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
            refresh_per_second=5,
        )
        self._progress.console.print(f"group {info.group}")
        for state in info.runs:
            self._tasks[state.run] = self._progress.add_task(
                title(state), total=state.total, completed=state.step or 0, state=_icon(state), numbers=""
            )
        self._eta = self._progress.add_task("group", total=len(info.runs), state=" ", numbers="")
        self._progress.start()

    def event(self, run: str, event: Event) -> None:
        """Move the run's bar; print what must not be overlooked."""
        progress, state = self._progress, self._states[run]
        assert progress is not None
        progress.update(
            self._tasks[run], total=state.total, completed=state.step or 0, state=_icon(state), numbers=numbers(state)
        )
        if isinstance(event, StateChange):
            ended = sum(s.state.final for s in self._states.values())
            progress.update(self._eta, completed=ended)
            if event.state is State.PENDING and event.reason and not event.reason.startswith(_USUAL):
                self._above(f"{title(state)}: {event.reason}", None)
            if event.state.failed:
                words = "\n".join([f"{title(state)}: {ending(state)}", *last_lines(event)])
                self._above(words, "yellow" if event.state is State.CANCELLED else "red")
        if isinstance(event, Diagnostic) and (event.level == "error" or event.code in _ANSWERS):
            self._above(f"{title(state)}: {event.message}", "red" if event.level == "error" else None)
        if isinstance(event, Iteration):
            progress.update(self._eta, numbers=remaining(state, self._states.values()))

    def log(self, run: str, offset: int, data: bytes) -> None:
        """Raw output is not shown here: it is in the run's stdout.log."""

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        """Telemetry is not shown here: see --watch."""

    def note(self, level: str, text: str) -> None:
        """Print a sentence above the bars."""
        style = {"error": "red", "warning": "yellow"}.get(level)
        if self._progress is not None:
            self._above(text, style)
        else:
            sys.stderr.write(printable(text) + "\n")

    def _above(self, text: str, style: str | None) -> None:
        """Print above the bars; the terminal breaks the lines, so that a command in them can be copied."""
        assert self._progress is not None
        self._progress.console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        """Leave the bars as they are and give the terminal back."""
        if self._progress is not None:
            self._progress.update(self._eta, numbers=outcome.state)
            self._progress.stop()


def _icon(state: RunState) -> str:
    if state.state.failed:
        return "✗"
    return "✓" if state.state.ended else "▸" if state.started_t is not None else "·"


class Plain:
    """Lines for a pipe or a log file: states, and a tenth of the way at a time."""

    def __init__(self) -> None:
        self._states: dict[str, RunState] = {}
        self._said: dict[str, int] = {}

    def begin(self, info: GroupInfo) -> None:
        """Say which group this is."""
        self._states = {r.run: r for r in info.runs}
        self._say(f"group {info.group}: {len(info.runs)} run{'s' if len(info.runs) != 1 else ''}")

    def event(self, run: str, event: Event) -> None:
        """Say a change of state, an error, and now and then an iteration."""
        state = self._states[run]
        if isinstance(event, StateChange):
            stage = f" {event.stage}" if event.stage and not event.state.ended else ""
            waits = f" ({event.reason})" if event.state is State.PENDING and event.reason else ""
            words = ending(state) if event.state.ended else event.state.value + stage + waits
            tail = last_lines(event) if event.state.failed else []
            self._say("\n".join([f"{title(state)}: {words}", *tail]))
        elif isinstance(event, Diagnostic) and (event.level in ("warning", "error") or event.code in _ANSWERS):
            level = "" if event.level == "info" else f"{event.level}: "
            self._say(f"{title(state)}: {level}{event.message}")
        elif isinstance(event, Iteration) and self._due(run, event):
            parts = [f"{event.step}/{event.total or '?'}", numbers(state), remaining(state, self._states.values())]
            self._say(f"{title(state)}: {'  '.join(part for part in parts if part)}")

    def _due(self, run: str, event: Iteration) -> bool:
        tenth = event.step * _PLAIN_SHARE // event.total if event.total else event.step // 100
        if self._said.get(run) == tenth:
            return False
        self._said[run] = tenth
        return True

    def log(self, run: str, offset: int, data: bytes) -> None:
        """Raw output is not shown here: it is in the run's stdout.log."""

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        """Telemetry is not shown here."""

    def note(self, level: str, text: str) -> None:
        """Say a sentence."""
        self._say(text if level == "info" else f"{level}: {text}")

    def end(self, outcome: Outcome) -> None:
        """Say how it ended."""
        self._say(f"group {outcome.group}: {outcome.state}")

    @staticmethod
    def _say(text: str) -> None:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
