"""What a log that somebody else kept says of its run: its iterations, when they were, and how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from cockpit.core.errors import StoreError, UsageError
from cockpit.core.events import Diagnostic, Event, Iteration, Stage, State
from cockpit.parse.stream import FORMATS, Declared, StreamParser

LOG_FORMATS = tuple(str(f.NAME) for f in FORMATS if f.NAME not in {"arguments", "errors"})  # that give iterations
_BLOCK = 1 << 20
_HEAD_BY = 1 << 16
_STAMP_BY = 512  # of a line's beginning, where loggers write the time
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d)(?![\w:]))?")


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in seconds since the epoch; without `zoned` it is what a clock on the wall showed, read as UTC."""

    t: float
    zoned: bool


@dataclass(slots=True)
class LogFacts:
    """A log in figures. `begin` and `end` bound its iterations; None where no line tells the time.

    `error` is the last one after the last iteration, `done` whether the runner said that it was through.
    """

    by: int = 0
    iterations: int = 0
    last_step: int | None = None
    total: int | None = None
    done: bool = False
    error: str | None = None
    begin: Moment | None = None
    end: Moment | None = None

    def ending(self) -> tuple[State, str]:
        """How the run ended, as far as its log tells, and how that is known."""
        if self.error is not None:
            return State.FAILED, f"the log ends with: {self.error}"
        if self.done:
            return State.SUCCEEDED, "the log says that it was done"
        if self.total is None:
            return State.SUCCEEDED, "the log ends without an error; how many steps were to come is not in it"
        if self.last_step is not None and self.last_step >= self.total:
            return State.SUCCEEDED, f"the log reaches step {self.last_step} of {self.total}"
        return State.LOST, f"the log ends at step {self.last_step} of {self.total} without saying why"


class Log:
    """A log file, read from its start as often as needed; a context manager. `form` as StreamParser's."""

    def __init__(self, path: Path, form: str = "auto") -> None:
        """Open it. Raises UsageError where it is no text, StoreError where it cannot be read."""
        self.path = path
        self._form = form
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            head = os.pread(self._fd, _HEAD_BY, 0)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
        if b"\0" in head:
            os.close(self._fd)
            raise UsageError(f"{path} is no log: it holds bytes that no text has.", hint=formats_hint())

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """The bytes with their offsets. Raises StoreError."""
        offset = 0
        try:
            while block := os.pread(self._fd, _BLOCK, offset):
                yield offset, block
                offset += len(block)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}.") from error

    def events(self) -> Iterator[Event]:
        """All events of the log."""
        parser = StreamParser(Declared(format=self._form))
        for offset, block in self.blocks():
            yield from parser.feed(block, offset)
        yield from parser.finish()

    def moment(self, event: Event) -> Moment | None:
        """When an event was: as it says, else by the stamp at the head of its line."""
        if event.t is not None:
            return Moment(event.t, True)
        found = None if event.offset is None else _STAMP.search(self._line_head(event.offset))
        return None if found is None else _moment(found)

    def _line_head(self, offset: int) -> bytes:
        return os.pread(self._fd, _STAMP_BY, offset).partition(b"\n")[0]

    def look(self) -> LogFacts:
        """Read it once. Raises UsageError where it holds no iteration of a known format."""
        facts, times, errors = LogFacts(), _Times(), list[str]()
        for event in self.events():
            if isinstance(event, Iteration):
                facts.iterations += 1
                facts.last_step = event.step
                facts.total = event.total if event.total is not None else facts.total
                errors.clear()
                times.iteration(self.moment(event), event.step_s)
            elif isinstance(event, Stage):
                self._stage(event, facts, errors)
                times.other(self.moment(event))
            elif isinstance(event, Diagnostic) and event.level == "error":
                errors.append(event.message)
        facts.by = os.fstat(self._fd).st_size
        if not facts.iterations:
            said = f" It says: {errors[-1]}" if errors else ""
            raise UsageError(f"{self.path} holds no iteration of a known format.{said}", hint=formats_hint())
        facts.error = errors[-1] if errors else None
        facts.begin, facts.end = times.span()
        return facts

    @staticmethod
    def _stage(event: Stage, facts: LogFacts, errors: list[str]) -> None:
        if event.stage == "train":
            facts.done = event.status == "done"
            if event.status == "failed":
                errors.append(event.message or "the stage train failed")


class _Times:
    """The first and last moment of a log, of the better kind that it has."""

    def __init__(self) -> None:
        self._spans: dict[bool, tuple[float, float]] = {}

    def iteration(self, moment: Moment | None, step_s: float | None) -> None:
        """An iteration's end: it began a step's time before."""
        if moment is not None:
            self._add(moment.zoned, moment.t - (step_s or 0.0), moment.t)

    def other(self, moment: Moment | None) -> None:
        """Something else that the runner told."""
        if moment is not None:
            self._add(moment.zoned, moment.t, moment.t)

    def _add(self, zoned: bool, begin: float, end: float) -> None:
        low, high = self._spans.get(zoned, (begin, end))
        self._spans[zoned] = min(low, begin), max(high, end)

    def span(self) -> tuple[Moment | None, Moment | None]:
        """Where it began and ended."""
        for zoned in (True, False):
            if zoned in self._spans:
                begin, end = self._spans[zoned]
                return Moment(begin, zoned), Moment(end, zoned)
        return None, None


@dataclass(slots=True)
class Stamper:
    """Gives a log's events their times. `ahead_s`: what its wall clock is ahead of UTC, None where not known."""

    log: Log
    zoned: bool
    ahead_s: float | None
    t: float | None

    def stamp(self, event: Event) -> Event:
        """The event with its time, or with that of the one before, where the log's are known."""
        if event.t is not None and self.zoned:
            self.t = event.t
            return event
        moment = self.log.moment(event)
        if moment is not None and moment.zoned == self.zoned and (self.zoned or self.ahead_s is not None):
            self.t = moment.t - (0.0 if self.zoned else self.ahead_s or 0.0)
            return replace(event, t=self.t)
        if isinstance(event, Iteration):
            return replace(event, t=event.t if self.zoned else None)
        return event if event.t is not None or self.t is None else replace(event, t=self.t)


def zones(begin: float, end: float, span: tuple[float, float], slack_s: float) -> Sequence[float]:
    """How far ahead of UTC (s) a clock may have been that showed `begin` to `end` within `span`."""
    quarters = (quarter * 900.0 for quarter in range(-12 * 4, 14 * 4 + 1))
    return [ahead for ahead in quarters if span[0] - slack_s <= begin - ahead and end - ahead <= span[1] + slack_s]


def here(t: float) -> float:
    """How far this machine's zone is ahead of UTC (s) when its clock on the wall shows `t`."""
    shown = datetime.fromtimestamp(t, UTC).replace(tzinfo=None)
    try:
        ahead = shown.astimezone().utcoffset()
    except (OverflowError, OSError):
        return 0.0
    return ahead.total_seconds() if ahead is not None else 0.0


def zone_name(ahead_s: float) -> str:
    """UTC, or UTC+02:00."""
    return timezone(timedelta(seconds=ahead_s)).tzname(None)


def formats_hint() -> str:
    """Which formats are known."""
    return f"Formats: {', '.join(LOG_FORMATS)}; --format F takes one of them alone."


def _moment(found: re.Match[bytes]) -> Moment | None:
    text = f"{found[1].decode()}T{found[2].decode()}"
    try:
        t = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    t += float(f"0.{found[3].decode()}") if found[3] else 0.0
    zone = found[4].decode() if found[4] else None
    if zone is None or zone in ("Z", "UTC"):
        return Moment(t, zone is not None)
    sign = -1 if zone[0] == "-" else 1
    return Moment(t - sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60), True)
