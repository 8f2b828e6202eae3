"""Files to a server and from it: whole or not at all, resumed where a copy broke off, both ends' sums compared."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ServerError, StoreError
from cockpit.hosts.base import BLOCK_BY, SLOW_DISK_BY_S, Progress, ServerTimeout, too_large
from cockpit.hosts.far_call import Far
from cockpit.hosts.transfer import beside, store_error

if TYPE_CHECKING:
    from cockpit.hosts.ssh import SshHost

_STEP_BY = 1024 * 1024  # one piece of disk work
_BLOCK_BY = 2 * 1024 * 1024  # of a copy that arrives: below it each costs more than its bytes
_BLOCKS = 4  # what waits for the disk at most


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _key(*parts: object) -> str:
    """Names a copy, so that only the rest of the very same file is added to what is there."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()[:16]


async def put(host: SshHost, data: bytes, path: str, mode: int, timeout: float) -> None:
    """`Host.put`: everything in one go."""
    request = {"op": "put", "path": path, "mode": mode, "size": len(data), "key": None}
    far = Far(host, request, timeout)
    sha256 = hashlib.sha256(data).hexdigest()
    async with host.far(far):
        for at in range(0, len(data), BLOCK_BY):
            await far.write(data[at : at + BLOCK_BY])
        await far.write(_line({"sha256": sha256}))
        await far.line()
        _agree(host.name, path, (await far.line()).get("sha256"), sha256)
        await far.done()


def _agree(name: str, path: str, theirs: object, ours: str) -> None:
    if theirs != ours:
        raise ServerError(f"{path} on {name} has another checksum than what was sent: it was not put in place.")


async def put_file(
    host: SshHost, source: Path, path: str, mode: int, progress: Progress | None, timeout: float
) -> str:
    """`Host.put_file`."""
    try:
        with source.open("rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise StoreError(f"{source} is not a regular file.")
            key = _key(source, info.st_size, info.st_mtime_ns)
            request = {"op": "put", "path": path, "mode": mode, "size": info.st_size, "key": key}
            return await _send(host, file, Far(host, request, timeout), source, progress)
    except OSError as e:
        raise StoreError(f"{source} cannot be read: {e.strerror or e}.") from e


async def _send(host: SshHost, file: FileIO, far: Far, source: Path, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    size = os.fstat(file.fileno()).st_size
    async with host.far(far):
        have = (await far.line(size)).get("have")  # it sums what is there
        if type(have) is not int or not 0 <= have <= size:
            raise ServerError(f"{host.name} says that it has {have!r} bytes of {source}, which cannot be.")
        done = 0
        while done < size:
            data = await asyncio.to_thread(
                _summed, file, min(_STEP_BY, (have if done < have else size) - done), digest
            )
            if not data:
                raise StoreError(f"{source} became shorter while it was sent.")
            for at in range(0, len(data) if done >= have else 0, BLOCK_BY):
                await far.write(data[at : at + BLOCK_BY])
            done += len(data)
            if progress is not None and done >= have:
                progress(done, size)
        await far.write(_line({"sha256": digest.hexdigest()}))
        _agree(host.name, far.path, (await far.line(size)).get("sha256"), digest.hexdigest())
        await far.done()
    return digest.hexdigest()


def _summed(file: FileIO, limit: int, digest: Any) -> bytes:
    data = file.read(limit)
    digest.update(data)
    return data


class _Part:
    """A file that fills up beside its name. Blocking, raises OSError.

    A lock keeps `close`, which may come while a step is still under way in a thread, from closing the file under it.
    """

    def __init__(self, target: Path, key: str) -> None:
        self.have = 0
        self.digest = hashlib.sha256()
        self.closed = False
        self._target = target
        self._path = target.parent / f"{beside(target)}{key}.part"
        self._file: FileIO | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Take up what an earlier copy of the same file left."""
        with self._lock:
            if self.closed:
                return
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = FileIO(os.open(self._path, flags, 0o666), "r+")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()  # it is another cockpit's, and stays
                self._file = None
                raise
            while data := self._file.read(_STEP_BY):
                self.digest.update(data)
                self.have += len(data)

    def _sweep(self) -> None:
        """Remove what was left of earlier versions of this very file: it may be large, and nobody else would."""
        left = re.compile(re.escape(beside(self._target)) + r"([0-9a-f]{8}|[0-9a-f]{16}\.part)")
        for old in self._target.parent.iterdir():
            if old.name != self._path.name and left.fullmatch(old.name):
                old.unlink(missing_ok=True)

    def write(self, data: memoryview) -> None:
        """Add bytes."""
        with self._lock:
            if self._file is None:
                return
            self.digest.update(data)
            self.have += len(data)
            while data:
                data = data[self._file.write(data) :]

    def commit(self) -> None:
        """Force it to the disk and give it its name."""
        with self._lock:
            assert self._file is not None
            os.fsync(self._file.fileno())
            self._path.replace(self._target)

    def close(self, *, keep: bool) -> None:
        """Let go of it; what is kept is resumed by the next copy."""
        with self._lock:
            self.closed = True
            if self._file is None:
                return
            if not keep:
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


class Fetch:
    """`Host.get`."""

    def __init__(
        self,
        host: SshHost,
        path: str,
        target: Path,
        sha256: str | None,
        max_by: int | None,
        progress: Progress | None,
        timeout: float,
    ) -> None:
        self._host = host
        self._path = path
        self._target = target
        self._expected = sha256
        self._max_by = max_by
        self._progress = progress
        self._timeout = timeout

    async def run(self) -> str:
        """Copy; where what an earlier copy left does not fit, once more from the start."""
        return await self._once() or await self._once() or self._wrong()

    def _wrong(self) -> str:
        raise ServerError(f"{self._path} arrived from {self._host.name} with another checksum than it left with.")

    async def _once(self) -> str | None:
        far = Far(self._host, {"op": "get", "path": self._path}, self._timeout)
        async with self._host.far(far):
            info = await far.line()
            size, mtime = info.get("size"), info.get("mtime_ns")
            if type(size) is not int or size < 0:
                raise ServerError(f"{self._host.name} says that {self._path} has {size!r} bytes, which cannot be.")
            if self._max_by is not None and size > self._max_by:
                raise too_large(self._host.name, self._path, self._max_by)
            part = _Part(self._target, _key(self._host.name, self._path, size, mtime))
            keep = True
            try:
                await self._in_time(asyncio.to_thread(part.open), size)
                resumed = part.have
                if resumed <= size:
                    await far.write(_line({"offset": resumed}))
                    await self._fill(far, part, size)
                    theirs = (await far.line(resumed)).get("sha256")
                    await far.done()
                keep = False
                ours: str = part.digest.hexdigest()
                if resumed > size or ours != theirs or self._expected not in (None, ours):
                    return self._wrong() if not resumed else None
                await self._in_time(asyncio.to_thread(part.commit), size)
            except StoreError:
                keep = False
                raise
            finally:
                await asyncio.shield(asyncio.to_thread(part.close, keep=keep))
        return ours

    async def _fill(self, far: Far, part: _Part, size: int) -> None:
        """Sum and write what comes, in one thread and in turn, while the next of it is on its way."""
        done = part.have
        unsent = done  # of which it makes the sum before it sends more
        # The same few blocks over and over: memory that is asked for anew costs as much as the copying.
        free = [memoryview(bytearray(min(_BLOCK_BY, size - done))) for _ in range(_BLOCKS)]
        writing: deque[tuple[asyncio.Future[None], memoryview]] = deque()
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        try:
            while done < size:
                if not free:
                    await self._in_time(writing[0][0])
                    free.append(writing.popleft()[1])
                block = free.pop()
                step = await far.fill(block[: size - done], unsent)
                done, unsent = done + step, 0
                writing.append((loop.run_in_executor(thread, part.write, block[:step]), block))
                if self._progress is not None:
                    self._progress(done, size)
        finally:
            thread.shutdown(wait=False)
            await self._in_time(asyncio.gather(*(written for written, _ in writing)))

    async def _in_time(self, work: Awaitable[object], work_by: int = 0) -> None:
        """Wait for disk work in a thread."""
        try:
            async with asyncio.timeout(self._timeout + work_by / SLOW_DISK_BY_S):
                await work
        except TimeoutError:
            raise ServerTimeout(f"The disk that holds {self._target} did not answer in time.") from None
        except BlockingIOError as e:
            raise StoreError(f"{self._target} is being fetched by another cockpit.") from e
        except OSError as e:
            raise store_error(self._target, e) from e
