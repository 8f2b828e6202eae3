"""Following a session without a screen: progress or JSON Lines, Ctrl-C, and what is printed at the end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cockpit.cli.jsonlines import JsonLines, extras
from cockpit.cli.progress import progress
from cockpit.core.errors import Exit
from cockpit.core.within import within
from cockpit.engine.observer import Observer, Outcome, Session

if TYPE_CHECKING:
    from cockpit.store.store import Store


def observer(args: argparse.Namespace) -> Observer:
    """The face that the arguments ask for."""
    return JsonLines(extras(args.with_)) if args.output == "json" else progress()


@contextlib.contextmanager
def ctrl_c_waits() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C instead of raising it, and tell whether it came: half a launch would train on with nobody told.

    A second one does interrupt.
    """
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            sys.stderr.write("What is launched already goes on; `ekvi-cockpit stop last` stops it.\n")
            raise KeyboardInterrupt
        seen.append(number)
        sys.stderr.write("Stopping the group once it is launched; Ctrl-C again leaves at once.\n")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


async def follow(
    session: Session, face: Observer, *, stops: bool = True, early: Callable[[], bool] = lambda: False
) -> Outcome:
    """Run a session under Ctrl-C: once stops the group, twice leaves it to its agent; without `stops` once leaves.

    `early` tells whether Ctrl-C came before.
    """
    loop = asyncio.get_running_loop()
    wishes: list[asyncio.Task[None]] = []
    left = asyncio.Event()

    def interrupted() -> None:
        if stops and not wishes:
            face.note("warning", "Stopping the group; Ctrl-C again leaves it to its agent.")
            wishes.append(asyncio.ensure_future(session.stop()))
            return
        if stops:
            face.note("warning", "Leaving: the agent goes on stopping the group; `attach last` shows how it ended.")
        left.set()
        session.detach()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        if early():
            interrupted()
        outcome = await session.run(face)
    except BaseExceptionGroup as errors:
        if errors.subgroup(BrokenPipeError) is not None:  # the reader of our output went away
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    for wish in wishes:
        await within(60, wish)
    if wishes or left.is_set():
        return Outcome(outcome.group, outcome.state, int(Exit.INTERRUPTED), outcome.comparison)
    return outcome


def watch(session: Callable[[], Session], *, group: tuple[Store, str] | None = None) -> int:
    """Follow a session on the live screen; the exit code of the group, after a word on how to come back to it."""
    from cockpit.tui import run_app

    code = run_app(session)
    if group is not None and group[0].group(group[1]).state is None:
        say_it_goes_on(group[1])
    return code


def say_it_goes_on(group: str) -> None:
    """What to do with a group that was left."""
    sys.stderr.write(f"It goes on by itself; `ekvi-cockpit attach {group}` follows it.\n")


def print_result(store: Store, outcome: Outcome, runs: list[str]) -> None:
    """What a finished group has to say, on stdout: its comparison, or each run's summary where there is one side."""
    from cockpit.report import summary_text, text

    if outcome.comparison is not None:
        sys.stdout.write(text(outcome.comparison))
        return
    if outcome.state == "DETACHED":
        return
    told = [summary_text(s) for run in runs if (s := store.run_dir(run).summary()) is not None]
    sys.stdout.write("\n".join(told))
