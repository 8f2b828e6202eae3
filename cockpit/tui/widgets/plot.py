"""Lines in braille dots: decimation, scales and ticks. Pure functions over floats; knows no terminal toolkit.

A cell holds 2 x 4 dots. A line of any length is cut down to one lowest and one highest value a dot column, so that no
spike is lost and painting costs the same at a thousand points and at a million.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [dot row][dot column] of U+2800
_NAN = math.nan


class Columns:
    """A line decimated to dot columns, grown point by point: lowest, highest, first and last value of each.

    `x_lo` and `x_hi` are what the first and the last column stand for. A point outside them is left out; one whose
    y is not finite breaks the line.
    """

    __slots__ = ("breaks", "first", "high", "last", "low", "points", "width", "x_hi", "x_lo")

    def __init__(self, width: int, x_lo: float, x_hi: float) -> None:
        self.width = max(0, width)
        self.x_lo, self.x_hi = x_lo, x_hi
        self.low = [_NAN] * self.width
        self.high = [_NAN] * self.width
        self.first = [_NAN] * self.width
        self.last = [_NAN] * self.width
        self.breaks: set[int] = set()
        self.points = 0  # how many points of the series have been taken in

    def column(self, x: float) -> int | None:
        """The dot column of `x`, or None outside the range."""
        if not self.width or not self.x_lo <= x <= self.x_hi:
            return None
        return min(self.width - 1, int(share(x, self.x_lo, self.x_hi) * (self.width - 1) + 0.5))

    def extend(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Take in the points from `self.points` on; the sequences only ever grow."""
        end = min(len(xs), len(ys))
        low, high, column = self.low, self.high, self.column
        for i in range(self.points, end):
            y = ys[i]
            c = column(xs[i])
            if c is None:
                continue
            if not math.isfinite(y):
                self.breaks.add(c)
                continue
            if low[c] != low[c]:
                low[c] = high[c] = self.first[c] = y
            elif y < low[c]:
                low[c] = y
            elif y > high[c]:
                high[c] = y
            self.last[c] = y
        self.points = end


@dataclass(frozen=True, slots=True)
class Scale:
    """A vertical scale from `low` to `high`, linear or logarithmic (then both are above 0)."""

    low: float
    high: float
    log: bool = False

    def share(self, y: float) -> float | None:
        """Where `y` stands, 0 at the bottom to 1 at the top, clamped; None where a logarithm has no place for it."""
        if not self.log:
            return share(y, self.low, self.high)
        if y <= 0:
            return None
        return share(math.log(y), math.log(self.low), math.log(self.high))


def share(value: float, low: float, high: float) -> float:
    """Where `value` stands between `low` and `high`, 0..1, clamped. Halves are taken so that nothing overflows."""
    span = high / 2 - low / 2
    if span <= 0:
        return 0.5
    return min(1.0, max(0.0, (value / 2 - low / 2) / span))


def scale_of(lines: Iterable[Columns], *, log: bool = False, robust: bool = False) -> Scale:
    """The scale that holds these lines, with a little room.

    `robust` leaves out the outermost two in a hundred columns on either side, so that one stalled step does not
    flatten all others (what lies outside is drawn at the edge).
    """
    lows: list[float] = []
    highs: list[float] = []
    for line in lines:
        lows += [v for v in line.low if not math.isnan(v) and (v > 0 or not log)]
        highs += [v for v in line.high if not math.isnan(v) and (v > 0 or not log)]
    if not highs:
        return Scale(0.1, 1.0, log) if log else Scale(0.0, 1.0)
    low, high = min(lows, default=min(highs)), max(highs)
    if robust and len(highs) >= 20:
        lows.sort()
        highs.sort()
        cut = max(1, len(lows) // 50)
        low, high = lows[cut], highs[-1 - cut]
    return _with_room(low, high, log)


def _with_room(low: float, high: float, log: bool) -> Scale:
    if log:
        low, high = max(low, 1e-300), min(high, 1e300)
        factor = max((high / low) ** 0.04, 1.02) if math.isfinite(high / low) else 1.0
        return Scale(low / factor, high * factor, True)
    # A line that hardly moves is shown as such: no scale spans less than half a percent of what it shows.
    room = max((high / 2 - low / 2) * 0.16, max(abs(low), abs(high)) * 0.0025) or 0.5
    low, high = low - room, high + room
    return Scale(max(low, -sys.float_info.max), min(high, sys.float_info.max))


def ticks(low: float, high: float, count: int, *, log: bool = False) -> list[float]:
    """At most about `count` round values within [low, high]: steps of 1, 2 or 5 times a power of ten.

    A logarithmic scale of more than a decade has its ticks at 1, 2, 5 of each, or at whole decades.
    """
    if count < 1 or not (math.isfinite(low) and math.isfinite(high)) or not low < high:
        return []
    if log and low > 0 and high / low >= 10:
        return _log_ticks(low, high, count)
    raw = (high / 2 - low / 2) / max(1, count) * 2
    if raw <= 0 or not math.isfinite(raw):
        return []
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= raw), 10 * power)
    if not step or not math.isfinite(step) or not math.isfinite(low / step):
        return []
    first = math.ceil(low / step)
    values = (k * step for k in range(first, first + count + 2))
    return [v for v in values if low <= v <= high]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    for marks, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 5), ((1,), 20), ((1,), 100)):
        values = [m * 10.0**e for e in range(first, last + 1, every) for m in marks]
        values = [v for v in values if low <= v <= high]
        if len(values) <= count:
            return values
    return []


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line to draw, and its rank: in a cell a higher one hides a lower."""

    columns: Columns
    rank: int


@dataclass(frozen=True, slots=True)
class Canvas:
    """Cells row by row: dots as an offset from U+2800 (0 is an empty cell), and the index of the stroke it shows."""

    width: int
    height: int
    dots: list[bytearray]
    owner: list[list[int]]

    def text(self, row: int) -> str:
        """A row as characters."""
        return "".join(chr(0x2800 + d) for d in self.dots[row])


def braille(strokes: Sequence[Stroke], width: int, height: int, scale: Scale) -> Canvas:
    """Draw lines over one another into `width` x `height` cells.

    In a cell the highest rank is shown. Where several of that rank meet, their dots are joined and the cells take
    their colours in turn, so that of two equal lines neither hides the other.
    """
    width, height = max(0, width), max(0, height)
    dots = [bytearray(width) for _ in range(height)]
    owner = [[-1] * width for _ in range(height)]
    rank = [[-1] * width for _ in range(height)]
    sharing = [bytearray(width) for _ in range(height)]  # how many lines of the shown rank meet in a cell
    for index, stroke in enumerate(strokes):
        for row, mask in enumerate(draw(stroke.columns, width, height, scale)):
            for col, bits in enumerate(mask):
                if not bits or rank[row][col] > stroke.rank:
                    continue
                if rank[row][col] < stroke.rank:
                    rank[row][col], dots[row][col], owner[row][col] = stroke.rank, bits, index
                    sharing[row][col] = 1
                else:
                    dots[row][col] |= bits
                    sharing[row][col] = count = min(255, sharing[row][col] + 1)
                    if col // 2 % count == count - 1:  # in turns of two cells: shorter ones look like noise
                        owner[row][col] = index
    return Canvas(width, height, dots, owner)


def draw(columns: Columns, width: int, height: int, scale: Scale) -> list[bytearray]:
    """One line as the dots of `width` x `height` cells: a stroke a column, joined to the column before it."""
    cells = [bytearray(max(0, width)) for _ in range(max(0, height))]
    rows = height * 4
    if rows <= 0 or width <= 0:
        return cells
    before: tuple[int, int] | None = None  # dot column and row where the line stands
    for x in range(min(columns.width, width * 2)):
        top, bottom = _row(columns.high[x], scale, rows), _row(columns.low[x], scale, rows)
        if top is None:
            before = None if x in columns.breaks else before
            continue
        bottom = rows - 1 if bottom is None else bottom  # on a logarithmic scale a value of 0 or less lies below
        start = _row(columns.first[x], scale, rows)
        if before is not None and start is not None:
            top, bottom = _join(cells, before, (x, start), top, bottom)
        for y in range(top, bottom + 1):
            cells[y >> 2][x >> 1] |= _BITS[y & 3][x & 1]
        end = _row(columns.last[x], scale, rows)
        before = (x, end) if end is not None and x not in columns.breaks else None
    return cells


def _join(
    cells: list[bytearray], start: tuple[int, int], end: tuple[int, int], top: int, bottom: int
) -> tuple[int, int]:
    """Draw what lies between two columns; returns the stroke of the second, made long enough to touch."""
    (x0, y0), (x1, y1) = start, end
    last = y0
    for x in range(x0 + 1, x1):
        y = y0 + round((y1 - y0) * (x - x0) / (x1 - x0))
        for row in _between(last, y):
            cells[row >> 2][x >> 1] |= _BITS[row & 3][x & 1]
        last = y
    reach = _between(last, y1)
    return min(top, reach.start), max(bottom, reach.stop - 1)


def _between(last: int, y: int) -> range:
    """The dot rows of a column at `y` that touch a neighbour at `last` without doubling its dot."""
    if y > last:
        return range(last + 1, y + 1)
    return range(y, last) if y < last else range(y, y + 1)


def _row(y: float, scale: Scale, rows: int) -> int | None:
    """The dot row of a value, 0 at the top; None where it cannot be drawn."""
    if math.isnan(y):
        return None
    at = scale.share(y)
    return None if at is None or math.isnan(at) else rows - 1 - int(at * (rows - 1) + 0.5)
