"""`attach`, `stop`, `fetch` and `replay`: groups that were started before."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from typing import TYPE_CHECKING

from cockpit.cli.follow import follow, observer, print_result, say_it_goes_on, watch
from cockpit.cli.progress import Quiet
from cockpit.core.errors import Exit, LaunchRefused, UsageError

if TYPE_CHECKING:
    from cockpit.engine.fetch import Wanted
    from cockpit.engine.replay import ReplaySession
    from cockpit.store.store import GroupRecord, Store

_DEMO_SPEED = 10.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt]?)(?:i?[Bb])?")


def _store(args: argparse.Namespace) -> Store:
    from cockpit.store.store import Store, runs_root

    return Store(runs_root(args.runs_dir))


def _group_of(store: Store, word: str) -> tuple[str, str | None]:
    """The group that a word names, and its run where it names one."""
    kind, ident = store.resolve(word)
    return (ident, None) if kind == "group" else (store.run_dir(ident).meta()["group"], ident)


def _followed(store: Store, group: str) -> GroupRecord:
    """A group that servers work or worked. Raises UsageError for one that was made of files."""
    record = store.group(group)
    if not record.queues:
        hint = f"`ekvi-cockpit show {group}` says what is known, `replay` plays it."
        raise UsageError(f"{group} was imported: there is no server to ask.", hint=hint)
    return record


def attach(args: argparse.Namespace) -> int:
    """Follow a group to its end, from its first event on; Ctrl-C leaves it running, as it was found."""
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    if args.watch and args.output == "json":
        raise UsageError("--watch and --output json exclude each other: the screen and the data are both stdout.")
    store = _store(args)
    group, _ = _group_of(store, args.id)
    with store.lock_group(group):
        record = _followed(store, group)
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
    put, errors = asyncio.run(put_stop(record, run, connect))
    for error in errors:
        sys.stderr.write(f"warning: {error}\n")
    if not put and not errors:
        sys.stderr.write(f"{args.id}: nothing of it runs.\n")
        _say_stopped(args, record)
        return int(Exit.OK)
    missed = int(Exit.SERVER if errors else Exit.OK)
    try:
        lock = store.lock_group(group)
    except LaunchRefused:
        sys.stderr.write(f"{group}: asked to stop; the cockpit that follows it will show its end.\n")
        _say_stopped(args, record)
        return missed
    with lock:
        if run is not None:
            sys.stderr.write(f"{run}: asked to stop; `ekvi-cockpit attach {group}` follows the others.\n")
            _say_stopped(args, record)
            return missed
        session = LiveSession(store, record, connect)
        if errors:  # a server that is away takes the wish when it is back
            session.wish()
        outcome = asyncio.run(follow(session, Quiet(), stops=False))
    sys.stderr.write(f"{group}: {outcome.state}\n")
    _say_stopped(args, store.group(group))
    return outcome.exit_code if outcome.exit_code in (Exit.INTERRUPTED, Exit.SERVER) else int(Exit.OK)


def _say_stopped(args: argparse.Namespace, record: GroupRecord) -> None:
    """The group as it is by now, as JSON; its `state` is null while something of it has not ended."""
    if args.output == "json":
        document = {"type": "group", "id": record.id, "runs": list(record.runs), "state": record.state}
        sys.stdout.write(json.dumps(document) + "\n")


def fetch(args: argparse.Namespace) -> int:
    """Bring home what the servers hold now, without waiting for more."""
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    store = _store(args)
    group, _ = _group_of(store, args.id)
    with store.lock_group(group):
        record = _followed(store, group)
        wanted = _wanted(args, record)
        outcome = asyncio.run(
            follow(LiveSession(store, record, connect, once=True, wanted=wanted), Quiet(), stops=False)
        )
        code = outcome.exit_code if outcome.exit_code in (Exit.INTERRUPTED, Exit.SERVER) else int(Exit.OK)
        if args.pattern or args.max_size is not None:
            code = max(code, asyncio.run(_fetch_more(store, store.group(group), wanted)))
    paths = {run: str(store.run_dir(run).path) for run in record.runs}
    if args.output == "json":
        rows = [{"id": run, "path": path} for run, path in paths.items()]
        sys.stdout.write(json.dumps({"id": group, "state": store.group(group).state, "runs": rows}) + "\n")
    else:
        sys.stdout.write("".join(f"{path}\n" for path in paths.values()))
    return code


def _wanted(args: argparse.Namespace, record: GroupRecord) -> Wanted:
    from cockpit.core.records import Limits
    from cockpit.engine.fetch import Wanted

    limits = Limits(**record.limits)
    most = limits.fetch_by if args.max_size is None else _bytes(args.max_size)
    patterns = tuple(args.pattern or (("**",) if args.max_size is not None else record.fetch))
    asked = bool(args.pattern or args.max_size is not None)
    return Wanted(patterns, most, limits.fetch_files, asked=asked, states=bool(args.pattern))


def _bytes(text: str) -> int:
    """`10G` in bytes; raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"--max-size {text}: it is a number with K, M, G or T behind it.", hint="--max-size 10G")
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " "))


async def _fetch_more(store: Store, record: GroupRecord, wanted: Wanted) -> int:
    from cockpit.engine.more import fetch_more
    from cockpit.hosts import connect

    said: list[str] = []
    trouble = await fetch_more(store, record, connect, wanted, said.append)
    for text in said:
        sys.stderr.write(f"{text}\n")
    return int(Exit.SERVER if trouble else Exit.OK)


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
