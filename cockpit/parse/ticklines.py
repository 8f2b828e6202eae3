"""What a server sends of a run's telemetry, sifted: each line once, in order, and what is missing declared.

Segments are read by offset, and from their start again after a cut; a segment that is not the last may be rewritten
(thinned) at any time. So nothing is believed but whole lines, and what is here already is known by its numbers.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

LINE_BY = 4 << 20  # a line without end must not fill the memory
NOT_KEPT = "not kept by the server"
_MOST_SEQ = 1 << 53
_MOST_MISSING = 10**9  # 10 Hz for three years
_MOST_NS = 1 << 63
_SHORT_S = 2.0  # by how much telemetry may end before its run does
_MOST_AGENTS = 256
_MOST_OTHERS = 4096

Line = dict[str, Any]


@dataclass(slots=True)
class Sifted:
    """What a block of a segment gave: lines to keep, as bytes and as objects.

    `next_seq` names the segment that follows a closed one. `doubt`: the bytes do not continue what was read before,
    and the rest of the block was dropped; the segment is to be read from its start.
    """

    lines: list[tuple[bytes, Line]] = field(default_factory=list)
    next_seq: int | None = None
    doubt: bool = False


class TickLines:
    """The telemetry of one run on one machine. `last` is the last number that is spoken of; -1 before the first.

    `bad` counts lines that were none.
    """

    def __init__(self) -> None:
        self.last = -1
        self.bad = 0
        self._rest = b""
        self._skips = False  # the rest of a line without end
        self._fresh = True  # nothing with a number was read of this segment
        self._closed = False
        self._agent: tuple[str, str] = ("", "")
        self._marks: OrderedDict[tuple[str, str], int] = OrderedDict()  # the last tick of each agent
        self._first = 0  # what the segment begins with
        self._hello: tuple[bytes, Line] | None = None  # that was read, and not kept yet
        self._said: Line | None = None  # the last that was kept
        self._hz = 0.0
        self._at: tuple[int, int] | None = None  # the last tick's number and wall clock, ns
        self._others: OrderedDict[int, None] = OrderedDict()  # lines without a number

    def known(self, data: bytes) -> Iterator[Line]:
        """Blocks of what is here already, in order: gives its lines, and learns what need not be kept again."""
        for raw in self._whole(data):
            line = _object(raw)
            if line is None:
                continue
            kind = line.get("type")
            span = _span(line)
            if kind == "hello":
                self._agent, self._said = _agent_of(line), _timeless(line)
                self._hz = _rate(line)
            elif span is not None:
                self._mark(line, span[1])
            elif kind != "clock":
                self._remember(raw)
            yield line

    def begin(self, first_seq: int) -> None:
        """What comes next is the start of the segment that begins with `first_seq`."""
        self._rest, self._skips, self._fresh, self._closed = b"", False, True, False
        self._first, self._hello = first_seq, None

    def feed(self, data: bytes, *, sure: bool = False) -> Sifted:
        """The next block of a segment. With `sure` there is no doubt: it was read more than once already."""
        sifted = Sifted()
        for raw in self._whole(data):
            if self._closed:
                break
            line = _object(raw)
            doubt = line is None or self._add(line, raw, sifted, sure)
            self.bad += line is None
            if doubt and not sure:
                sifted.doubt = True
                self._rest = b""
                break
        return sifted

    def _add(self, line: Line, raw: bytes, sifted: Sifted, sure: bool) -> bool:
        """Take one line; whether it leaves a hole that ought not be there."""
        kind = line.get("type")
        if kind == "hello":
            self._agent, self._hello = _agent_of(line), (raw, line)
            if self._said is None:
                self._flush_hello(sifted)
        elif kind == "segment":
            first = line.get("first_seq")
            if _is_seq(first) and first > self._first:
                sifted.next_seq, self._closed = first, True
        elif kind in ("tick", "gap"):
            return self._numbered(kind, line, raw, sifted, sure)
        elif kind == "err":
            self._other(line, raw, sifted)
        else:
            self.bad += 1
        return False

    def _numbered(self, kind: str, line: Line, raw: bytes, sifted: Sifted, sure: bool) -> bool:
        span = _span(line)
        if kind == "gap" and span is None and _is_seq(line.get("from_seq")) and line.get("to_seq") is None:
            self._other(line, raw, sifted)  # a file of an older agent that reached its bound
            return False
        if span is None or span[1] - self.last > _MOST_MISSING or (kind == "tick" and not _is_tick(line)):
            self.bad += 1
            return False
        fresh, self._fresh = self._fresh, False
        known = self.last if kind == "gap" else self._marks.get(self._agent, -1)
        if span[1] <= known:
            return False
        if span[0] > self.last + 1:
            if not fresh and not sure:
                return True
            missing = {"type": "gap", "from_seq": self.last + 1, "to_seq": span[0] - 1, "reason": NOT_KEPT}
            self._keep(missing, line_bytes(missing), sifted)
        if kind == "gap" and span[0] <= self.last:
            line = {**line, "from_seq": self.last + 1}
            raw = line_bytes(line)
        self._keep(line, raw, sifted)
        self._mark(line, span[1])
        return False

    def _other(self, line: Line, raw: bytes, sifted: Sifted) -> None:
        if hash(raw) not in self._others:
            self._keep(line, raw, sifted)
            self._remember(raw)

    def _keep(self, line: Line, raw: bytes, sifted: Sifted) -> None:
        self._flush_hello(sifted)
        sifted.lines.append((raw, line))

    def _flush_hello(self, sifted: Sifted) -> None:
        """Keep the hello that what follows stands under; each segment says it again."""
        hello, self._hello = self._hello, None
        if hello is not None and (said := _timeless(hello[1])) != self._said:
            self._said, self._hz = said, _rate(said)
            sifted.lines.append(hello)

    def missing_until(self, t: float) -> Line | None:
        """The gap from what is here to the moment `t` (s, the server's wall clock); None where nothing is missing."""
        if self._at is None or not self._hz > 0:
            return None
        covered = self._at[1] / 1e9 + (self.last - self._at[0]) / self._hz
        count = int((t - covered) * self._hz)
        if t - covered < _SHORT_S or not 2 < count < _MOST_MISSING:
            return None
        gap = {"type": "gap", "from_seq": self.last + 1, "to_seq": self.last + count, "reason": NOT_KEPT}
        self.last += count
        return gap

    def _mark(self, line: Line, seq: int) -> None:
        self.last = max(self.last, seq)
        if line.get("type") == "tick":
            if type(wall := line.get("t_wall_ns")) is int:
                self._at = seq, wall
            self._marks[self._agent] = max(self._marks.get(self._agent, -1), seq)
            self._marks.move_to_end(self._agent)
            if len(self._marks) > _MOST_AGENTS:
                self._marks.popitem(last=False)

    def _remember(self, raw: bytes) -> None:
        self._others[hash(raw)] = None
        if len(self._others) > _MOST_OTHERS:
            self._others.popitem(last=False)

    def _whole(self, data: bytes) -> Iterator[bytes]:
        """Whole lines, each with its newline; what is too long to be one is passed over."""
        *lines, rest = (self._rest + data).split(b"\n")
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if self._skips or len(rest) > LINE_BY:
            self.bad += not self._skips
            self._skips, rest = True, b""
        self._rest = rest
        for line in lines:
            if len(line) <= LINE_BY:
                yield line + b"\n"
            else:
                self.bad += 1


def _object(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def line_bytes(line: Mapping[str, Any]) -> bytes:
    """One line as it is kept."""
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _timeless(hello: Line) -> Line:
    return {key: value for key, value in hello.items() if key != "t_wall_ns"}


def _agent_of(hello: Line) -> tuple[str, str]:
    """Which boot and agent number the ticks."""
    return str(hello.get("boot_id"))[:200], str(hello.get("agent_id"))[:200]


def _rate(hello: Line) -> float:
    """Ticks a second, 0 where it does not say."""
    hz: Any = hello.get("hz")
    return float(hz) if type(hz) in (int, float) and 0 < hz < 1e6 else 0.0


def _is_seq(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST_SEQ


def _span(line: Mapping[str, Any]) -> tuple[int, int] | None:
    """The first and the last number that a tick or a gap speaks of; None for another line, and for a wrong one."""
    kind = line.get("type")
    if kind == "tick":
        last = line.get("seq")
        first = line.get("from_seq", last)
    elif kind == "gap":
        first, last = line.get("from_seq"), line.get("to_seq")
    else:
        return None
    return (first, last) if _is_seq(first) and _is_seq(last) and first <= last else None


def _is_tick(line: Mapping[str, Any]) -> bool:
    """Whether a tick's frame is what it should be; its values are looked at by whoever reads them."""
    stamps = (line.get("t_mono_ns"), line.get("t_wall_ns"))
    devices, host = line.get("devices"), line.get("host")
    return (
        all(type(stamp) is int and 0 <= stamp < _MOST_NS for stamp in stamps)
        and isinstance(devices, list)
        and all(isinstance(device, dict) and type(device.get("index")) is int for device in devices)
        and (host is None or isinstance(host, dict))
    )
