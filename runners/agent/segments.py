"""The segments of one run's telemetry on disk, and their bound.

`telemetry.<first_seq>.jsonl` begins with a `segment` line that names itself, and, once it was thinned, says by
`every_s` how far; a closed one ends with a `segment` line that names the next.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
from typing import IO, Dict, Iterator, List, Optional, Tuple

from .base import free_by, is_no_space
from .spool import MARGIN_BY
from .thin import SPANS_S, thin

SEGMENT_BY = 2 << 20
_NAME = re.compile(r"telemetry\.(0|[1-9]\d{0,17})\.jsonl")
_STRAY = re.compile(r"telemetry\.\d+\.jsonl\.tmp")
_PAUSE_S = 0.0001  # after each line that is thinned: a sampler that waits for the interpreter gets it


class _Stopped(Exception):
    """The run ended while a segment was thinned."""


def segment_path(run_dir: str, first_seq: int) -> str:
    """Where the segment that begins with `first_seq` lies."""
    return os.path.join(run_dir, "telemetry.%d.jsonl" % first_seq)


def segments_of(run_dir: str) -> List[int]:
    """The first numbers of the segments in a folder, in order."""
    try:
        names = os.listdir(run_dir)
    except FileNotFoundError:
        return []
    return sorted(int(match.group(1)) for match in map(_NAME.fullmatch, names) if match)


class Keeper:
    """Keeps the segments of `run_dir` within `keep_by` bytes: thins the oldest of those that are thinned least.

    The open segment is never touched, and counted as full. One segment is rewritten at a time, beside the old one and
    renamed over it, so a kill loses nothing. With `background` in a thread of its own, else within `add`.
    """

    def __init__(self, run_dir: str, keep_by: int, segment_by: int, background: bool) -> None:
        self.run_dir = run_dir
        self._most_by = keep_by - 2 * segment_by  # the open one, and the one that is being rewritten
        self._background = background
        self._closed: Dict[int, Tuple[int, int]] = {}  # first_seq: how often thinned, bytes
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._works = False
        self._thread: Optional[threading.Thread] = None

    def begin(self, closed: List[int]) -> None:
        """Take over what the agent before left; no other works in this folder."""
        for name in os.listdir(self.run_dir):
            if _STRAY.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.run_dir, name))
        for first_seq in closed:
            path = segment_path(self.run_dir, first_seq)
            with contextlib.suppress(OSError):
                self._closed[first_seq] = (_level(path), os.stat(path).st_size)

    def add(self, first_seq: int, size: int) -> None:
        """A segment of `size` bytes was closed."""
        with self._lock:
            self._closed[first_seq] = (0, size)
            if self._works or self._next() is None:
                return
            self._works = True
        if self._background:
            self._thread = threading.Thread(target=self._work, args=(_PAUSE_S,), name="thin", daemon=True)
            self._thread.start()
        else:
            self._work(None)

    def close(self) -> None:
        """End the thread: what it was at is left as it was."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _next(self) -> Optional[Tuple[int, int]]:
        """The segment to thin next and how often it was, None where all is within the bound."""
        if not self._closed or sum(size for _, size in self._closed.values()) <= self._most_by:
            return None
        level, first_seq = min((level, first_seq) for first_seq, (level, _) in self._closed.items())
        return first_seq, level

    def _work(self, pause_s: Optional[float]) -> None:
        """Thin until all is within the bound, or the disk does not let us: then the next closed segment is a try."""
        while True:
            with self._lock:
                chosen = None if self._stop.is_set() else self._next()
                if chosen is None:
                    self._works = False
                    return
            first_seq, level = chosen
            size: Optional[int] = None
            with contextlib.suppress(OSError, _Stopped):
                size = self._thinner(first_seq, level, pause_s)
            with self._lock:
                if size is None:
                    self._works = False
                    return
                self._closed[first_seq] = (level + 1, size)
                if not size:
                    del self._closed[first_seq]

    def _thinner(self, first_seq: int, level: int, pause_s: Optional[float]) -> int:
        """Make one segment smaller, or remove it; its size then. Raises OSError where the disk is full."""
        path = segment_path(self.run_dir, first_seq)
        try:
            if level < len(SPANS_S):
                return self._rewrite(path, first_seq, SPANS_S[level], pause_s)
        except OSError as error:
            if is_no_space(error):
                raise
        except (TypeError, ValueError, KeyError, AttributeError):
            pass  # damaged by the disk: it must not stand in the way of the others
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return 0

    def _rewrite(self, path: str, first_seq: int, every_s: int, pause_s: Optional[float]) -> int:
        """Thin one segment; its size then. An error leaves the old one as it was."""
        temporary = path + ".tmp"
        if free_by(self.run_dir) < os.stat(path).st_size + MARGIN_BY:
            raise OSError(errno.ENOSPC, "no room to thin a segment")
        head = {"type": "segment", "first_seq": first_seq, "every_s": every_s}
        try:
            with open(path, "rb") as source, open(temporary, "wb") as target:
                os.fchmod(target.fileno(), 0o600)
                source.readline()
                target.write(json.dumps(head, separators=(",", ":")).encode() + b"\n")
                target.writelines(thin(self._lines(source, pause_s), every_s))
                target.flush()
                os.fsync(target.fileno())
                size = target.tell()
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return size

    def _lines(self, source: IO[bytes], pause_s: Optional[float]) -> Iterator[bytes]:
        for line in source:
            if self._stop.is_set():
                raise _Stopped
            if pause_s is not None:
                time.sleep(pause_s)
            yield line


def _level(path: str) -> int:
    """How often a segment was thinned."""
    with open(path, "rb") as f:
        try:
            return SPANS_S.index(json.loads(f.readline())["every_s"]) + 1
        except (ValueError, KeyError, TypeError, RecursionError):
            return 0
