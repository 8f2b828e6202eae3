"""`Host` over SSH: commands, files and followed files over whichever link leads to the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.core.records import Access, Chunk
from cockpit.hosts import children, far_call, ssh_transfer, talk
from cockpit.hosts.base import BLOCK_BY, POLL_S, TREE_TIMES, Completed, Entry, Progress, ServerTimeout, Talk
from cockpit.hosts.following import Following
from cockpit.hosts.pool import Pooled
from cockpit.hosts.remote import Call, command_line

_T = TypeVar("_T")

MOST_OUTPUT_BY = 64 * 1024 * 1024  # of one command: a server must not fill our memory
MOST_ENTRIES = 200_000  # of one folder
_LISTING_BY = 64 * 1024 * 1024
_CURSORS_S = 0.2  # between two looks at cursors that the caller may have changed


class SshHost:
    """A server over SSH. `io_timeout_s` bounds each file operation, and each standstill of a transfer, in seconds."""

    def __init__(self, access: Access, *, io_timeout_s: float = 60.0) -> None:
        self.name = access.address
        self.access = access
        self._io_timeout_s = io_timeout_s
        self._workdirs: set[str] = set()
        self._pooled = Pooled(access)

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout: float = 30.0) -> Completed:  # noqa: A002
        """Run a command to its end; see `Host.run`. More than 64 MiB of output: ServerError."""
        call = Call(self.name, self._pooled.link(), argv)
        try:
            async with asyncio.timeout(timeout), self._pooled.slot():
                try:
                    await call.start()
                    out = await together(self._output(call), call.keep_errors(), background=call.feed(input))
                    rc = await call.wait()
                finally:
                    await call.end()
        except TimeoutError:
            raise ServerTimeout(f"{argv[0]} on {self.name} did not end within {timeout:g} s.") from None
        return Completed(rc, out, bytes(call.errors))

    async def _output(self, call: Call) -> bytes:
        parts, size = [], 0
        while data := await call.read():
            parts.append(data)
            size += len(data)
            if size > MOST_OUTPUT_BY:
                raise ServerError(f"{call.program} on {self.name} prints more than {MOST_OUTPUT_BY} bytes: given up.")
        return b"".join(parts)

    async def stream(
        self,
        argv: Sequence[str],
        *,
        output: Callable[[bytes], None],
        input: bytes | Path | None = None,  # noqa: A002
        timeout: float = 3600.0,
    ) -> Completed:
        """Run a long command and hand on what it prints; see `Host.stream`."""
        file = children.open_input(input) if isinstance(input, Path) else None
        tail = children.Tail(output)
        call = Call(self.name, self._pooled.link(), ["sh", "-c", 'exec "$@" 2>&1', "sh", *argv])

        async def show() -> None:
            while data := await call.read():
                tail(data)

        with file or contextlib.nullcontext():
            given = _blocks(file) if file else input if isinstance(input, bytes) else None
            try:
                async with asyncio.timeout(timeout):
                    await call.start()
                    await together(show(), call.keep_errors(), background=call.feed(given))
                    rc = await call.wait()
            except TimeoutError:
                raise ServerTimeout(f"{argv[0]} on {self.name} did not end within {timeout:g} s.") from None
            finally:
                await call.end()
        return Completed(rc, b"", bytes(tail.kept))

    def talk(self, argv: Sequence[str]) -> contextlib.AbstractAsyncContextManager[Talk]:
        """Start a program and talk with it; see `Host.talk`."""
        return talk.far(self.call(argv), self._io_timeout_s)

    async def shell(self, argv: Sequence[str]) -> int:
        """Run an interactive command on this terminal; see `Host.shell`."""
        return await self._pooled.link().terminal(command_line(argv))

    async def network_name(self) -> str:
        """The HostName of the SSH configuration; see `Host.network_name`."""
        return await self._pooled.link().network_name()

    async def read(self, path: str, offset: int = 0, limit: int = BLOCK_BY) -> bytes:
        """Bytes of a file; see `Host.read`."""
        return await self._ask({"op": "read", "path": path, "offset": offset, "limit": limit}, most=limit)

    async def mkdirs(self, path: str) -> None:
        """Make folders, new ones 0700; see `Host.mkdirs`."""
        await self._ask({"op": "mkdirs", "path": path}, folder=path)

    async def listdir(self, path: str) -> list[Entry]:
        """All regular files below a folder; see `Host.listdir`. More than 200,000: ServerError."""
        request = {"op": "listdir", "path": path, "limit": MOST_ENTRIES + 1}
        lines = (await self._ask(request, most=_LISTING_BY, times=TREE_TIMES)).splitlines()
        if len(lines) > MOST_ENTRIES:
            raise ServerError(f"{path} on {self.name} holds more than {MOST_ENTRIES} files: it is not listed.")
        return sorted((far_call.entry(self.name, line) for line in lines), key=lambda e: e.path)

    async def workdir(self, explicit: str | None = None) -> str:
        """`explicit`, else the server's $EKVI_WORKDIR, else below its $XDG_STATE_HOME; see `Host.workdir`."""
        answer = far_call.parse(self.name, await self._ask({"op": "workdir", "explicit": explicit}))
        path = answer.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            raise LaunchRefused(
                f"The work folder {far_call.safe(answer.get('said'))!r} on {self.name} is not an absolute path.",
                hint="Set the server's workdir, or EKVI_WORKDIR there, to a path that begins with / or ~.",
            )
        self._workdirs.add(path)
        return path

    async def remove_tree(self, path: str) -> None:
        """Remove a folder below a work folder; see `Host.remove_tree`."""
        request = {"op": "remove_tree", "path": path, "roots": sorted(self._workdirs)}
        if far_call.parse(self.name, await self._ask(request, times=TREE_TIMES)).get("refused"):
            raise ServerError(f"{path} on {self.name} is not below a work folder of the cockpit and is left alone.")

    async def _ask(
        self, request: dict[str, Any], *, most: int = BLOCK_BY, folder: str | None = None, times: int = 1
    ) -> bytes:
        """One file operation that takes no more than a request; what it printed."""
        far = far_call.Far(self, request, self._io_timeout_s * times, folder)
        async with self.far(far):
            data = await far.take(most)
            await far.done()
        return data

    @contextlib.asynccontextmanager
    async def far(self, far: far_call.Far) -> AsyncIterator[None]:
        """A file operation under way, with a session of its own."""
        async with self._pooled.slot():
            try:
                await far.start()
                yield
            except TimeoutError:
                raise ServerTimeout(f"{self.name} did not answer in time for {far.path}.") from None
            finally:
                await far.end()

    def call(self, argv: Sequence[str]) -> Call:
        """A command that is not started yet."""
        return Call(self.name, self._pooled.link(), argv)

    async def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """Write a file atomically; see `Host.put`."""
        await ssh_transfer.put(self, data, path, mode, self._io_timeout_s)

    async def put_file(self, source: Path, path: str, *, mode: int = 0o600, progress: Progress | None = None) -> str:
        """Copy a local file there; see `Host.put_file`."""
        return await ssh_transfer.put_file(self, source, path, mode, progress, self._io_timeout_s)

    async def get(
        self,
        path: str,
        target: Path,
        *,
        sha256: str | None = None,
        max_by: int | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Copy a file of the server; see `Host.get`."""
        fetch = ssh_transfer.Fetch(self, path, target, sha256, max_by, progress, self._io_timeout_s)
        return await fetch.run()

    async def follow(
        self, cursors: MutableMapping[str, int], *, interval: float = POLL_S
    ) -> AsyncGenerator[Chunk, None]:
        """Bytes that files gain; see `Host.follow`. One program there looks at all of them."""
        following = Following(self.name, cursors)
        call = far_call.program(self, "tail")
        reading: asyncio.Task[bytes] | None = None
        errors: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._io_timeout_s):
                await call.start()
                first = json.dumps({"interval": interval, "block": BLOCK_BY}).encode() + b"\n"
                await call.running.write(far_call.source("tail") + first + following.changes())
            errors = asyncio.ensure_future(call.keep_errors())
            while True:
                reading = reading or asyncio.ensure_future(call.read())
                done, _ = await asyncio.wait({reading}, timeout=_CURSORS_S)
                if done:
                    data, reading = reading.result(), None
                    if not data:
                        raise await far_call.failure(self, call, errors)
                    for chunk in following.feed(data):
                        yield chunk
                if news := following.changes():
                    async with asyncio.timeout(self._io_timeout_s):
                        await call.running.write(news)
        except TimeoutError:
            raise ServerTimeout(f"{self.name} did not answer in time for followed files.") from None
        except ConnectionError:
            raise await far_call.failure(self, call, errors) from None
        finally:
            for task in (reading, errors):
                if task is not None:
                    task.cancel()
            await call.end()

    async def close(self) -> None:
        """Let go of the connection; the last Host that uses it ends it."""
        await self._pooled.close()


async def together(
    first: Coroutine[Any, Any, _T], second: Coroutine[Any, Any, None], *, background: Coroutine[Any, Any, None]
) -> _T:
    """Do all at once; the first error, or the end of the first two, ends the rest. Returns what the first returns."""
    one, two, rest = asyncio.ensure_future(first), asyncio.ensure_future(second), asyncio.ensure_future(background)
    try:
        answer, _ = await asyncio.gather(one, two)
        return answer
    finally:
        for task in (one, two, rest):
            task.cancel()
        await asyncio.gather(one, two, rest, return_exceptions=True)


async def _blocks(file: Any) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, BLOCK_BY):
        yield data
