"""The machine that the cockpit itself runs on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ParamSpec, TypeVar

from cockpit.core.errors import LaunchRefused, ServerError, UsageError
from cockpit.core.records import Access, Chunk
from cockpit.hosts import children, files, talk, terminal, transfer
from cockpit.hosts.base import (
    BLOCK_BY,
    POLL_S,
    SLOW_DISK_BY_S,
    TREE_TIMES,
    Completed,
    Entry,
    FileTruncated,
    Progress,
    ServerTimeout,
    Talk,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_IDLE_LOOKS = 20  # looks without news before the pace slackens
_SLACKEST = 8  # and how far, as a multiple of the interval
_COPY_BY = 4 * 1024 * 1024


class LocalHost:
    """`Host` by plain files and child processes. File work is done in threads, as a disk may stand still.

    `io_timeout_s` bounds each single piece of file work, in seconds.
    """

    def __init__(self, name: str = "this machine", *, io_timeout_s: float = 30.0) -> None:
        self.name = name
        self.access = Access()
        self._io_timeout_s = io_timeout_s
        self._workdirs: set[str] = set()

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout: float = 30.0) -> Completed:  # noqa: A002
        """Run a command to its end, in a session of its own; see `Host.run`."""
        stdin = asyncio.subprocess.DEVNULL if input is None else asyncio.subprocess.PIPE
        try:
            process = await children.spawn(argv, stdin=stdin)
        except OSError as e:
            return children.not_started(self.name, argv[0], e)
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(input)
        except TimeoutError:
            raise ServerTimeout(f"{argv[0]} on {self.name} did not end within {timeout:g} s.") from None
        finally:
            await children.end_group(process)
        return Completed(process.returncode if process.returncode is not None else -1, out, err)

    async def stream(
        self,
        argv: Sequence[str],
        *,
        output: Callable[[bytes], None],
        input: bytes | Path | None = None,  # noqa: A002
        timeout: float = 3600.0,
    ) -> Completed:
        """Run a long command and hand on what it prints; see `Host.stream`."""
        return await children.stream(self.name, argv, output, input, timeout)

    def talk(self, argv: Sequence[str]) -> AbstractAsyncContextManager[Talk]:
        """Start a program and talk with it; see `Host.talk`."""
        return talk.local(self.name, argv)

    async def shell(self, argv: Sequence[str]) -> int:
        """Run an interactive command on this terminal; see `Host.shell`. Raises UsageError."""
        try:
            return await terminal.lend(argv)
        except OSError as e:
            raise UsageError(f"{argv[0]} could not be started on {self.name}: {e.strerror}.") from e

    async def network_name(self) -> str:
        """This machine's own host name; see `Host.network_name`."""
        return socket.gethostname()

    async def read(self, path: str, offset: int = 0, limit: int = BLOCK_BY) -> bytes:
        """Bytes of a file; see `Host.read`."""
        return await self._io(path, files.read, path, offset, limit)

    async def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """Write a file atomically; see `Host.put`."""
        await self._io(path, files.write_atomic, self.name, data, path, mode)

    async def put_file(self, source: Path, path: str, *, mode: int = 0o600, progress: Progress | None = None) -> str:
        """Copy a file from this machine to this machine; see `Host.put_file`."""
        return await self._copy(transfer.Bring(self.name, source, path, mode), progress)

    async def get(
        self,
        path: str,
        target: Path,
        *,
        sha256: str | None = None,
        max_by: int | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Copy a file to `target`, block by block so that it can be cancelled; see `Host.get`."""
        return await self._copy(transfer.Fetch(self.name, path, target, sha256=sha256, max_by=max_by), progress)

    async def mkdirs(self, path: str) -> None:
        """Make folders, new ones 0700; see `Host.mkdirs`."""
        await self._io(path, files.make_folders, self.name, path)

    async def listdir(self, path: str) -> list[Entry]:
        """All regular files below a folder; see `Host.listdir`."""
        return await self._within(self._io_timeout_s * TREE_TIMES, path, files.list_files, path)

    async def follow(
        self, cursors: MutableMapping[str, int], *, interval: float = POLL_S
    ) -> AsyncGenerator[Chunk, None]:
        """Bytes that files gain; see `Host.follow`. One look at all files is one trip to a thread."""
        idle = 0
        served: set[str] = set()
        while True:
            # Those that had their turn go to the end: many busy files must not starve the last of them.
            order = sorted(cursors.items(), key=lambda item: item[0] in served)
            found, cut = await self._io("followed files", files.look, order)
            served = {chunk.path for chunk in found}
            for chunk in found:
                # The caller may have dropped or moved this cursor while an earlier block was in its hands.
                if cursors.get(chunk.path) == chunk.offset:
                    cursors[chunk.path] = chunk.offset + len(chunk.data)
                    yield chunk
            if cut is not None and cursors.get(cut[0], 0) > cut[1]:
                raise FileTruncated(self.name, cut[0], cut[1], cursors[cut[0]])
            idle = 0 if found else min(idle + 1, _IDLE_LOOKS * _SLACKEST)
            if len(found) == files.MOST_BLOCKS or any(len(chunk.data) == BLOCK_BY for chunk in found):
                continue  # more is waiting
            await asyncio.sleep(interval * min(2 ** (idle // _IDLE_LOOKS), _SLACKEST))

    async def workdir(self, explicit: str | None = None) -> str:
        """`explicit`, else $EKVI_WORKDIR, else $XDG_STATE_HOME/ekvi-cockpit/server; see `Host.workdir`.

        Raises LaunchRefused where it is not an absolute path.
        """
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        said = explicit or os.environ.get("EKVI_WORKDIR") or f"{state}/ekvi-cockpit/server"
        if not said.startswith(("/", "~")):
            raise LaunchRefused(
                f"The work folder {said!r} on {self.name} is not an absolute path.",
                hint="Set the server's workdir, or EKVI_WORKDIR, to a path that begins with / or ~.",
            )
        resolved = await self._io(said, files.resolve, said)
        self._workdirs.add(resolved)
        return resolved

    async def remove_tree(self, path: str) -> None:
        """Remove a folder below a work folder; see `Host.remove_tree`."""
        bound = self._io_timeout_s * TREE_TIMES
        await self._within(bound, path, files.remove_tree, self.name, path, frozenset(self._workdirs))

    async def close(self) -> None:
        """Nothing is held open between calls."""

    async def _copy(self, copy: transfer.Transfer, progress: Progress | None) -> str:
        try:
            total = await self._io(copy.path, copy.open)
            while await self._io(copy.path, copy.step, _COPY_BY):
                if progress is not None:
                    progress(copy.done, max(total, copy.done))
            await self._within(self._io_timeout_s + copy.done / SLOW_DISK_BY_S, copy.path, copy.commit)
        finally:
            await asyncio.to_thread(copy.discard)
        return copy.sha256

    async def _io(self, what: str, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """File work in a thread. OSError becomes ServerError, a standstill ServerTimeout."""
        return await self._within(self._io_timeout_s, what, work, *args, **kwargs)

    async def _within(
        self, seconds: float, what: str, work: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.to_thread(work, *args, **kwargs)
        except TimeoutError:
            raise ServerTimeout(f"The disk of {self.name} did not answer in time for {what}.") from None
        except OSError as e:
            raise ServerError(f"{e.filename or what} on {self.name} cannot be used: {e.strerror or e}.") from e
