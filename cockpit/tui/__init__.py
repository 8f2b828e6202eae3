"""The live screen: one feed, painted by one timer. The only package that imports textual, and only when it opens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from cockpit.core.errors import UsageError

if TYPE_CHECKING:
    from cockpit.engine.observer import Session


def need_terminal() -> None:
    """Raise UsageError where standard input or output is no terminal, or a dumb one: textual would not refuse."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "the screen needs a terminal on standard input and output.",
            hint="Without one, `ekvi-cockpit run --profile P` does the same and prints its progress; see --help.",
        )
    if os.environ.get("TERM") == "dumb":
        raise UsageError(
            "the screen needs a terminal that can place text, and TERM is `dumb`.",
            hint="`ekvi-cockpit run --profile P` prints its progress line by line.",
        )


def run_app(
    session: Callable[[], Session] | None = None,
    *,
    demo: Callable[[], Session] | None = None,
    theme: str | None = None,
) -> int:
    """Open the screen on a session, or on a welcome that offers the demo; returns the exit code.

    The factories are called in a thread once the screen stands, for what they import may take long. `theme` None
    takes the group's. Raises UsageError without a terminal, and whatever CockpitError a factory raises.
    """
    need_terminal()
    from cockpit.tui.app import open_screen

    return open_screen(session, demo=demo, theme=theme)
