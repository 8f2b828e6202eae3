"""All keys and what they do."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from cockpit.tui import keys


class HelpScreen(ModalScreen[None]):
    """A list that any of its own keys closes."""

    CSS_PATH = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Close", show=False)]

    def compose(self) -> ComposeResult:
        """A box in the middle."""
        with VerticalScroll(id="help") as box:
            box.border_title = "keys"
            yield Static(id="keys")

    def on_mount(self) -> None:
        """Write the table in the theme's colours."""
        from cockpit.tui.app import CockpitApp

        assert isinstance(self.app, CockpitApp)
        look = self.app.look
        rows = [(k.shown, k.help + _when(k)) for k in keys.KEYS] + list(keys.MORE)
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True, style=look("primary", bold=True, on="surface"))
        table.add_column(style=look("foreground", on="surface"))
        for key, what in rows:
            table.add_row(key, what)
        self.query_one("#keys", Static).update(table)
        self.query_one("#help").focus()


def _when(key: keys.Key) -> str:
    return " (replay)" if key.modes == {keys.REPLAY} else " (live)" if key.modes == {keys.LIVE} else ""
