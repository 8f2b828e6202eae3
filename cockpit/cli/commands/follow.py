"""`attach`, `stop`, `fetch` and `replay`: groups that were started before."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from cockpit.cli.follow import follow, observer, print_result, say_it_goes_on, watch
from cockpit.cli.progress import Quiet
from cockpit.core.errors import Exit, LaunchRefused, UsageError

if TYPE_CHECKING:
    from cockpit.engine.replay import ReplaySession
    from cockpit.store.store import Store

_DEMO_SPEED = 10.0


def _store(args: argparse.Namespace) -> Store:
    from cockpit.store.store import Store, runs_root

    return Store(runs_root(args.runs_dir))


def _group_of(store: Store, word: str) -> tuple[str, str | None]:
    """The group that a word names, and its run where it names one."""
    kind, ident = store.resolve(word)
    return (ident, None) if kind == "group" else (store.run_dir(ident).meta()["group"], ident)


def attach(args: argparse.Namespace) -> int:
    """Follow a group to its end, from its first event on; Ctrl-C leaves it running, as it was found."""
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    if args.watch and args.output == "json":
        raise UsageError("--watch and --output json exclude each other: the screen and the data are both stdout.")
    store = _store(args)
    group, _ = _group_of(store, args.id)
    with store.lock_group(group):
        record = store.group(group)
        session = LiveSession(store, record, connect, screen=args.watch)
        if args.watch:
            return watch(lambda: session, group=(store, record.id))
        outcome = asyncio.run(follow(session, observer(args), stops=False))
    if outcome.state == "DETACHED":
        say_it_goes_on(group)
    if args.output == "text":
        print_result(store, outcome, list(record.runs))
    return outcome.exit_code


def stop(args: argparse.Namespace) -> int:
    """Stop a run or a group, and follow it until it has stopped."""
    from cockpit.engine.session import LiveSession
    from cockpit.engine.wish import put_stop
    from cockpit.hosts import connect

    store = _store(args)
    group, run = _group_of(store, args.id)
    record = store.group(group)
    put = asyncio.run(put_stop(store, record, run, connect))
    if not put:
        sys.stderr.write(f"{args.id}: nothing of it runs.\n")
        return int(Exit.OK)
    try:
        lock = store.lock_group(group)
    except LaunchRefused:
        sys.stderr.write(f"{group}: asked to stop; the cockpit that follows it will show its end.\n")
        return int(Exit.OK)
    with lock:
        if run is not None:
            sys.stderr.write(f"{run}: asked to stop; `ekvi-cockpit attach {group}` follows the others.\n")
            return int(Exit.OK)
        outcome = asyncio.run(follow(LiveSession(store, record, connect), Quiet(), stops=False))
    sys.stderr.write(f"{group}: {outcome.state}\n")
    return int(Exit.INTERRUPTED if outcome.exit_code == Exit.INTERRUPTED else Exit.OK)


def fetch(args: argparse.Namespace) -> int:
    """Bring home what the servers hold now, without waiting for more."""
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    store = _store(args)
    group, _ = _group_of(store, args.id)
    with store.lock_group(group):
        record = store.group(group)
        outcome = asyncio.run(follow(LiveSession(store, record, connect, once=True), Quiet(), stops=False))
    for run in record.runs:
        sys.stdout.write(f"{store.run_dir(run).path}\n")
    return int(Exit.INTERRUPTED if outcome.exit_code == Exit.INTERRUPTED else Exit.OK)


def replay(args: argparse.Namespace) -> int:
    """Play a recording; on a terminal, on the live screen."""
    if args.speed is not None and not args.speed > 0:
        raise UsageError(
            f"--speed {args.speed:g}: a replay's speed is above 0.", hint="--speed 10 is ten times real time."
        )
    on_screen = (
        args.watch if args.watch is not None else args.output == "text" and sys.stdout.isatty() and sys.stdin.isatty()
    )
    store, session, runs = session_of(args, screen=on_screen)
    if on_screen:
        if args.output == "json":
            raise UsageError("--watch and --output json exclude each other.")
        return watch(lambda: session)
    outcome = asyncio.run(follow(session, observer(args), stops=False))
    if args.output == "text":
        print_result(store, outcome, runs)
    return outcome.exit_code


def session_of(args: argparse.Namespace, *, screen: bool = False) -> tuple[Store, ReplaySession, list[str]]:
    """The store, session and runs of a replay; `demo` is the recording that ships with the product."""
    from cockpit.engine.replay import ReplaySession, demo_store

    if args.id == "demo":
        store, default = demo_store(), _DEMO_SPEED
        runs = list(store.group(store.groups()[0].id).runs)
    else:
        store, default = _store(args), 1.0
        kind, ident = store.resolve(args.id)
        runs = list(store.group(ident).runs) if kind == "group" else [ident]
    return store, ReplaySession(store, runs, speed=args.speed or default, screen=screen), runs
