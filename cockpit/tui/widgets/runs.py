"""The runs of the group in the order of their turns: how far each is, and how it does."""

from __future__ import annotations

from textual.strip import Strip

from cockpit.core.events import State
from cockpit.core.state import RunState
from cockpit.tui import words
from cockpit.tui.feed import Feed, run_progress
from cockpit.tui.widgets.panel import Part, Scroller, strip


class RunsPanel(Scroller):
    """One line a run; scrolls by itself to the one that runs, until a hand scrolls it."""

    def __init__(self, feed: Feed, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._feed = feed
        self._by_hand = False

    def bounds(self) -> tuple[int, int]:
        """All runs of the group."""
        return 0, len(self._feed.runs)

    def go(self, top: int) -> None:
        """Scroll by hand."""
        self._by_hand = True
        super().go(top)

    def sync(self) -> None:
        """Take note of changes."""
        runs = list(self._feed.runs.values())
        done = sum(r.state.final for r in runs)
        self.border_title = f"runs · {done} of {len(runs)} done" if runs else "runs"
        if not self._by_hand:
            active = [i for i, r in enumerate(runs) if r.state.ended or r.started_t is not None]
            middle = (active[-1] if active else 0) - max(1, self.size.height) // 2
            self.top = min(self.last_top(), max(0, middle))
        self.repaint()

    def on_resize(self) -> None:
        """Keep the active run in sight."""
        self.sync()

    def rows(self, width: int, height: int) -> list[Strip]:
        """The lines from `top` on."""
        runs = list(self._feed.runs.values())
        if not runs:
            muted = self.look("muted")
            return [strip([("no run planned yet", muted)], width, muted)]
        return [self._line(run, width) for run in runs[self.top : self.top + height]]

    def _line(self, run: RunState, width: int) -> Strip:
        look = self.look
        colour = words.run_colour(run.state)
        side = self._feed.servers[run.server].side
        names = max((len(r.server) + len(words.run_name(r)) + 1 for r in self._feed.runs.values()), default=0)
        name = f"{run.server} {words.run_name(run)}"
        parts: list[Part] = [
            (f"{words.glyph(run.state)} ", look(colour, bold=True)),
            (f"{name[: min(names, 24)]:<{min(names, 24)}} ", look.side(side, bold=not run.state.ended)),
        ]
        rest = width - sum(len(t) for t, _ in parts)
        if run.state.failed:
            parts.append((_ending(run), look(colour)))
        elif run.started_t is None and run.last is None:
            parts.append((_waiting(run), look("muted")))
        else:
            parts += self._numbers(run, rest)
        return strip(parts, width, look("foreground"))

    def _numbers(self, run: RunState, width: int) -> list[Part]:
        look = self.look
        speed = self._feed.speed(run)
        total = "?" if run.total is None else str(run.total)
        step = words.DASH if run.step is None else str(run.step)
        numbers: list[Part] = [
            (f"{step:>{len(total)}}/{total} ", look("foreground")),
            (f"{words.loss(run.last.loss if run.last else None):>6} ", look("foreground")),
            (f"{words.short(speed[-1] if speed else None):>6}", look("foreground")),
        ]
        if width >= 34:
            numbers.append((" tok/s", look("muted")))
        if run.last is None and run.stage:
            numbers = [(f"{run.stage}…", look("muted"))]
        room = min(40, width - sum(len(t) for t, _ in numbers) - 1)
        bar = self._bar(run, room) if room >= 4 else []
        return [*bar, *numbers]

    def _bar(self, run: RunState, width: int) -> list[Part]:
        look = self.look
        share = run_progress(run)
        if share is None:
            return [("╌" * width + " ", look("panel"))]
        full = int(share * width * 2 + 0.5)
        style = look(words.run_colour(run.state))
        done = "━" * (full // 2) + ("╸" if full % 2 else "")
        return [(done, style), ("━" * (width - len(done)) + " ", look("panel", fade=0.4))]


def _waiting(run: RunState) -> str:
    if run.state is State.PLANNED:
        return "planned"
    return run.state.value.lower() + (f" · {run.reason}" if run.reason else "")


def _ending(run: RunState) -> str:
    words_ = [run.state.value]
    if run.signal is not None:
        words_.append(f"signal {run.signal}")
    elif run.exit_code:
        words_.append(f"exit {run.exit_code}")
    if run.step is not None:
        words_.append(f"at step {run.step}")
    if run.reason:
        words_.append(f"· {run.reason}")
    return " ".join(words_)
