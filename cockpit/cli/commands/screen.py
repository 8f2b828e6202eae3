"""`ekvi-cockpit` without a command: the screen, on the newest group, or a welcome."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cockpit.engine.observer import Session
    from cockpit.store.store import GroupRecord, Store


def screen(args: argparse.Namespace) -> int:
    """Open the TUI; without a terminal a hint and exit 2.

    The newest group is followed where it has not ended, and shown as it ended otherwise.
    """
    from cockpit.store.store import Store, runs_root
    from cockpit.tui import need_terminal, run_app

    need_terminal()
    store = Store(runs_root(args.runs_dir))
    groups = store.groups()
    if not groups:
        return run_app(None, demo=_demo)
    newest = groups[0]
    with store.lock_group(newest.id) if newest.state is None else contextlib.nullcontext():
        return run_app(_session(store, newest), demo=_demo)


def _session(store: Store, group: GroupRecord) -> Callable[[], Session]:
    def make() -> Session:
        if group.state is not None:
            from cockpit.engine.replay import ReplaySession

            return ReplaySession(store, list(group.runs), speed=float("inf"), screen=True)
        from cockpit.engine.session import LiveSession
        from cockpit.hosts import connect

        return LiveSession(store, group, connect, screen=True)

    return make


def _demo() -> Session:
    from cockpit.cli.commands.follow import session_of

    return session_of(argparse.Namespace(id="demo", speed=None, runs_dir=None), screen=True)[1]
