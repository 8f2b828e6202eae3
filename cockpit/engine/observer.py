"""What the engine tells its faces, and what a face may ask of it.

The headless progress, the JSON output and the screen are observers of one session; a live group, an attached one
and a replay are sessions. Calls come on the event loop's thread, in journal order for a run, and must not block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cockpit.core.events import Event
from cockpit.core.state import RunState


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What a face needs to know of a group before its first event.

    `runs` are states in the order of their turns (PLANNED, or as far as the journal already says); the session goes
    on to reduce events into these very objects before it hands an event to an observer.
    """

    group: str
    profile: str
    theme: str
    runs: tuple[RunState, ...]
    live: bool  # False for a replay: stop and detach do nothing there


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended. `state` is SUCCEEDED, FAILED, CANCELLED or DETACHED; comparison is ekvi.compare/1."""

    group: str
    state: str
    exit_code: int
    comparison: Mapping[str, Any] | None = None


class Observer(Protocol):
    """A face of the product."""

    def begin(self, info: GroupInfo) -> None:
        """The session begins."""

    def event(self, run: str, event: Event) -> None:
        """One event, already reduced into its run's state."""

    def log(self, run: str, offset: int, data: bytes) -> None:
        """Raw bytes of a run's output, from `offset` of its stdout.log on; not cut at line ends."""

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        """One line of ekvi.gpu/1 (hello, tick or gap), as a JSON object."""

    def note(self, level: str, text: str) -> None:
        """A sentence for the user; level is info, warning or error."""

    def end(self, outcome: Outcome) -> None:
        """The session ended."""


class Session(Protocol):
    """A group that is followed: live, attached, or replayed."""

    async def run(self, observer: Observer) -> Outcome:
        """Follow the group to its end, or until detach; calls observer.begin first and observer.end last."""

    async def stop(self, run: str | None = None) -> None:
        """Stop one run, or all of the group; returns when the wish is on the server, not when it is done."""

    def detach(self) -> None:
        """Let `run` return soon; the group goes on without the cockpit."""

    def pace(self, speed: float) -> None:
        """Speed of a replay as a multiple of real time, 0 pauses; a live session takes no notice."""
