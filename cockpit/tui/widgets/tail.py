"""The log: the newest lines of all servers or of one, followed or scrolled."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.strip import Strip

from cockpit.core.state import RunState
from cockpit.tui import words
from cockpit.tui.feed import Feed
from cockpit.tui.logs import MAX_LINE, Line
from cockpit.tui.widgets.panel import Part, Scroller, strip

_BAD = re.compile(r"\b(?:error|traceback|fatal|exception|nan|out of memory|killed)\b", re.IGNORECASE)
_WARN = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
_ITERATION = re.compile(r"\biteration\s+\d+", re.IGNORECASE)
_BLANKS = re.compile(r" {2,}")
_LEVELS = {"error": "error", "warning": "warn"}

_WIRE_ALONE = "no output but wire lines: w shows them"


class Tail(Scroller):
    """A view over the feed's ring; what leaves the ring while one reads does not move what is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "shift(-20)", "Left", show=False),
        Binding("right", "shift(20)", "Right", show=False),
    ]

    def __init__(self, feed: Feed, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._feed = feed
        self.follow = True
        self._left = 0  # cells that are scrolled away at the left

    def bounds(self) -> tuple[int, int]:
        """The numbers of the lines that the view still holds."""
        view = self._feed.logs.view
        return view.first, view.end

    def sync(self) -> None:
        """Take note of new lines: go to the end while following, else stay."""
        self.top = self.last_top() if self.follow else min(self.last_top(), max(self.bounds()[0], self.top))
        self._say()
        self.repaint()

    def go(self, top: int) -> None:
        """Scroll; going back stops following, coming to the end takes it up again."""
        last = self.last_top()
        self.follow = top >= last
        super().go(top)
        self._say()

    def action_shift(self, cells: int) -> None:
        """Scroll sideways, for lines that are wider than the panel."""
        self._left = min(MAX_LINE, max(0, self._left + cells))
        self.repaint()

    def set_follow(self, follow: bool) -> None:
        """Follow the end, or stay where it is."""
        self.follow = follow
        self.sync()

    def set_view(self, server: str | None, wire: bool) -> None:
        """Show all servers or one, with or without the lines meant for the cockpit; go to the end."""
        self._feed.logs.show(server=server, wire=wire)
        self.top = self.last_top()
        self.follow = True
        self.sync()

    def on_resize(self) -> None:
        """Keep the end in sight."""
        self.sync()

    def rows(self, width: int, height: int) -> list[Strip]:
        """The lines from `top` on, each behind its server and run."""
        view = self._feed.logs.view
        if view.end == view.first:
            muted = self.look("muted")
            logs = self._feed.logs
            hidden = logs.seen and logs.server is None and not logs.wire
            return [strip([(_WIRE_ALONE if hidden else "no output yet", muted)], width, muted)]
        first = max(view.first, min(self.top, view.end))
        return [self._line(view[n], width) for n in range(first, min(view.end, first + height))]

    def _line(self, line: Line, width: int) -> Strip:
        look = self.look
        if not line.run:
            style = look(_LEVELS.get(line.level, "primary"), bold=True)
            return strip([("ekvi ", style), ("│ ", look("panel")), (line.text, style)], width, look("foreground"))
        run = self._feed.runs.get(line.run)
        parts = [*self._prefix(run), ("│ ", look("panel"))] if run else []
        text, style = self._text(line.text)
        return strip([*parts, (text[self._left :], style)], width, look("foreground"))

    def _prefix(self, run: RunState) -> list[Part]:
        server = self._feed.servers[run.server]
        widest = max(len(name) for name in self._feed.servers)
        return [
            (f"{run.server[:16]:<{min(16, widest)}} ", self.look.side(server.side)),
            (f"{words.run_name(run)[:12]} ", self.look("muted")),
        ]

    def _text(self, text: str) -> tuple[str, Style]:
        """A line as it is shown; iteration lines without the columns of blanks that Megatron pads them with."""
        head = text[:300]
        if _ITERATION.search(head):
            return _BLANKS.sub(" ", text), self.look("foreground")
        if _BAD.search(head):
            return text, self.look("error")
        return text, self.look("warn") if _WARN.search(head) else self.look("muted")

    def _say(self) -> None:
        logs = self._feed.logs
        self.border_title = f"log · {logs.server or 'all servers'}{' · with wire lines' if logs.wire else ''}"
        if self.follow:
            self.border_subtitle = f"{logs.seen:,} lines · following"
        else:
            last = min(logs.view.end, self.top + self.size.height)
            self.border_subtitle = f"line {last:,} of {logs.view.end:,} · f follows"
