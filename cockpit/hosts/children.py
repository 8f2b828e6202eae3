"""Child processes of the cockpit: started so that nothing of them stays when they are given up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from cockpit.core.errors import ServerError, StoreError
from cockpit.hosts.base import BLOCK_BY, LAST_WORDS_BY, Completed, ServerTimeout

_REAP_S = 5.0


async def spawn(
    argv: Sequence[str], *, stdin: int | None, merged: bool = False, limit: int = 2**16
) -> asyncio.subprocess.Process:
    """Start a command in a session of its own; cancelled in the middle of it, nothing of what was started stays.

    asyncio itself would then kill the one process and wait for its pipes, which a grandchild may hold for long.
    `merged` puts its stderr into its stdout; `limit` is how many bytes asyncio reads ahead.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if merged else asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=limit,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # it did not start at all
            await end_group(await starting)
        raise


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Leave nothing of a command that did not end by itself: after a timeout, or when the caller was cancelled."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                await process.wait()
    # A grandchild in a session of its own may still hold our pipes: they are closed on this side, or they leak.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def not_started(name: str, program: str, e: OSError) -> Completed:
    """What a shell says of a program that cannot be started. Raises ServerError where that is not its own fault."""
    if isinstance(e, FileNotFoundError | NotADirectoryError):
        return Completed(127, b"", f"{program}: {e.strerror}".encode())
    if isinstance(e, PermissionError):
        return Completed(126, b"", f"{program}: {e.strerror}".encode())
    raise ServerError(f"{program} could not be started on {name}: {e.strerror}.") from e


def open_input(path: Path) -> BinaryIO:
    """A file that becomes a command's standard input. Raises StoreError."""
    try:
        return path.open("rb")
    except OSError as e:
        raise StoreError(f"{path} cannot be read: {e.strerror}.") from e


class Tail:
    """Hands blocks on and keeps the last of them, at most `most` bytes."""

    def __init__(self, output: Callable[[bytes], None], most: int = LAST_WORDS_BY) -> None:
        self._output = output
        self._most = most
        self.kept = bytearray()

    def __call__(self, data: bytes) -> None:
        """One block."""
        self.kept += data
        del self.kept[: -self._most]
        self._output(data)


async def stream(
    name: str, argv: Sequence[str], output: Callable[[bytes], None], given: bytes | Path | None, timeout: float
) -> Completed:
    """`Host.stream` on this machine, which is called `name`."""
    file = open_input(given) if isinstance(given, Path) else None
    tail = Tail(output)
    with file or contextlib.nullcontext():
        stdin = asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE
        try:
            process = await spawn(argv, stdin=file.fileno() if file else stdin, merged=True)
        except OSError as e:
            return not_started(name, argv[0], e)
        try:
            async with asyncio.timeout(timeout):
                feeding = asyncio.ensure_future(_feed(process, given if isinstance(given, bytes) else None))
                try:
                    assert process.stdout is not None
                    while data := await process.stdout.read(BLOCK_BY):
                        tail(data)
                    await process.wait()
                finally:
                    feeding.cancel()
        except TimeoutError:
            raise ServerTimeout(f"{argv[0]} on {name} did not end within {timeout:g} s.") from None
        finally:
            await end_group(process)
    return Completed(process.returncode if process.returncode is not None else -1, b"", bytes(tail.kept))


async def _feed(process: asyncio.subprocess.Process, data: bytes | None) -> None:
    """Write the standard input and close it; a program that does not read to the end is no error."""
    if process.stdin is None:
        return
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data or b"")
        await process.stdin.drain()
    process.stdin.close()
