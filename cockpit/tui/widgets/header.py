"""The first line: what is running, how far it is, and how long it will take; a second one for the verdict."""

from __future__ import annotations

from collections import Counter

from textual.strip import Strip

from cockpit.core.events import State
from cockpit.tui import words
from cockpit.tui.feed import Feed
from cockpit.tui.verdict import Headline
from cockpit.tui.widgets.panel import Panel, Part, strip

_STATES = {"SUCCEEDED": "run.done", "FAILED": "run.failed", "CANCELLED": "warn", "DETACHED": "muted"}


class Header(Panel):
    """Group, profile, states, elapsed time and ETA; drops what is least when it is narrow."""

    def __init__(self, feed: Feed, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._feed = feed
        self.verdict: Headline | None = None
        self.mode = ""  # "stopping…", "paused", "8x"

    def rows(self, width: int, height: int) -> list[Strip]:
        """One line, or two."""
        look = self.look
        ground = look("foreground", on="surface")
        left: list[Part] = [(" ekvi ", look("background", bold=True, on="primary")), (" ", ground)]
        right = self._right()
        room = width - sum(len(t) for t, _ in left) - sum(len(t) for t, _ in right)
        for part in self._middle():
            if len(part[0]) > room:
                break
            left.append(part)
            room -= len(part[0])
        lines = [strip([*left, (" " * max(0, room), ground), *right], width, ground)]
        if self.verdict:
            lines.append(strip(self._verdict(self.verdict, width), width, ground))
        return lines

    def _verdict(self, verdict: Headline, width: int) -> list[Part]:
        """The sentence; the figures only whole, for half a number is another number."""
        text = f" {verdict.sentence}"
        if len(text) > width:
            text = text[: max(0, width - 1)] + "…"
        parts: list[Part] = [(text, self.look(verdict.colour, bold=True, on="surface"))]
        if verdict.figures and len(text) + 2 + len(verdict.figures) <= width:
            parts.append((f"  {verdict.figures}", self.look("foreground", on="surface")))
        return parts

    def _middle(self) -> list[Part]:
        look, info = self.look, self._feed.info
        if info is None:
            return [("preparing…", look("muted", on="surface"))]
        parts: list[Part] = [(f"{info.profile} ", look("foreground", bold=True, on="surface"))]
        counts = Counter(_kind(r.state) for r in self._feed.runs.values())
        for kind, colour, sign in (
            ("done", "run.done", "✓"),
            ("running", "run.running", "▶"),
            ("failed", "run.failed", "✗"),
            ("waiting", "muted", "·"),
        ):
            if counts[kind]:
                parts.append((f" {sign} {counts[kind]} {kind}", look(colour, on="surface")))
        parts.append((f"   {info.group}", look("muted", on="surface")))
        return parts

    def _right(self) -> list[Part]:
        look, feed = self.look, self._feed
        muted, plain = look("muted", on="surface"), look("foreground", bold=True, on="surface")
        parts: list[Part] = []
        if self.mode:
            parts.append((f" {self.mode} ", look("accent", bold=True, on="surface")))
        if feed.info and not feed.info.live:
            parts.append((" replay ", look("accent", on="surface")))
        if feed.outcome is not None:
            colour = _STATES.get(feed.outcome.state, "foreground")
            return [*parts, (f" {feed.outcome.state} ", look("background", bold=True, on=colour))]
        if feed.trouble is not None:
            return [*parts, (" BROKEN OFF ", look("background", bold=True, on="error"))]
        share = feed.progress()
        if share is not None:
            parts += [(f" {share:.0%}", plain)]
        parts += [("  elapsed ", muted), (words.clock(feed.elapsed_s()), plain)]
        left = self._eta()
        if left is not None and left < 1:  # the last step is done: what comes after it has no known length
            return [*parts, ("  finishing ", muted)]
        parts += [("  ETA ", muted), (f"{words.clock(left)} ", plain)]
        return parts

    def _eta(self) -> float | None:
        from cockpit.engine.eta import eta_s

        return eta_s(self._feed.runs.values()) if self._feed.runs else None


def _kind(state: State) -> str:
    if state is State.SUCCEEDED:
        return "done"
    if state.failed:
        return "failed"
    return "running" if state in (State.STARTING, State.RUNNING, State.STOPPING) else "waiting"
