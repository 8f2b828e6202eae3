"""The bounded file that keeps a program's raw output. Nothing that happens to it reaches the program.

It is append-only, because followers mirror it by byte offset. Where the disk is full or the bound is reached, it
stops after a whole line if it can, counts what it drops, and says in a line of its own how many bytes are missing.
"""

from __future__ import annotations

import json
import os
import time

from .base import NO_SPACE, free_by
from .pipes import move

MARGIN_BY = 64 << 10  # left free for states and for others; a spool stops before it
RESUME_BY = 1 << 20  # free again: more than the ballast that an agent sets free for its states
CHECK_S = 0.2

OK, FULL, CAPPED = "ok", "full", "capped"


class Spool:
    """Appends what `feed` gets to `path`, up to `max_by` bytes of file.

    `written` and `dropped` count bytes of the program's output; `state` is ok, full or capped.
    """

    def __init__(self, path: str, max_by: int) -> None:
        self.path = path
        self.max_by = max_by
        self.written = 0
        self.dropped = 0
        self.state = OK
        self.why = ""
        self._fd = -1
        self._size = 0
        self._missing = 0  # dropped since the last marker
        self._mid_line = False  # the file's last byte is no newline
        self._source_mid_line = False  # the output's last byte is no newline
        self._checked = 0.0
        self._budget = 0
        self._splices = True
        self._open()

    def feed(self, data: bytes) -> None:
        """Keep `data`, or drop and count it. Never raises OSError."""
        if self.state == FULL:
            data = self._resume(data)
        if not data:
            return
        before = self.state
        rest = self._keep(data) if before == OK else data
        self.written += len(data) - len(rest)
        self._drop(rest)
        if before == OK and self.state == CAPPED:
            self._mark("spool_full")

    def splice(self, pipe: int, size: int) -> int | None:
        """Move up to `size` bytes from a pipe into the file within one system call, which no kill can divide.

        How many, 0 at the pipe's end; None where they must be read and fed, since they are not to be kept as they
        are. Raises BlockingIOError where the pipe is empty.
        """
        if self.state != OK or not self._splices or self._room() < size:
            return None
        try:
            done = move(pipe, self._fd, size)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in NO_SPACE:
                self._stop(FULL, error.strerror or str(error))
            self._splices = False
            return None
        if done:
            self._size += done
            self._budget -= done
            self.written += done
            self._mid_line = self._source_mid_line = os.pread(self._fd, 1, self._size - 1) != b"\n"
        return done

    def close(self) -> None:
        """Say what is missing at the end, where there is room to say it."""
        if self.state == FULL and self._missing and self._has_room(MARGIN_BY):
            self._mark("disk_full")
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- the file

    def _open(self) -> bool:
        try:
            # not O_APPEND, to which splice does not write: one shim at a time writes here, its lock sees to that
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.lseek(self._fd, 0, os.SEEK_END)
            self._mid_line = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"
        except OSError as error:
            self._stop(FULL, error.strerror or str(error))
            return False
        return True

    def _append(self, data: bytes) -> int:
        """How many bytes of `data` reached the file; fewer than all means that it is full."""
        done = 0
        view = memoryview(data)
        try:
            while done < len(data):
                done += os.write(self._fd, view[done:])
        except OSError as error:
            self._stop(FULL, error.strerror or str(error))
        if done:
            self._size += done
            self._budget -= done
            self._mid_line = data[done - 1] != 10
        return done

    def _room(self) -> int:
        """Bytes that may be written now, by the bound and by the free space seen at most CHECK_S ago."""
        now = time.monotonic()
        if now - self._checked >= CHECK_S:
            self._checked = now
            try:
                self._budget = free_by(self.path) - MARGIN_BY
            except OSError:
                self._budget = self.max_by  # the write itself will say what is wrong
        return min(self._budget, self.max_by - self._size)

    def _has_room(self, need_by: int) -> bool:
        try:
            return (self._fd >= 0 or self._open()) and free_by(self.path) > need_by
        except OSError:
            return False

    # --- keeping, stopping, going on

    def _keep(self, data: bytes) -> bytes:
        """Write what fits, whole lines where it does not fit at all; return the rest."""
        room = self._room()
        if len(data) > room:
            self._checked = 0.0  # the budget may be old news
            room = self._room()
        if len(data) <= room:
            return data[self._append(data) :]
        bound = CAPPED if self.max_by - self._size <= self._budget else FULL
        rest = data[self._append(data[: self._line_end(data, room)]) :]
        if self.state == OK:
            self._stop(bound, "")
        return rest

    def _line_end(self, data: bytes, room: int) -> int:
        """Where to cut `data`: after the last whole line that fits, or after the line that the file stands in."""
        end = data.rfind(b"\n", 0, max(room, 0)) + 1
        if end == 0 and self._mid_line:
            end = data.find(b"\n", 0, max(room, 0) + MARGIN_BY // 2) + 1
        return end

    def _stop(self, state: str, why: str) -> None:
        self.state = state
        self.why = why or "No space left on device"
        self._checked = time.monotonic()

    def _drop(self, data: bytes) -> None:
        if data:
            self.dropped += len(data)
            self._missing += len(data)
            self._source_mid_line = data[-1] != 10

    def _resume(self, data: bytes) -> bytes:
        """Go on at the next line start if space came back; return what of `data` is to be kept, if anything."""
        now = time.monotonic()
        start = data.find(b"\n") + 1 if self._source_mid_line else 0
        line_starts = not self._source_mid_line or start > 0
        if now - self._checked >= CHECK_S and line_starts:
            self._checked = now
            if self._has_room(RESUME_BY):
                self._drop(data[:start])
                self.state = OK
                if not self._missing or self._mark("disk_full"):
                    self._source_mid_line = False
                    return data[start:]
                data = data[start:]
        self._drop(data)
        return b""

    def _mark(self, code: str) -> bool:
        """One line for the cockpit in the runners' own wire format; False where it did not fit."""
        if code == "spool_full":
            message = "the output passed its bound of %d bytes and is not kept from here on" % self.max_by
        else:
            message = "%d bytes of output are missing here: %s" % (self._missing, self.why)
        body = {
            "type": "diagnostic",
            "t": time.time(),
            "mono": time.monotonic(),
            "level": "warning",
            "code": code,
            "message": message,
            "data": {"missing_by": self._missing},
        }
        line = "%s@ekvi %s\n" % ("\n" if self._mid_line else "", json.dumps(body, separators=(",", ":")))
        if self._append(line.encode()) < len(line):
            return False
        self._missing = 0
        return True
