"""Blocks of a log's bytes to events, at the speed of a search.

Most lines of a log say nothing to us. So lines are not split: each block is searched for the formats' needles, and
only the lines that hold one are cut out and decoded. The events are a function of the bytes alone, wherever the
blocks are cut.

A line ends with a newline; within it, what a progress bar writes over itself (carriage returns) is taken piece by
piece. Events carry the offset of their line's first byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import cast

from cockpit.core.events import Event, Iteration
from cockpit.parse.context import Context, Format
from cockpit.parse.formats import arguments, errors, megatron, nemo, tags, torchtitan, wire
from cockpit.parse.sieve import LEAST_BY, Sieve

FORMATS: tuple[ModuleType, ...] = (
    wire,
    megatron,
    nemo,
    torchtitan,
    arguments,
    tags,
    errors,
)  # the first that gives events has a line

LONGEST_PIECE_BY = 1 << 20  # what is longer is cut off there
_WINDOW = 1 << 18  # bytes searched at a time: stays in the cache
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


@dataclass(frozen=True, slots=True)
class Declared:
    """What is known of a log beforehand: a step's `sequence_length` (tokens) and `global_batch` (sequences), where
    the log does not say them, and the one `format` that may give iterations ("auto": any).
    """

    sequence_length: int | None = None
    global_batch: int | None = None
    format: str = "auto"


class StreamParser:
    """Parses one log, block by block."""

    def __init__(self, declared: Declared | None = None) -> None:
        self._declared = declared or Declared()
        self._ctx = Context(seq_length=self._declared.sequence_length, global_batch=self._declared.global_batch)
        self._formats = tuple(cast(Format, module) for module in FORMATS)
        self._needles = [(needle, 1 << i) for i, f in enumerate(self._formats) for needle in f.NEEDLES]
        self._sieve = Sieve([needle for needle, _ in self._needles])
        self._position: int | None = None  # where the next block begins
        self._line = 0  # offset of the line at hand
        self._rest = b""  # the piece at hand, as far as it came; cut at LONGEST_PIECE_BY

    def feed(self, data: bytes, offset: int) -> list[Event]:
        """The events of the lines that `data`, whose first byte is the log's byte `offset`, completes.

        Blocks come in order; bytes that were fed before are passed over. Raises ValueError on a hole.
        """
        if self._position is None:
            self._position = self._line = offset
        if offset > self._position:
            raise ValueError(f"byte {self._position} of the log was to follow, not byte {offset}")
        if offset < self._position:
            data = data[self._position - offset :]
        offset = self._position
        self._position = offset + len(data)
        events: list[Event] = []
        begin = self._finish_rest(data, offset, events)
        if begin < 0:
            return events
        stop = max(data.rfind(b"\n"), data.rfind(b"\r", begin)) + 1
        while begin < stop:
            end = min(stop, _piece_end(data, begin + _WINDOW, stop))
            self._window(data, begin, end, offset, events)
            begin = end
        self._rest = data[begin : begin + LONGEST_PIECE_BY]
        return events

    def finish(self) -> list[Event]:
        """The events of a last line without its newline. Nothing is fed after it."""
        events: list[Event] = []
        self._piece(self._rest, 0, events)
        self._rest = b""
        return events

    def _finish_rest(self, data: bytes, offset: int, events: list[Event]) -> int:
        """Take the piece that earlier blocks began; where in `data` the next begins, -1 where this one goes on."""
        if not self._rest and self._line == offset:
            return 0
        end = _piece_end(data, 0, -1)
        room = LONGEST_PIECE_BY - len(self._rest)
        if end < 0:
            self._rest += data[: max(0, room)]
            return -1
        self._piece(self._rest + data[: min(end - 1, max(0, room))], 0, events)
        self._rest = b""
        if data[end - 1] == _NEWLINE:
            self._line = offset + end
        return end

    def _window(self, data: bytes, begin: int, end: int, offset: int, events: list[Event]) -> None:
        """Whole pieces `data[begin:end]`: those that hold a needle, and while a format watches, all."""
        ctx = self._ctx
        while begin < end:
            if ctx.watching:
                begin = self._watched(data, begin, end, offset, events)
                continue
            found = self._search(data, begin, end)
            at = begin
            for start in sorted(found):
                stop, line, mask = found[start]
                self._line = self._line if line < 0 else offset + line
                self._piece(data[start : min(stop, start + LONGEST_PIECE_BY)], mask, events)
                if ctx.watching:
                    at = stop + 1
                    break
            else:
                at = end
            self._pass(data, begin, at, offset)
            begin = at

    def _pass(self, data: bytes, begin: int, end: int, offset: int) -> None:
        """Note the last line's start when `data[begin:end]` is done with."""
        newline = data.rfind(b"\n", begin, end)
        if newline >= 0:
            self._line = offset + newline + 1

    def _watched(self, data: bytes, begin: int, end: int, offset: int, events: list[Event]) -> int:
        """Take piece by piece for as long as a format watches; where the next one begins."""
        while begin < end and self._ctx.watching:
            stop = _piece_end(data, begin, end)
            self._piece(data[begin : min(stop - 1, begin + LONGEST_PIECE_BY)], 0, events)
            if data[stop - 1] == _NEWLINE:
                self._line = offset + stop
            begin = stop
        return begin

    def _search(self, data: bytes, begin: int, end: int) -> dict[int, tuple[int, int, int]]:
        """Pieces with a needle: start -> (end, start of its line or -1 where that is before `begin`, formats)."""
        found: dict[int, tuple[int, int, int]] = {}
        find, rfind = data.find, data.rfind
        needles = self._needles
        if end - begin >= LEAST_BY:
            possible = self._sieve.possible(data[begin:end])
            needles = [n for n, may in zip(needles, possible, strict=True) if may]
        for needle, bit in needles:
            at = find(needle, begin, end)
            while at >= 0:
                newline = rfind(b"\n", begin, at)
                start = max(newline, rfind(b"\r", max(newline, begin), at)) + 1 or begin
                stop = find(b"\n", at, end)
                stop = end if stop < 0 else stop
                carriage = find(b"\r", at, stop)
                stop = stop if carriage < 0 else carriage
                if at + len(needle) <= start + LONGEST_PIECE_BY:
                    mask = found[start][2] | bit if start in found else bit
                    found[start] = (stop, newline + 1 if newline >= 0 else -1, mask)
                at = find(needle, stop, end)
        return found

    def _piece(self, piece: bytes, mask: int, events: list[Event]) -> None:
        """Give one piece to the formats in `mask` (0: to those whose needle it holds, or that watch)."""
        ctx = self._ctx
        if not mask:
            mask = self._mask(piece)
            if not mask:
                return
        ctx.offset = self._line
        line = piece.decode("utf-8", "replace")
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        for i, form in enumerate(self._formats):
            if mask >> i & 1:
                found = form.match(line, ctx)
                if found:
                    events += self._judged(found, form.NAME)
                    return
                if i == 0:  # a line of the wire belongs to it, whatever its message says
                    return

    def _judged(self, found: Sequence[Event], format_: str) -> list[Event]:
        """The events of a line: iterations of another format than the declared one left out, tokens filled in."""
        wanted = self._declared.format
        if wanted not in ("auto", format_):
            return [e for e in found if not isinstance(e, Iteration)]
        if self._ctx.seq_length is None or format_ == wire.NAME:  # who speaks on the wire says what it knows
            return list(found)
        return [self._with_tokens(e) if isinstance(e, Iteration) and e.tokens is None else e for e in found]

    def _with_tokens(self, e: Iteration) -> Iteration:
        """A step's tokens from its samples, else from the global batch, times the sequence length."""
        assert self._ctx.seq_length is not None
        samples = e.samples if e.samples is not None else self._ctx.global_batch
        if samples is None:
            return e
        return replace(e, samples=samples, tokens=samples * self._ctx.seq_length)

    def _mask(self, piece: bytes) -> int:
        mask = 0
        for needle, bit in self._needles:
            if needle in piece:
                mask |= bit
        watching = self._ctx.watching
        if watching:
            for i, form in enumerate(self._formats):
                if form.NAME in watching:
                    mask |= 1 << i
                    watching[form.NAME] -= 1
                    if watching[form.NAME] <= 0:
                        del watching[form.NAME]
        return mask


_NEWLINE = 10


def _piece_end(data: bytes, begin: int, otherwise: int) -> int:
    """Just after the first newline or carriage return from `begin` on; `otherwise` where there is none."""
    newline = data.find(b"\n", begin)
    carriage = data.find(b"\r", begin, newline if newline >= 0 else len(data))
    end = carriage if carriage >= 0 else newline
    return end + 1 if end >= 0 else otherwise
