"""This process's terminal, lent to an interactive command and given back as it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence

from cockpit.core.errors import UsageError


def need_terminal() -> int:
    """The terminal's descriptor, read and written. Raises UsageError where standard input or output is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "An interactive command needs a terminal, and standard input or output is none.",
            hint="Start it in a terminal, without a pipe.",
        )
    return sys.stdin.fileno()


def size(fd: int) -> tuple[int, int, int, int]:
    """Columns, rows, and 0, 0 for pixels, which nobody uses."""
    columns, rows = os.get_terminal_size(fd)
    return columns, rows, 0, 0


@contextlib.contextmanager
def kept(fd: int, *, raw: bool) -> Iterator[None]:
    """The terminal in raw mode or as it is; however this ends, it is afterwards as it was."""
    before = termios.tcgetattr(fd)
    try:
        if raw:
            tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def driven(
    loop: asyncio.AbstractEventLoop, fd: int, keys: Callable[[bytes], None], resized: Callable[[], None]
) -> Iterator[None]:
    """Keys and changes of size go to a command elsewhere."""

    def typed() -> None:
        with contextlib.suppress(OSError):
            keys(os.read(fd, 65536))

    loop.add_reader(fd, typed)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        loop.remove_signal_handler(signal.SIGWINCH)


def show(data: bytes) -> None:
    """Write to the terminal, all of it; blocks while the terminal does."""
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Keys that interrupt are for the command on the terminal, not for us.

    A handler that does nothing, since a signal that is ignored would stay ignored in the child.
    """
    both = (signal.SIGINT, signal.SIGQUIT)
    before = [signal.signal(number, lambda *_: None) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)


async def lend(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a local command on the terminal and return its exit status, -N after signal N.

    Raises UsageError without a terminal, OSError where the command cannot be started.
    """
    fd = need_terminal()
    with kept(fd, raw=False), _deaf():
        process = await asyncio.create_subprocess_exec(*argv, env=env)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
