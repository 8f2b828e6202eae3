"""`ekvi-cockpit run`: plan, check, launch, follow."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from cockpit.cli.follow import ctrl_c_waits, follow, observer, print_result, say_it_goes_on, watch
from cockpit.cli.jsonlines import extras
from cockpit.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from cockpit.core.records import GroupPlan
    from cockpit.engine.start import Wish
    from cockpit.store.store import GroupRecord, Store


def run(args: argparse.Namespace) -> int:
    """Launch a profile, or resume a group."""
    from cockpit.store.store import Store, runs_root

    _check_words(args)
    if args.watch:
        from cockpit.tui import need_terminal

        need_terminal()
    wish = _wish(args)
    if args.dry_run:
        return _dry_run(wish, args)
    store = Store(runs_root(args.runs_dir))
    if args.resume:
        return _resume(store, args)
    plan = asyncio.run(_checked_plan(wish))
    with store.lock_group(plan.group):
        return _follow(store, args, lambda: asyncio.run(_launch(plan, store)))


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
    from cockpit.engine.start import dry_run, plan
    from cockpit.hosts import connect

    if args.resume:
        raise UsageError("--dry-run and --resume exclude each other.")
    group = asyncio.run(plan(wish, connect))
    sys.stdout.write(dry_run(group))
    return int(Exit.OK)


async def _checked_plan(wish: Wish) -> GroupPlan:
    from cockpit.engine.start import check, plan
    from cockpit.hosts import connect

    group = await plan(wish, connect)
    await check(group, connect)
    return group


async def _launch(plan: GroupPlan, store: Store) -> GroupRecord:
    from cockpit.engine.start import launch
    from cockpit.hosts import connect

    return await launch(plan, store, connect)


def _resume(store: Store, args: argparse.Namespace) -> int:
    from cockpit.engine.resume import resume
    from cockpit.hosts import connect

    _, group = store.resolve(args.resume, want="group")
    with store.lock_group(group):

        def launch() -> GroupRecord:
            record, again = asyncio.run(resume(store, group, connect))
            if not again:
                sys.stderr.write(f"group {group}: every run has succeeded, nothing is left to do.\n")
            return record

        return _follow(store, args, launch)


def _follow(store: Store, args: argparse.Namespace, launch: Callable[[], GroupRecord]) -> int:
    """Launch, and follow as the arguments ask; Ctrl-C on the way stops what it finds launched."""
    from cockpit.engine.session import LiveSession
    from cockpit.hosts import connect

    with ctrl_c_waits() as early:
        record = launch()
        if args.detach and not early():
            _say_detached(record, args.output)
            return int(Exit.OK)
        session = LiveSession(store, record, connect, screen=args.watch and not early())
        if not args.watch or early():
            outcome = asyncio.run(follow(session, observer(args), early=early))
            if args.output == "text":
                print_result(store, outcome, list(record.runs))
            return outcome.exit_code
    return watch(lambda: session, group=(store, record.id))


def _say_detached(record: GroupRecord, output: str) -> None:
    if output == "json":
        line = {"type": "group", "id": record.id, "runs": list(record.runs), "state": "DETACHED"}
        sys.stdout.write(json.dumps(line) + "\n")
    else:
        sys.stdout.write(f"{record.id}\n")
        say_it_goes_on(record.id)
