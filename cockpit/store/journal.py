"""events.jsonl: one event a line, appended with one write, cut to its last whole record when it is opened.

A journal is written by one process (the group's lock sees to it) and read by any.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cockpit.core.errors import StoreError
from cockpit.core.events import Event, StateChange, from_json
from cockpit.core.text import finite
from cockpit.store.errors import explain, explained

# Event.to_json writes node, offset and agent_seq last and everything else of that name sits in a nested object, whose
# closing braces follow it: so the end of a line tells without decoding it.
_FROM_LINE = re.compile(rb'"offset":\d+(?:,"agent_seq":\d+)?\}\n')
_FROM_NODE = re.compile(rb'"node":(\d+),"offset":\d+(?:,"agent_seq":\d+)?\}\n')
_NODE = b'"node":'
_FROM_AGENT = re.compile(rb'"agent_seq":(\d+)\}\n')
_BLOCK = 1 << 20
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Journal:
    """The journal of one run, open for appending.

    `agent_seq` is the last one of the agent's state file (-1 before the first), `next_seq` the seq of the next event.
    """

    def __init__(self, path: Path, run: str, clock: Callable[[], float] = time.time) -> None:
        """Open or make the journal at `path` and cut what a crash left of a record. Raises StoreError."""
        self.path = path
        self.run = run
        self._clock = clock
        self._fd: int | None = None
        with explained("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._size, last = _last_whole(self._fd)
                if self._size < os.fstat(self._fd).st_size:
                    os.ftruncate(self._fd, self._size)
                    os.fsync(self._fd)
                self.next_seq = 0 if last is None else int(last["seq"]) + 1
                self._lines, self.agent_seq = _count(self._fd, self._size)
            except BaseException:
                self.close()
                raise

    def line_events(self, node: int = 0) -> int:
        """How many records were made from lines of one node's output."""
        return self._lines[node]

    def append(self, events: Sequence[Event]) -> list[Event]:
        """Write `events` with one write and return them as they stand there: with seq, run and t_recv.

        A state change is on the disk itself when this returns. Raises DiskFull, with the journal as it was before:
        the same events may be given again.
        """
        if not events:
            return []
        assert self._fd is not None, "the journal is closed"
        now = self._clock()
        stamped = [e.stamped(run=self.run, seq=self.next_seq + i, t_recv=now) for i, e in enumerate(events)]
        data = b"".join(_line(e) for e in stamped)
        with explained("write", self.path):
            self._write(self._fd, data, durable=any(isinstance(e, StateChange) for e in stamped))
        self._size += len(data)
        self.next_seq += len(stamped)
        for event in stamped:
            if event.offset is not None:
                self._lines[event.node] += 1
            if event.agent_seq is not None:
                self.agent_seq = max(self.agent_seq, event.agent_seq)
        return stamped

    def _write(self, fd: int, data: bytes, *, durable: bool) -> None:
        if os.fstat(fd).st_size != self._size:  # left over from a write that was interrupted
            os.ftruncate(fd, self._size)
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(fd, memoryview(data)[done:], self._size + done)
            if durable:
                os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self._size)
            raise

    def read(self) -> Iterator[Event]:
        """All events that stand in the journal now; see read_events."""
        return read_events(self.path)

    def close(self) -> None:
        """Close the file. May be called twice."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(event: Event) -> bytes:
    body = event.to_json()
    try:
        text = _encode(body)
    except ValueError:  # NaN or infinity, which JSON does not know: unknown is null
        text = _encode(finite(body))
    return text.encode() + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    """The record that `line` holds, or None where it holds none."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and isinstance(body.get("seq"), int) and "type" in body else None


def _last_whole(fd: int) -> tuple[int, dict[str, Any] | None]:
    """Where the last whole record ends, and that record; looks only at the end of the file."""
    end = os.fstat(fd).st_size
    window = 1 << 16
    while end > 0:
        start = max(0, end - window)
        tail = os.pread(fd, end - start, start)
        stop = tail.rfind(b"\n") + 1
        begin = tail.rfind(b"\n", 0, stop - 1) + 1 if stop else 0
        if begin == 0 and start > 0:  # the record is longer than the window
            window *= 4
            continue
        if stop == 0:
            return 0, None
        record = _record(tail[begin:stop])
        if record is not None:
            return start + stop, record
        end = start + begin
    return 0, None


def _count(fd: int, size: int) -> tuple[Counter[int], int]:
    """How many records came from each node's lines, and the last agent_seq; a pass over the bytes, not decoded."""
    lines: Counter[int] = Counter()
    agent_seq, at, rest = -1, 0, b""
    while at < size:
        block = os.pread(fd, min(_BLOCK, size - at), at)
        if not block:
            break
        at += len(block)
        data = rest + block
        stop = data.rfind(b"\n") + 1
        data, rest = data[:stop], data[stop:]
        lines[0] += len(_FROM_LINE.findall(data))
        if _NODE in data:
            others = Counter(map(int, _FROM_NODE.findall(data)))
            lines.update(others)
            lines[0] -= others.total()
        for number in _FROM_AGENT.findall(data):
            agent_seq = max(agent_seq, int(number))
    return lines, agent_seq


def raw_lines(path: Path, most_by: int = -1) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file with their number from 1; a last line without its newline is not given.

    Pieces of lines longer than `most_by` bytes are left out. A missing file has none. Raises StoreError where the
    file cannot be read.
    """
    try:
        with path.open("rb", buffering=_BLOCK) as file:
            for number, line in enumerate(iter(lambda: file.readline(most_by), b""), 1):
                if line.endswith(b"\n"):
                    yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(error, "read", path) from error


def read_events(path: Path) -> Iterator[Event]:
    """The events of a journal, in order; none where the file is missing.

    A last line that is not whole is left out: a live run's writer may be at it. Raises StoreError naming file and
    line of a damaged record before it.
    """
    held: StoreError | None = None
    for number, line in raw_lines(path):
        if held is not None:
            raise held
        try:
            yield from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            held = damaged(path, number)  # only at the very end may a record be damaged: a crash does that


def damaged(path: Path, number: int) -> StoreError:
    """The error for a record that cannot be read."""
    return StoreError(
        f"{path}:{number}: damaged record.",
        hint="Delete that line to read the rest; the run's stdout.log still has what it came from.",
    )
