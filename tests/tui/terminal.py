"""A program on a pseudo-terminal: what it writes, and keys for it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PATIENCE_S = 30.0


class Terminal:
    """Runs `python -m ...` on a terminal of its own, `size` as (columns, rows)."""

    def __init__(
        self, module: str, args: Sequence[str] = (), *, size: tuple[int, int] = (120, 40), env: Mapping[str, str] = {}
    ) -> None:
        self.output = b""
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
            start_new_session=True,
        )
        os.close(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._fd)

    def pump(self, wait_s: float) -> bool:
        """Read what is there, waiting at most `wait_s`; False once the other side is gone."""
        ready, _, _ = select.select([self._fd], [], [], wait_s)
        if ready:
            try:
                self.output += os.read(self._fd, 1 << 18)
            except OSError:
                return False
        return True

    def until(self, text: str, *, since: int = 0) -> float:
        """Read until `text` was written after byte `since`; seconds from the start of the program."""
        wanted, end = text.encode(), time.perf_counter() + PATIENCE_S
        while wanted not in self.output[since:]:
            alive = self.pump(0.05)
            if time.perf_counter() > end or (not alive and wanted not in self.output[since:]):
                raise AssertionError(f"never wrote {text!r}; the end of it: {self.output[-2000:]!r}")
        return time.perf_counter() - self.started

    def watch(self, seconds: float) -> None:
        """Read for a while."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.pump(left)

    def keys(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Read to the end and return the exit code."""
        end = time.perf_counter() + PATIENCE_S
        while self.pump(0.05) and self.process.poll() is None and time.perf_counter() < end:
            pass
        while self.pump(0.0) and select.select([self._fd], [], [], 0)[0]:
            pass
        return self.process.wait(PATIENCE_S)
