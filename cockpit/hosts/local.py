"""The machine that the cockpit itself runs on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.core.records import Chunk
from cockpit.hosts import files
from cockpit.hosts.base import BLOCK_BY, POLL_S, Completed, Entry, FileTruncated, ServerTimeout

_P = ParamSpec("_P")
_T = TypeVar("_T")

_IDLE_LOOKS = 20  # looks without news before the pace slackens
_SLACKEST = 8  # and how far, as a multiple of the interval
_COPY_BY = 4 * 1024 * 1024
_REAP_S = 5.0


class LocalHost:
    """`Host` by plain files and child processes. File work is done in threads, as a disk may stand still.

    `io_timeout_s` bounds each single piece of file work, in seconds.
    """

    def __init__(self, name: str = "this machine", *, io_timeout_s: float = 30.0) -> None:
        self.name = name
        self._io_timeout_s = io_timeout_s
        self._workdirs: set[str] = set()

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout: float = 30.0) -> Completed:  # noqa: A002
        """Run a command to its end, in a session of its own; see `Host.run`."""
        try:
            process = await _spawn(argv, piped=input is not None)
        except (FileNotFoundError, NotADirectoryError) as e:
            return Completed(127, b"", f"{argv[0]}: {e.strerror}".encode())
        except PermissionError as e:
            return Completed(126, b"", f"{argv[0]}: {e.strerror}".encode())
        except OSError as e:
            raise ServerError(f"{argv[0]} could not be started on {self.name}: {e.strerror}.") from e
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(input)
        except TimeoutError:
            raise ServerTimeout(f"{argv[0]} on {self.name} did not end within {timeout:g} s.") from None
        finally:
            await _end_group(process)
        return Completed(process.returncode if process.returncode is not None else -1, out, err)

    async def read(self, path: str, offset: int = 0, limit: int = BLOCK_BY) -> bytes:
        """Bytes of a file; see `Host.read`."""
        return await self._io(path, files.read, path, offset, limit)

    async def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """Write a file atomically; see `Host.put`."""
        await self._io(path, files.write_atomic, self.name, data, path, mode)

    async def get(self, path: str, target: Path, *, sha256: str | None = None) -> str:
        """Copy a file to `target`, block by block so that it can be cancelled; see `Host.get`."""
        transfer = files.Transfer(self.name, path, target)
        try:
            await self._io(path, transfer.open)
            while await self._io(path, transfer.step, _COPY_BY):
                pass
            if sha256 is not None and transfer.sha256 != sha256:
                raise ServerError(f"{path} arrived from {self.name} with another checksum than it left with.")
            await self._io(str(target), transfer.commit)
        finally:
            await asyncio.to_thread(transfer.discard)
        return transfer.sha256

    async def mkdirs(self, path: str) -> None:
        """Make folders, new ones 0700; see `Host.mkdirs`."""
        await self._io(path, files.make_folders, self.name, path)

    async def listdir(self, path: str) -> list[Entry]:
        """All regular files below a folder; see `Host.listdir`."""
        return await self._io(path, files.list_files, path)

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
        await self._io(path, files.remove_tree, self.name, path, frozenset(self._workdirs))

    async def close(self) -> None:
        """Nothing is held open between calls."""

    async def _io(self, what: str, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """File work in a thread. OSError becomes ServerError, a standstill ServerTimeout."""
        try:
            async with asyncio.timeout(self._io_timeout_s):
                return await asyncio.to_thread(work, *args, **kwargs)
        except TimeoutError:
            raise ServerTimeout(f"The disk of {self.name} did not answer in time for {what}.") from None
        except OSError as e:
            raise ServerError(f"{e.filename or what} on {self.name} cannot be used: {e.strerror or e}.") from e


async def _spawn(argv: Sequence[str], *, piped: bool) -> asyncio.subprocess.Process:
    """Start a command; cancelled in the middle of it, nothing of what was started stays.

    asyncio itself would then kill the one process and wait for its pipes, which a grandchild may hold for long.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # it did not start at all
            await _end_group(await starting)
        raise


async def _end_group(process: asyncio.subprocess.Process) -> None:
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
