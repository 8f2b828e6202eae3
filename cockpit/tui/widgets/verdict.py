"""The comparison's text, to be scrolled."""

from __future__ import annotations

import re
from collections.abc import Callable

from textual.strip import Strip

from cockpit.tui.widgets.panel import Scroller, strip

_HEADING = re.compile(r"^\S.*:$|^#|^[A-Z][A-Z /-]+$")


class VerdictPanel(Scroller):
    """Lines of a text that is written for the width it has."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.border_title = "verdict"
        self._write: Callable[[int], str] = lambda _: ""
        self._wrapped: tuple[int, list[str]] = (-1, [])

    def show(self, write: Callable[[int], str]) -> None:
        """Take what writes the text for a width, and start at its top."""
        self._write, self._wrapped, self.top = write, (-1, []), 0
        self.repaint()

    def bounds(self) -> tuple[int, int]:
        """All lines as they are wrapped at this width."""
        return 0, len(self._lines(self.size.width))

    def go(self, top: int) -> None:
        """Scroll, and say how much is below."""
        super().go(top)
        below = self.bounds()[1] - self.top - self.size.height
        self.border_subtitle = f"{below} more lines ↓" if below > 0 else ""

    def on_resize(self) -> None:
        """Other lines at another width."""
        self.go(self.top)

    def rows(self, width: int, height: int) -> list[Strip]:
        """The lines from `top` on."""
        plain, bold = self.look("foreground"), self.look("primary", bold=True)
        shown = self._lines(width)[self.top : self.top + height]
        return [strip([(line, bold if _HEADING.match(line) else plain)], width, plain) for line in shown]

    def _lines(self, width: int) -> list[str]:
        if self._wrapped[0] != width:
            import textwrap

            lines: list[str] = []
            for line in self._write(width).splitlines():
                indent = " " * (len(line) - len(line.lstrip()) + 2)
                fits = len(line) <= max(1, width)
                lines += [line] if fits else textwrap.wrap(line, max(20, width), subsequent_indent=indent[:20])
            self._wrapped = (width, lines)
        return self._wrapped[1]
