"""What all panels share: lines built once a change, painted by the line interface, and scrolling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from cockpit.tui.app import CockpitApp
    from cockpit.tui.theming import Look

Part = tuple[str, Style]


def strip(parts: Iterable[Part], width: int, ground: Style) -> Strip:
    """One line of exactly `width` cells: cut at the right, or filled."""
    return Strip([Segment(text, style) for text, style in parts if text]).adjust_cell_length(width, ground)


class Panel(Widget):
    """A widget of lines. Subclasses build them in `rows`; `repaint` says that they may have changed.

    Only lines that did change are painted, and a hidden panel builds none.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = "Panel { background: $background; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._rows: list[Strip] | None = None
        self._made_for: object = None

    @property
    def look(self) -> Look:
        """The styles of the theme in use."""
        return cast("CockpitApp", self.app).look

    def repaint(self) -> None:
        """Build the lines anew and paint those that are other than before."""
        size = self.size
        if self._rows is None or self._made_for != (size, self.look) or not self.is_on_screen:
            self._rows = None
            self.refresh()
            return
        before, self._rows = self._rows, self.rows(size.width, size.height)
        after = self._rows
        changed = [y for y in range(size.height) if before[y : y + 1] != after[y : y + 1]]
        if changed:
            self.refresh(*(Region(0, y, size.width, 1) for y in changed))

    def rows(self, width: int, height: int) -> list[Strip]:
        """The lines of a content area of `width` x `height` cells; fewer are filled up."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        """One line of the content area."""
        look, size = self.look, self.size
        if self._rows is None or self._made_for != (size, look):
            self._rows = self.rows(size.width, size.height)
            self._made_for = (size, look)
        if y < len(self._rows):
            return self._rows[y]
        return Strip.blank(size.width, look("foreground"))


class Scroller(Panel, can_focus=True):
    """A panel over more lines than it shows. `top` is the first shown one; lines are numbered from 0."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(False)", "Start", show=False),
        Binding("end,G", "edge(True)", "End", show=False),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.top = 0

    def bounds(self) -> tuple[int, int]:
        """The first line there is, and the one after the last."""
        raise NotImplementedError

    def last_top(self) -> int:
        """The largest `top` that leaves no empty lines below."""
        first, end = self.bounds()
        return max(first, end - max(1, self.size.height))

    def go(self, top: int) -> None:
        """Scroll so that `top` is the first shown line, as far as there are lines."""
        self.top = min(self.last_top(), max(self.bounds()[0], top))
        self.repaint()

    def action_move(self, lines: int) -> None:
        """Scroll by lines."""
        self.go(self.top + lines)

    def action_page(self, pages: int) -> None:
        """Scroll by what is shown, less one line."""
        self.go(self.top + pages * max(1, self.size.height - 1))

    def action_edge(self, end: bool) -> None:
        """Go to the end, or to the start."""
        self.go(self.last_top() if end else self.bounds()[0])

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Three lines back."""
        event.stop()
        self.go(self.top - 3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Three lines on."""
        event.stop()
        self.go(self.top + 3)
