"""What one sees before there is any run: what this is, a demo, and the commands that begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from cockpit.tui.theming import blend
from cockpit.tui.widgets.keybar import KeyBar

if TYPE_CHECKING:
    from cockpit.tui.app import CockpitApp

_NAME = (
    "⣶⣶⣶⣶⣶⣶⣶  ⣶⡆  ⣠⣶⠖  ⢶⣦     ⢠⣶⠆ ⢰⣶",
    "⣿⡇       ⣿⡇⣠⣾⠟⠁   ⠘⣿⣆   ⢠⣿⠏  ⢸⣿",
    "⣿⡿⠿⠿⠿⠿   ⣿⡿⣿⡁      ⠘⣿⡄ ⢀⣿⡏   ⢸⣿",
    "⣿⡇       ⣿⡇⠈⠿⣦⡀     ⠹⣿⣄⣾⡟    ⢸⣿",
    "⠿⠿⠿⠿⠿⠿⠿  ⠿⠇  ⠈⠻⠦     ⠻⠿⠟     ⠸⠿",
)
_COMMANDS = (
    ("ekvi-cockpit run --profile duel-local --watch", "two servers on this machine: a whole duel in minutes"),
    ("ekvi-cockpit attach last --watch", "follow the newest group again"),
    ("ekvi-cockpit init", "your own servers over SSH: a first profile, step by step"),
)


class WelcomeScreen(Screen[None]):
    """A card in the middle; `d` or Enter plays the demo."""

    CSS_PATH = "welcome.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d,enter", "demo", "Play the demo", show=False),
        Binding("q", "app.leave", "Quit", show=False),
        Binding("t", "app.next_theme", "The next theme", show=False),
        Binding("question_mark", "app.help", "All keys", show=False),
    ]

    def compose(self) -> ComposeResult:
        """The card and the key bar."""
        yield Static(id="card")
        yield KeyBar(id="welcome-keys")

    def on_mount(self) -> None:
        """Write the card."""
        keys = [("d", "demo", "screen.demo")] if self._cockpit.has_demo else []
        keys += [("q", "quit", "app.leave"), ("t", "theme", "app.next_theme"), ("?", "keys", "app.help")]
        self.query_one(KeyBar).show(keys)
        self.redraw()

    def on_resize(self) -> None:
        """The picture goes first where it is low."""
        self.redraw()

    @property
    def _cockpit(self) -> CockpitApp:
        return cast("CockpitApp", self.app)

    def redraw(self) -> None:
        """Write the card in the colours of the theme in use."""
        look, theme = self._cockpit.look, self._cockpit.look.theme
        text = Text(justify="left")
        if self.app.size.height >= 22:
            for line in _NAME:
                for at, char in enumerate(line):
                    text.append(char, blend(theme["side.a"], theme["side.b"], at / 33))
                text.append("\n")
            text.append("\n")
        text.append("ekvi-cockpit", look("primary", bold=True))
        text.append(" trains the same model on AMD and NVIDIA servers, side by side,\nand says which is ")
        text.append("faster", look("foreground", bold=True))
        text.append(", by how much, how surely, and whether it was fair.\n\n")
        if self._cockpit.has_demo:
            text.append("  d  ", look("background", bold=True, on="primary"))
            text.append(" or ⏎  watch the demo: a recorded duel, replayed\n\n", look("foreground", bold=True))
        for command, what in _COMMANDS:
            text.append(f"  $ {command}\n", look("ok"))
            text.append(f"    {what}\n", look("muted"))
        self.query_one("#card", Static).update(text)

    def action_demo(self) -> None:
        """Play the recorded duel."""
        self._cockpit.play_demo()
