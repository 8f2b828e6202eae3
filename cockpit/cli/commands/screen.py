"""`ekvi-cockpit` without a command: the screen, on the newest live group, or a welcome."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cockpit.engine.observer import Session


def screen(args: argparse.Namespace) -> int:
    """Open the TUI; without a terminal a hint and exit 2."""
    from cockpit.tui import need_terminal, run_app

    need_terminal()
    return run_app(None, demo=_demo)


def _demo() -> Session:
    from cockpit.cli.commands.follow import session_of

    return session_of(argparse.Namespace(id="demo", speed=None, runs_dir=None))[1]
