"""The last line: the keys that do something now; each can be clicked."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.strip import Strip

from cockpit.tui.widgets.panel import Panel, Part, strip


class KeyBar(Panel):
    """Keys and words, the most needed first; what has no room is left out, for `?` lists all."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._keys: Sequence[tuple[str, str, str]] = ()
        self._spans: list[tuple[int, int, str]] = []

    def show(self, keys: Sequence[tuple[str, str, str]]) -> None:
        """Take (key as shown, word, action) of each."""
        if keys != self._keys:
            self._keys = keys
            self.repaint()

    def rows(self, width: int, height: int) -> list[Strip]:
        """One line."""
        look = self.look
        ground = look("muted", on="surface")
        parts: list[Part] = []
        self._spans = []
        at = 0
        for key, word, action in self._keys:
            size = len(key) + len(word) + 3
            if at + size > width:
                break
            parts += [(f" {key}", look("primary", bold=True, on="surface")), (f" {word} ", ground)]
            self._spans.append((at, at + size, action))
            at += size
        return [strip(parts, width, ground)]

    async def on_click(self, event: events.Click) -> None:
        """Do what the clicked key does."""
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.app.run_action(action, self.screen)
                return
