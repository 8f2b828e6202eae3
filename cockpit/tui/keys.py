"""Every key of the live screen in one table: bindings, the key bar and the help are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding

LIVE, REPLAY, ENDED = "live", "replay", "ended"
_ALWAYS = frozenset({LIVE, REPLAY, ENDED})


@dataclass(frozen=True, slots=True)
class Key:
    """A key: as textual names it, as it is shown, its action, a word for the bar ("" for none), and what it does."""

    key: str
    shown: str
    action: str
    word: str
    help: str
    modes: frozenset[str] = _ALWAYS


# In the order of the key bar: what has no room there is left out from the end.
KEYS = (
    Key("q", "q", "app.leave", "quit", "Quit; asks whether to detach from a live group or to stop it"),
    Key("question_mark", "?", "app.help", "help", "This list"),
    Key("space", "space", "pause", "pause", "Pause, or go on", frozenset({REPLAY})),
    Key("left_square_bracket", "[", "pace(-1)", "slower", "Slower", frozenset({REPLAY})),
    Key("right_square_bracket", "]", "pace(1)", "faster", "Faster", frozenset({REPLAY})),
    Key("v", "v", "verdict", "verdict", "The verdict or the log, once the group has ended", frozenset({ENDED})),
    Key("x", "x", "stop", "stop", "Stop the group, after a question", frozenset({LIVE})),
    Key("l", "l", "cycle_log", "log of", "Show the log of the next server, then of all"),
    Key("f", "f", "follow", "follow", "Follow the end of the log, or stay"),
    Key("y", "y", "log_scale", "scale", "Loss on a linear or a logarithmic scale"),
    Key("z", "z", "zoom", "zoom", "Fill the screen with the panel in focus, and back"),
    Key("t", "t", "app.next_theme", "theme", "The next theme"),
    Key("w", "w", "wire", "", "Show or hide the runners' wire lines"),
)
MORE = (
    ("tab", "Put the focus on the next panel (z zooms it)"),
    ("↑ ↓ PgUp PgDn", "Scroll the panel in focus; j k g G do the same"),
    ("← →", "Scroll the log sideways"),
    ("esc", "Leave the zoom, close a dialogue"),
    ("ctrl-c", "As q; once more stops the group and leaves (exit 130)"),
)


def bindings() -> list[Binding]:
    """The bindings of the live screen."""
    return [Binding(k.key, k.action, k.help, show=False, id=k.action) for k in KEYS]


def bar(mode: str) -> list[tuple[str, str, str]]:
    """Key, word and action of what the key bar offers in a mode."""
    return [(k.shown, k.word, k.action) for k in KEYS if k.word and mode in k.modes]
