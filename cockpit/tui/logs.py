"""The last lines of all runs: raw bytes in, bounded rings of cleaned lines out. The whole log is in the store."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_LINE = 2000  # characters of a line that are kept
MAX_LINES = 5000  # lines a server
MAX_BYTES = 2_000_000  # bytes of lines a server
_WIRE = b"@ekvi "
_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Line(NamedTuple):
    """One line as it came. `run` is its id, empty for a word of the cockpit itself."""

    run: str
    raw: bytes
    level: str = ""

    @property
    def text(self) -> str:
        """What can be shown: no escape sequences, no control characters, tabs as spaces."""
        return _CONTROL.sub("", self.raw.decode("utf-8", "replace").expandtabs(4))


class Ring:
    """The newest lines, bounded in number and in bytes. A line keeps its number when older ones go."""

    def __init__(self, lines: int = MAX_LINES, size: int = MAX_BYTES) -> None:
        self._lines: deque[Line] = deque()
        self._max_lines, self._max_bytes = lines, size
        self._bytes = 0
        self.first = 0  # the number of the oldest line that is still here

    def append(self, line: Line) -> None:
        """Add a line and let go of what is too much."""
        self._lines.append(line)
        self._bytes += len(line.raw)
        while len(self._lines) > self._max_lines or (self._bytes > self._max_bytes and len(self._lines) > 1):
            self._bytes -= len(self._lines.popleft().raw)
            self.first += 1

    @property
    def end(self) -> int:
        """The number after the newest line's."""
        return self.first + len(self._lines)

    def __getitem__(self, number: int) -> Line:
        return self._lines[number - self.first]

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)


@dataclass(slots=True)
class _Tail:
    """What a run has written since its last newline, and the offset that comes next."""

    half: bytes = b""
    expected: int | None = None


@dataclass(slots=True)
class LogStore:
    """Rings by server, and the one view that is shown: all or one server's lines, with or without wire lines."""

    wire: bool = False
    server: str | None = None
    rings: dict[str, Ring] = field(default_factory=dict)
    view: Ring = field(default_factory=Ring)
    seen: int = 0  # lines since the beginning
    _servers: dict[str, str] = field(default_factory=dict)
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _order: Ring = field(default_factory=lambda: Ring(lines=2 * MAX_LINES, size=2 * MAX_BYTES))

    def know(self, run: str, server: str) -> None:
        """Tell which server a run is on."""
        self._servers[run] = server
        self.rings.setdefault(server, Ring())

    def feed(self, run: str, offset: int, data: bytes) -> bool:
        """Take bytes of a run's output as they come; returns whether the view has changed."""
        tail = self._tails.setdefault(run, _Tail())
        if tail.expected not in (None, offset):
            tail.half = b""  # bytes are missing: two halves of different lines make no line
        tail.expected = offset + len(data)
        lines = data.split(b"\n")
        lines[0] = tail.half + lines[0]
        tail.half = shown(lines.pop())
        self.seen += len(lines)
        changed = False
        for raw in lines[-2 * MAX_LINES :]:  # no ring would hold more
            changed |= self._add(Line(run, shown(raw).rstrip(b"\r")))
        return changed

    def say(self, level: str, text: str) -> None:
        """A word of the cockpit among the lines."""
        self._add(Line("", text.encode(), level))

    def show(self, *, server: str | None, wire: bool) -> None:
        """Change what is shown; the view starts anew from what the rings still hold."""
        self.server, self.wire = server, wire
        source = self._order if server is None else self.rings.get(server, Ring())
        self.view = Ring()
        for line in source:
            if self._visible(line):
                self.view.append(line)

    def _add(self, line: Line) -> bool:
        self._order.append(line)
        server = self._servers.get(line.run)
        if server is not None:
            self.rings[server].append(line)
        if self._visible(line):
            self.view.append(line)
            return True
        return False

    def _visible(self, line: Line) -> bool:
        if self.server is not None and line.run and self._servers.get(line.run) != self.server:
            return False
        return self.wire or _WIRE not in line.raw


def shown(line: bytes) -> bytes:
    """What a terminal would show of a line: what follows the last carriage return, cut to MAX_LINE bytes.

    A return at the very end stays, for it belongs to what may still come:
    `shown(shown(a) + b) == shown(a + b)`, so that blocks may be cut anywhere.
    """
    if b"\r" not in line:
        return line[:MAX_LINE]
    body = line.rstrip(b"\r")
    kept = body[body.rfind(b"\r") + 1 :][:MAX_LINE]
    return kept + b"\r" if line.endswith(b"\r") else kept
