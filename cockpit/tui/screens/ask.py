"""A question with one key an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its key, the value that the question comes back with, and what it means."""

    key: str
    value: str
    text: str


class AskScreen(ModalScreen[str | None]):
    """Comes back with the value of an answer, or None where the user thought better of it."""

    CSS_PATH = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n", "dismiss(None)", "Back", show=False)]

    def __init__(self, title: str, text: str, answers: Sequence[Answer]) -> None:
        super().__init__()
        self._title, self._text, self._answers = title, text, answers

    def compose(self) -> ComposeResult:
        """A box in the middle."""
        with Vertical(id="ask") as box:
            box.border_title = self._title
            yield Static(self._text, markup=False)
            yield Static(id="answers")

    def on_mount(self) -> None:
        """Write the answers in the theme's colours."""
        from cockpit.tui.app import CockpitApp

        assert isinstance(self.app, CockpitApp)
        look = self.app.look
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True, style=look("primary", bold=True, on="surface"))
        table.add_column(style=look("foreground", on="surface"))
        for answer in [*self._answers, Answer("esc", "", "back")]:
            table.add_row(answer.key, answer.text)
        self.query_one("#answers", Static).update(table)

    def on_key(self, event: events.Key) -> None:
        """Take an answer."""
        for answer in self._answers:
            if event.key == answer.key:
                event.stop()
                self.dismiss(answer.value)
                return
