"""Files that a killed agent and a full disk must not damage: line files, the ballast, the agent's log."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import IO, Any

from .base import free_by, is_no_space

BALLAST_BY = 256 << 10
BLOCK_BY = 64 << 10
TAIL_BY = 8 << 10
TAIL_LINES = 20


class LineFile:
    """An append-only file of whole lines (JSON objects).

    Opening cuts the torn last line of a killed writer. A line that does not fit is taken back whole and kept in
    memory: `flush` writes the same bytes when there is room, so that a reader by offset is never misled.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.pending: list[bytes] = []
        self.error: OSError | None = None
        self._fd = -1
        self._size = 0

    def append(self, obj: dict[str, Any]) -> bool:
        """Add one line; False where it waits for room."""
        return self.append_line(json.dumps(obj, separators=(",", ":")).encode() + b"\n")

    def append_line(self, line: bytes) -> bool:
        """The same of a line that is JSON already, its newline included."""
        self.pending.append(line)
        return self.flush()

    def flush(self, sync: bool = False) -> bool:
        """Write what waits. False where the disk is full still; other errors are kept in `error`."""
        try:
            if self._fd < 0:
                self._open()
            while self.pending:
                line = self.pending[0]
                if os.write(self._fd, line) < len(line):
                    os.ftruncate(self._fd, self._size)
                    return False
                self._size += len(line)
                del self.pending[0]
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            self.error = error
            return False
        self.error = None
        return True

    def recent(self) -> list[dict[str, Any]]:
        """The objects of the whole lines in the last block of the file, in order."""
        return read_whole_lines(self.path, tail_by=BLOCK_BY)

    def last(self) -> dict[str, Any] | None:
        """The last whole line that is a JSON object, or None."""
        whole = self.recent()
        return whole[-1] if whole else None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def close(self) -> None:
        """Close the file; what waits stays unwritten."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(fd).st_size
        whole = self._whole(fd, size)
        if whole < size:
            os.ftruncate(fd, whole)
        self._fd, self._size = fd, whole

    @staticmethod
    def _whole(fd: int, size: int) -> int:
        """Where the last whole line ends."""
        end = size
        while end > 0:
            start = max(0, end - BLOCK_BY)
            at = os.pread(fd, end - start, start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
        return 0


def read_whole_lines(path: str, tail_by: int | None = None) -> list[dict[str, Any]]:
    """The JSON objects of a line file, in order; a torn or damaged line is left out. A missing file has none.

    With `tail_by` only lines that lie whole in the last `tail_by` bytes.
    """
    try:
        with open(path, "rb") as f:
            start = max(0, f.seek(0, os.SEEK_END) - tail_by) if tail_by else 0
            f.seek(start)
            data = f.read()
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[1 if start else 0 :]
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            obj = json.loads(line)
            if isinstance(obj, dict):
                found.append(obj)
    return found


def tail_lines(path: str) -> list[str]:
    """The last lines of a file, at most 20 and 500 characters each; empty where there is none."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - TAIL_BY))
            lines = f.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line[:500] for line in lines[-TAIL_LINES:]]


class Ballast:
    """A file that only holds space, so that states can still be written when others have filled the disk."""

    def __init__(self, path: str, size_by: int = BALLAST_BY) -> None:
        self.path = path
        self.size_by = size_by
        self._next_try = 0.0

    def hold(self) -> None:
        """Take the space where there is plenty; called often, looks seldom."""
        now = time.monotonic()
        if now < self._next_try:
            return
        self._next_try = now + 30
        try:
            if os.path.exists(self.path) or free_by(os.path.dirname(self.path)) < 16 * self.size_by:
                return
            fd = os.open(self.path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, os.urandom(self.size_by))  # bytes that no file system can leave out
            finally:
                os.close(fd)
            os.replace(self.path + ".tmp", self.path)
        except OSError:
            self.release()

    def release(self) -> bool:
        """Give the space back; whether there was any."""
        found = False
        for path in (self.path, self.path + ".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(path)
                found = True
        self._next_try = time.monotonic() + 30
        return found


class Log:
    """The agent's own words, a line each with the time in UTC. A log that cannot be written is not missed."""

    def __init__(self, path: str, echo: bool) -> None:
        self.path = path
        self.echo = echo

    def file(self) -> IO[bytes]:
        """The log, open for a child's own words; /dev/null where it cannot be opened."""
        try:
            return open(self.path, "ab")
        except OSError:
            return open(os.devnull, "ab")

    def say(self, text: str) -> None:
        """Write one line."""
        line = "%s [%d] %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), os.getpid(), text)
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError as error:
            if not is_no_space(error):
                self.echo = True
        if self.echo:
            with contextlib.suppress(OSError):
                sys.stderr.write(line)
                sys.stderr.flush()
