"""`ekvi-cockpit run`: plan, check, launch, follow."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cockpit.cli.follow import ctrl_c_waits, follow, observer, print_result, say_it_goes_on, watch
from cockpit.cli.jsonlines import extras
from cockpit.core.errors import Exit, UsageError
from cockpit.core.text import printable

if TYPE_CHECKING:
    from cockpit.core.records import GroupPlan
    from cockpit.engine.admit import Checked, Connect
    from cockpit.engine.start import Wish
    from cockpit.store.store import GroupRecord, Store

    Start = Callable[[], Awaitable[GroupRecord]]


def run(args: argparse.Namespace) -> int:
    """Launch a profile, or resume a group."""
    from cockpit.store.store import Store, runs_root

    _check_words(args)
    if args.watch:
        from cockpit.tui import need_terminal

        need_terminal()
    if args.dry_run:
        return _dry_run(_wish(args), args)
    store = Store(runs_root(args.runs_dir))
    with contextlib.ExitStack() as held:
        launched = asyncio.run(_run(args, store, held))
        if isinstance(launched, int):
            return launched
        return _watch(store, launched)


def _check_words(args: argparse.Namespace) -> None:
    extras(args.with_)
    if args.resume:
        given = [n for n in ("profile", "servers", "repeats", "stage") if getattr(args, n) is not None]
        if given or args.overrides or args.multirun:
            raise UsageError(
                "--resume runs a group again as it was planned, so nothing else may be said beside it.",
                hint="Leave out " + ", ".join([f"--{n}" for n in given] + list(args.overrides)) + ".",
            )
    elif not args.profile:
        meant = next((w for w in args.overrides if "=" not in w), None)  # the word that most forget is --profile
        hint = f"Say --profile {meant}." if meant else "`ekvi-cockpit profiles list` shows them: --profile NAME."
        raise UsageError("`run` needs a profile.", hint=hint)
    if args.watch and args.output == "json":
        raise UsageError("--watch and --output json exclude each other: the screen and the data are both stdout.")
    if args.with_ and args.output != "json":
        raise UsageError("--with adds events to --output json, and means nothing without it.")
    if args.detach and args.watch:
        raise UsageError("--detach and --watch exclude each other.")


def _wish(args: argparse.Namespace) -> Wish:
    from cockpit.engine.start import Wish

    names = tuple(n for n in args.servers.split(",") if n) if args.servers is not None else None
    if names == ():
        raise UsageError("--servers names no server.", hint="--servers A,B")
    return Wish(args.profile, tuple(args.overrides), names, args.multirun, args.repeats, args.stage)


def _dry_run(wish: Wish, args: argparse.Namespace) -> int:
    if args.resume:
        raise UsageError("--dry-run and --resume exclude each other.")
    group, script = asyncio.run(_script(wish))
    if args.output == "json":
        document = {"type": "dry_run", "id": group.group, "runs": [r.run for r in group.runs], "script": script}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(script)
    return int(Exit.OK)


async def _script(wish: Wish) -> tuple[GroupPlan, str]:
    from cockpit.engine.admit import Kept
    from cockpit.engine.start import dry_run, plan
    from cockpit.hosts import connect

    kept = Kept(connect)
    try:
        group = await plan(wish, kept)
        return group, await dry_run(group, kept)
    finally:
        await kept.close()


async def _run(args: argparse.Namespace, store: Store, held: contextlib.ExitStack) -> int | GroupRecord:
    """Launch, and follow as the arguments ask: the exit code, or the group that the screen is to follow.

    One event loop and one login a server for all of it. `held` holds the group's lock until the command is done.
    Ctrl-C on the way stops what it finds launched.
    """
    from cockpit.engine.admit import Kept
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    kept = Kept(connect)
    try:
        start = await (_resuming if args.resume else _starting)(args, store, held, kept)
        with ctrl_c_waits() as early:
            record = await start()
            if args.detach and not early():
                _say_detached(record, args.output)
                return int(Exit.SERVER if any(q.get("refused") for q in record.queues) else Exit.OK)
            if args.watch and not early():
                return record
            outcome = await follow(LiveSession(store, record, kept), observer(args), early=early)
            if args.output == "text":
                print_result(store, outcome, list(record.runs))
            return outcome.exit_code
    finally:
        await kept.close()


async def _starting(args: argparse.Namespace, store: Store, held: contextlib.ExitStack, connect: Connect) -> Start:
    """A new group, planned and checked; what is left is to launch it."""
    from cockpit.engine.start import check, launch, plan

    group = await plan(_wish(args), connect)
    checked = await check(group, connect, say=_say)
    for error in checked.refused.values():
        _say(f"refused: {error}")
    if not args.yes and not await _may_purge(checked, connect):
        raise UsageError("nothing was purged.")
    held.enter_context(store.lock_group(group.group))
    return lambda: launch(checked, store, connect)


async def _may_purge(checked: Checked, connect: Connect) -> bool:
    """Whether the group does not purge, or its user agrees to what would go."""
    from cockpit.engine.purge import preview, purges

    if not purges(checked):
        return True
    for doomed in await preview(checked, connect):
        for line in doomed.lines():
            _say(line)
    if not sys.stdin.isatty():
        raise UsageError("this is to be removed, and there is no terminal to ask at.", hint="Say --yes.")
    sys.stderr.write("Remove it? [y/N] ")
    sys.stderr.flush()
    return (await asyncio.to_thread(sys.stdin.readline)).strip().lower() in ("y", "yes")


async def _resuming(args: argparse.Namespace, store: Store, held: contextlib.ExitStack, connect: Connect) -> Start:
    """A group that is there; what is left is to launch what failed in it."""
    from cockpit.engine.resume import resume

    _, group = store.resolve(args.resume, want="group")
    held.enter_context(store.lock_group(group))

    async def launch() -> GroupRecord:
        record, again = await resume(store, group, connect, say=_say)
        if not again:
            _say(f"group {group}: every run has succeeded, nothing is left to do.")
        return record

    return launch


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def _watch(store: Store, record: GroupRecord) -> int:
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    return watch(lambda: LiveSession(store, record, connect, screen=True), group=(store, record.id))


def _say_detached(record: GroupRecord, output: str) -> None:
    if output == "json":
        line = {"type": "group", "id": record.id, "runs": list(record.runs), "state": "DETACHED"}
        sys.stdout.write(json.dumps(line) + "\n")
    else:
        sys.stdout.write(f"{record.id}\n")
        say_it_goes_on(record.id)
