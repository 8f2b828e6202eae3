"""A program on a machine that is talked with while it runs: lines in, lines out, for as long as both like."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from cockpit.core.errors import ServerError
from cockpit.hosts import children
from cockpit.hosts.base import BLOCK_BY, LAST_WORDS_BY, Completed, ServerTimeout
from cockpit.hosts.remote import lost

if TYPE_CHECKING:
    from cockpit.hosts.remote import Call


class LocalTalk:
    """`Talk` with a child process."""

    def __init__(self, name: str, program: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._program = program
        self._process = process
        self._errors = children.Tail(lambda _: None)
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(BLOCK_BY):
            self._errors(data)

    async def send(self, data: bytes) -> None:
        """Write to its standard input; see `Talk.send`."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # how it ended is told by `read` and `ended`
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def read(self) -> bytes:
        """What it printed; see `Talk.read`."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(BLOCK_BY)

    async def ended(self, timeout: float = 10.0) -> Completed:
        """How it ended; see `Talk.ended`."""
        try:
            async with asyncio.timeout(timeout):
                rc = await self._process.wait()
                await self._listening
        except TimeoutError:
            raise ServerTimeout(f"{self._program} on {self._name} closed its output and goes on.") from None
        return Completed(rc, b"", bytes(self._errors.kept))

    async def close(self) -> None:
        """Leave nothing of it."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await children.end_group(self._process)


class FarTalk:
    """`Talk` with a command on a server."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._listening = asyncio.ensure_future(call.keep_errors())

    async def send(self, data: bytes) -> None:
        """Write to its standard input; see `Talk.send`."""
        with contextlib.suppress(ConnectionError):
            await self._call.running.write(data)

    async def read(self) -> bytes:
        """What it printed; see `Talk.read`."""
        return await self._call.read()

    async def ended(self, timeout: float = 10.0) -> Completed:
        """How it ended; see `Talk.ended`."""
        try:
            async with asyncio.timeout(timeout):
                rc = await self._call.wait()
                await self._listening
        except TimeoutError:
            raise ServerTimeout(f"{self._call.program} on {self._call.name} closed its output and goes on.") from None
        except ConnectionError:
            raise lost(self._call.name) from None
        return Completed(rc, b"", bytes(self._call.errors))

    async def close(self) -> None:
        """Leave nothing of it."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._call.end()


@contextlib.asynccontextmanager
async def local(name: str, argv: Sequence[str]) -> AsyncGenerator[LocalTalk, None]:
    """`Host.talk` on this machine, which is called `name`."""
    try:
        process = await children.spawn(argv, stdin=asyncio.subprocess.PIPE)
    except OSError as e:
        words = children.not_started(name, argv[0], e).last_words
        raise ServerError(f"{name} cannot start it: {words}.") from None
    talk = LocalTalk(name, argv[0], process)
    try:
        yield talk
    finally:
        await asyncio.shield(talk.close())


@contextlib.asynccontextmanager
async def far(call: Call, timeout: float) -> AsyncGenerator[FarTalk, None]:
    """`Host.talk` with a server: `call` is not started yet."""
    talk: FarTalk | None = None
    try:
        async with asyncio.timeout(timeout):
            await call.start()
        talk = FarTalk(call)
        yield talk
    except TimeoutError:
        if talk is not None:
            raise
        raise ServerTimeout(f"{call.name} did not start {call.program} within {timeout:g} s.") from None
    finally:
        await asyncio.shield(talk.close() if talk is not None else call.end())


def words_of(ended: Completed) -> str:
    """How a program that should have gone on ended, for a sentence."""
    return ended.last_words[:LAST_WORDS_BY] or f"it ended with status {ended.rc}"
