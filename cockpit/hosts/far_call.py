"""Our own programs on a server (far.py, tail.py): sent along, asked, and what they answer checked."""

from __future__ import annotations

import asyncio
import errno
import json
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ServerError
from cockpit.core.text import printable
from cockpit.hosts import far
from cockpit.hosts.base import BLOCK_BY, SLOW_DISK_BY_S, Entry, ServerDiskFull
from cockpit.hosts.remote import Call, last_line

if TYPE_CHECKING:
    from cockpit.hosts.ssh import SshHost

# Source and data come by standard input: a command line has a bound, and stands in process lists.
_BOOT = "import sys;r=sys.stdin.buffer;v=sys.version_info;v<(3,8) and sys.exit(93);exec(r.read(int(r.readline())))"
_TOO_OLD = 93
_LINE_BY = 64 * 1024


@cache
def source(name: str) -> bytes:
    """A program as its far end reads it: its length in a line, its source."""
    text = resources.files("cockpit.hosts").joinpath(f"{name}.py").read_bytes()
    return b"%d\n" % len(text) + text


def program(host: SshHost, name: str) -> Call:
    """The call that will run a program; its source is written by the caller."""
    return host.call([host.access.python, "-I", "-S", "-c", _BOOT])


class Far:
    """One file operation on a server: a request, then what its far end says and sends.

    Raises ServerError for what the far end reports, ServerDiskFull naming `folder`; TimeoutError is the caller's.
    """

    def __init__(self, host: SshHost, request: dict[str, Any], timeout: float, folder: str | None = None) -> None:
        self.path = str(request.get("path", "its folders"))
        self._host = host
        self._request = request
        self._timeout = timeout
        self._folder = folder
        self._call = program(host, "far")
        self._errors: asyncio.Task[None] | None = None
        self._rest = b""

    async def start(self) -> None:
        """Start the program and hand it the request."""
        async with asyncio.timeout(self._timeout):
            await self._call.start()
            self._errors = asyncio.ensure_future(self._call.keep_errors())
            await self.write(source("far") + json.dumps(self._request).encode() + b"\n")

    async def write(self, data: bytes) -> None:
        """Send bytes; the far end's own error counts where it hears no more."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._call.running.write(data)
        except ConnectionError:
            raise await self.failed() from None

    async def line(self, work_by: int = 0) -> dict[str, Any]:
        """The next JSON line that it says, once its disk has gone through `work_by` bytes."""
        while b"\n" not in self._rest:
            if len(self._rest) > _LINE_BY:
                raise ServerError(f"{self._host.name} sent a line without end in answer to {self.path}.")
            data = await self._read(BLOCK_BY, work_by)
            if not data:
                raise await self.failed()
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return parse(self._host.name, line)

    async def fill(self, view: memoryview, work_by: int = 0) -> int:
        """Put what it sends into `view`, at least one byte, once its disk has gone through `work_by`; how many."""
        if self._rest:
            size = min(len(view), len(self._rest))
            view[:size], self._rest = self._rest[:size], self._rest[size:]
            return size
        async with asyncio.timeout(self._timeout + work_by / SLOW_DISK_BY_S):
            size = await self._call.read_into(view)
        if not size:
            raise await self.failed()
        return size

    async def take(self, most: int) -> bytes:
        """All that it sends, at most `most` bytes."""
        parts, size = [self._rest], len(self._rest)
        while data := await self._read(BLOCK_BY):
            parts.append(data)
            size += len(data)
            if size > most:
                raise ServerError(f"{self._host.name} sent more than {most} bytes for {self.path}: given up.")
        return b"".join(parts)

    async def _read(self, limit: int, work_by: int = 0) -> bytes:
        async with asyncio.timeout(self._timeout + work_by / SLOW_DISK_BY_S):
            return await self._call.read(limit)

    async def done(self) -> None:
        """Wait for its end. Raises ServerError where it reports one."""
        async with asyncio.timeout(self._timeout):
            if await self._call.wait() != 0:
                raise await self.failed()

    async def failed(self) -> ServerError:
        """Why it ended."""
        return await failure(self._host, self._call, self._errors, self.path, self._folder)

    async def end(self) -> None:
        """Leave nothing of it."""
        if self._errors is not None:
            self._errors.cancel()
        await self._call.end()


async def failure(
    host: SshHost, call: Call, errors: asyncio.Task[None] | None, path: str = "a file", folder: str | None = None
) -> ServerError:
    """The error of a program of ours that ended. Raises nothing but TimeoutError."""
    try:
        async with asyncio.timeout(10):
            rc = await call.wait()
            if errors is not None:
                await asyncio.wait({errors})
    except ServerError as e:
        return e
    python = host.access.python
    if rc in (126, 127, _TOO_OLD):
        why = "is older than 3.8" if rc == _TOO_OLD else f"cannot be started ({last_line(bytes(call.errors))})"
        return ServerError(
            f"Python as {python!r} on {host.name} {why}.",
            hint="Install Python 3.8 or newer there, or set the server's python to one that is there.",
        )
    return reported(host.name, bytes(call.errors), rc, path, folder)


def reported(name: str, words: bytes, rc: int, path: str, folder: str | None) -> ServerError:
    """The error that stands in the last line of standard error."""
    _, mark, text = words.decode(errors="replace").rpartition(far.MARK)
    try:
        said = json.loads(text) if mark else {}
        number, why, file = said.get("errno"), safe(said.get("strerror")), safe(said.get("file") or path)
    except (ValueError, AttributeError):
        number, why, file = None, "", path
    if number in (errno.ENOSPC, errno.EDQUOT):
        return ServerDiskFull(name, folder or str(PurePosixPath(path).parent))
    if number is not None:
        return ServerError(f"{file} on {name} cannot be used: {why}.")
    return ServerError(f"{path} on {name} cannot be used: {last_line(words) or f'status {rc}'}.")


def parse(name: str, line: bytes) -> dict[str, Any]:
    """One JSON object of a far end."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise ServerError(f"{name} sent what is no answer to the cockpit: another program answers there.")
    return said


def entry(name: str, line: bytes) -> Entry:
    """One line of a listing; a path that leads out of the folder is refused."""
    try:
        path, size = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        path, size = None, None
    if type(size) is not int or size < 0 or not isinstance(path, str) or not _inside(path):
        raise ServerError(f"{name} lists a file that cannot be: {safe(path)!r}.")
    return Entry(path, size)


def _inside(path: str) -> bool:
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def safe(value: object) -> str:
    """Something that a server said, for a sentence."""
    return " ".join(printable(str(value)).split())[:300]
