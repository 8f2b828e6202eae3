"""A command on a server behind a link: how it is written, started, read, bounded and ended.

A server hands a command to the user's login shell, which may be any (sh, csh, fish), and whose start-up files may
print. So the command is one line of characters that mean the same to all of them, `sh` decodes it, and a mark that
nobody can guess says where its own output begins and which process group it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from cockpit.core.errors import ServerError
from cockpit.core.text import printable
from cockpit.hosts.base import BLOCK_BY, LAST_WORDS_BY, ServerLost

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _/.,:=@%+-")
_PIECE = 16_000  # characters of one word: kernels bound a word to 128 KiB
_PREAMBLE_BY = 1024 * 1024  # what a shell's start-up files may print before the mark
_KILL_S = 5.0
GATHER_S = 0.5  # how long a block waits to be filled: what is on the disk of a slow copy is never older
_MARK_S = 5.0  # for the mark of a command that is ended before it came


class Running(Protocol):
    """A command that was started over a link. Reads are empty at the end, also where the connection broke."""

    async def write(self, data: bytes) -> None:
        """Its standard input; waits where it does not read. Raises ConnectionError where it reads no more."""

    async def write_eof(self) -> None:
        """End its standard input."""

    async def read(self, limit: int) -> bytes:
        """Of its standard output."""

    async def read_into(self, view: memoryview) -> int:
        """Of its standard output: at least one byte, and what else comes within `GATHER_S` until `view` is full.

        Returns how many; 0 at the end.
        """

    async def read_error(self, limit: int) -> bytes:
        """Of its standard error."""

    async def wait(self) -> int | None:
        """Its exit status, -N after signal N; None where the connection broke before it was told."""

    async def close(self) -> None:
        """Let go of it; it may live on."""


class Link(Protocol):
    """A way to a server that starts commands there. It connects where no connection stands, once a call."""

    async def start(self, command: str) -> Running:
        """Start a command line. Raises ServerLost, LoginRefused, ServerError."""

    async def terminal(self, command: str) -> int:
        """Run a command line on this process's terminal; its exit status. Raises as `start`, and UsageError."""

    async def network_name(self) -> str:
        """The host name or address that the configuration leads to."""

    async def close(self) -> None:
        """End the connection."""


def command_line(argv: Sequence[str], mark: str | None = None) -> str:
    """`argv` as one line that every login shell passes on to `sh` unchanged; with a mark, see `Call`.

    Raises ServerError for a word with a NUL or half a character, which no command can be given.
    """
    if not argv or any("\0" in word for word in argv):
        raise ServerError("A command cannot be sent: it is empty, or a word of it holds a NUL character.")
    script = f"exec {shlex.join(argv)}"
    if mark is not None:
        script = f"printf '\\n{mark} %s\\n' $$; {script}"
    try:
        said = os.fsencode(script)
    except UnicodeEncodeError as e:
        raise ServerError(f"A command cannot be sent: {e.object[e.start]!a} is half a character.") from None
    coded = [chr(b) if b in _PLAIN else f"\\0{b:03o}" for b in said]
    pieces = ("".join(coded[i : i + _PIECE]) for i in range(0, len(coded), _PIECE))
    words = " ".join(f"'{piece}'" for piece in pieces)
    return f"""exec sh -c 'eval "$(printf %b "$@")"' sh {words}"""


class Call:
    """A command on a server: its output after the mark, its group for killing."""

    def __init__(self, name: str, link: Link, argv: Sequence[str]) -> None:
        self.name = name
        self.program = argv[0]
        self.errors = bytearray()  # the last of its standard error
        self._argv = argv
        self._link = link
        self._mark = f"@ekvi-{secrets.token_hex(8)}"
        self._running: Running | None = None
        self._head = b""  # what came before the mark
        self._rest = b""
        self._group: int | None = None
        self._ended = False

    async def start(self) -> None:
        """Start it and wait for the mark. Raises ServerLost, LoginRefused, ServerError."""
        self._running = await self._link.start(command_line(self._argv, self._mark))
        await self._hear_mark()

    async def _hear_mark(self) -> None:
        found = re.compile(rb"(?:^|\n)" + self._mark.encode() + rb" ([0-9]{1,10})\n")
        while (begin := found.search(self._head)) is None:
            if len(self._head) > _PREAMBLE_BY:
                raise ServerError(f"The login shell on {self.name} prints without end before a command begins.")
            more = await self.running.read(BLOCK_BY)
            if not more:
                raise await self._never_began(self._head)
            self._head += more
        self._group = int(begin[1])
        self._rest = self._head[begin.end() :]

    async def _never_began(self, head: bytes) -> ServerError:
        assert self._running is not None
        words = await self._running.read_error(LAST_WORDS_BY) or head
        rc = await self._running.wait()
        self._ended = True
        if rc is None:
            return lost(self.name)
        return ServerError(
            f"{self.name} lets us in but runs no command: {last_line(words) or f'its shell ended with status {rc}'}.",
            hint="The account needs a login shell that runs commands.",
        )

    @property
    def running(self) -> Running:
        """What the link started."""
        assert self._running is not None
        return self._running

    async def read(self, limit: int = BLOCK_BY) -> bytes:
        """At least one byte of its output, at most `limit`; empty at its end."""
        if self._rest:
            data, self._rest = self._rest[:limit], self._rest[limit:]
            return data
        return await self.running.read(limit)

    async def read_into(self, view: memoryview) -> int:
        """At least one byte of its output, at most as many as `view` has room for; 0 at its end."""
        if self._rest:
            data = await self.read(len(view))
            view[: len(data)] = data
            return len(data)
        return await self.running.read_into(view)

    async def keep_errors(self) -> None:
        """Read its standard error to the end and keep the last of it."""
        while data := await self.running.read_error(BLOCK_BY):
            self.errors += data
            del self.errors[:-LAST_WORDS_BY]

    async def feed(self, data: bytes | AsyncIterator[bytes] | None) -> None:
        """Write its standard input and end it; that it does not read to the end is no error."""
        with contextlib.suppress(ConnectionError):
            if isinstance(data, bytes):
                for at in range(0, len(data), BLOCK_BY):
                    await self.running.write(data[at : at + BLOCK_BY])
            elif data is not None:
                async for block in data:
                    await self.running.write(block)
            await self.running.write_eof()

    async def wait(self) -> int:
        """Its exit status, -N after signal N. Raises ServerLost."""
        rc = await self.running.wait()
        self._ended = True  # also where the connection broke: ending it would need another login
        if rc is None:
            raise lost(self.name)
        return rc

    async def end(self) -> None:
        """Leave nothing of it there, where it has not ended by itself and the server still listens."""
        if self._running is None:
            return
        try:
            if not self._ended and self._group is None:  # who was cancelled early must still learn whom to end
                with contextlib.suppress(ServerError, TimeoutError):
                    async with asyncio.timeout(_MARK_S):
                        await self._hear_mark()
            if not self._ended and self._group is not None:
                await asyncio.shield(self._kill())
        finally:
            await asyncio.shield(self._running.close())

    async def _kill(self) -> None:
        with contextlib.suppress(ServerError, TimeoutError):
            async with asyncio.timeout(_KILL_S):
                kill = f"kill -9 -{self._group} 2>/dev/null || kill -9 {self._group}"  # dash knows no `--` there
                killing = await self._link.start(command_line(["sh", "-c", kill]))
                try:
                    await killing.wait()
                finally:
                    await killing.close()


def lost(name: str) -> ServerLost:
    """The error of a connection that broke."""
    return ServerLost(f"The connection to {name} broke.", hint="What was started there goes on: attach again.")


def last_line(words: bytes, most: int = 300) -> str:
    """The last line that says something, safe to show."""
    lines = [line.strip() for line in printable(words.decode(errors="replace")).splitlines() if line.strip()]
    return lines[-1][:most].rstrip(".") if lines else ""
