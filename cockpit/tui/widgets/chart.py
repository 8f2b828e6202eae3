"""A chart of several runs over the step: one line-API widget in braille."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from textual.strip import Strip

from cockpit.tui import words
from cockpit.tui.widgets.panel import Panel, Part, strip
from cockpit.tui.widgets.plot import Canvas, Columns, Scale, Stroke, braille, scale_of, ticks

_FADES = (0.0, 0.5, 0.66, 0.74)  # of the current run and of the repeats before it, the nearest first
_LEAST = 3  # rows that a plot needs before legend and step labels get theirs


@dataclass(frozen=True, slots=True)
class Track:
    """A run's column as a line: `age` 0 is its server's current run, 1 the repeat before it, and so on."""

    run: str
    server: str
    label: str
    side: int
    age: int
    xs: Sequence[float]
    ys: Sequence[float]


class Chart(Panel, can_focus=True):
    """Lines of all runs, the current ones bright, with round ticks and a legend that says the last values."""

    def __init__(self, title: str, *, robust: bool, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.border_title = title
        self._title = title
        self._robust = robust
        self._tracks: Sequence[Track] = ()
        self._total: int | None = None
        self._columns: dict[str, Columns] = {}
        self._x_hi = 0.0
        self.log_scale = False

    def show(self, tracks: Sequence[Track], total: int | None) -> None:
        """Take the lines to draw; `total` is the last step to come, where it is known."""
        self._tracks, self._total = tracks, total
        self.repaint()

    def toggle_log(self) -> None:
        """Change between a linear and a logarithmic scale."""
        self.log_scale = not self.log_scale
        self.border_title = f"{self._title} (log)" if self.log_scale else self._title
        self.repaint()

    def rows(self, width: int, height: int) -> list[Strip]:
        """Legend, plot and step labels."""
        extra = height - _LEAST
        legend = [self._legend(width)] if extra >= 1 else []
        plot_height = height - len(legend) - (1 if extra >= 2 else 0)
        # Of one width, so that the plot does not jump with its labels; none where it is tight.
        gutter = 7 if width >= 30 else 0
        plot = self._plot(width - gutter, gutter, plot_height)
        steps = [self._steps(width - gutter, gutter)] if extra >= 2 else []
        return legend + plot + steps

    def _plot(self, width: int, gutter: int, height: int) -> list[Strip]:
        columns = self._decimated(width * 2)
        if not any(track.xs for track in self._tracks):
            return self._message("waiting for the first iteration", width + gutter, height)
        scale = scale_of(columns.values(), log=self.log_scale, robust=self._robust)
        if not any(math.isfinite(v) for c in columns.values() for v in c.high):
            return self._message("this log does not say it", width + gutter, height)
        ordered = sorted(self._tracks, key=lambda t: -t.age)
        strokes = [Stroke(columns[t.run], -min(t.age, len(_FADES) - 1) + len(_FADES)) for t in ordered]
        canvas = braille(strokes, width, height, scale)
        styles = [self.look.side(t.side, fade=_FADES[min(t.age, len(_FADES) - 1)]) for t in ordered]
        labels = _tick_rows(scale, height)
        return [self._row(canvas, styles, y, labels.get(y), gutter) for y in range(height)]

    def _decimated(self, width: int) -> dict[str, Columns]:
        """Columns of each run, grown by what came since the last paint; made anew where the range has changed."""
        longest = max((t.xs[-1] for t in self._tracks if t.xs), default=0.0)
        if self._total and self._total >= longest:
            x_hi = float(self._total)
        else:  # the end is not known: grow by a quarter at a time, so that old columns stay valid for long
            x_hi = self._x_hi if self._x_hi >= longest else longest * 1.25
        self._x_hi = max(1.0, x_hi)
        kept: dict[str, Columns] = {}
        for track in self._tracks:
            columns = self._columns.get(track.run)
            if columns is None or (columns.width, columns.x_hi) != (max(0, width), self._x_hi):
                columns = Columns(width, 0.0, self._x_hi)
            columns.extend(track.xs, track.ys)
            kept[track.run] = columns
        self._columns = kept
        return kept

    def _row(self, canvas: Canvas, styles: list[Style], y: int, label: str | None, gutter: int) -> Strip:
        axis, grid = self.look("muted"), self.look("panel", fade=0.35)
        parts: list[Part] = []
        if gutter:
            parts.append((f"{label or '':>{gutter - 1}}"[: gutter - 1], axis))
            parts.append(("┤" if label else "│", self.look("panel")))
        owner, dots = canvas.owner[y], canvas.dots[y]
        blank = "┈" if label else " "
        at = 0
        while at < canvas.width:  # neighbours of one colour become one segment
            end = at + 1
            while end < canvas.width and owner[end] == owner[at]:
                end += 1
            if owner[at] < 0:
                parts.append((blank * (end - at), grid))
            else:
                parts.append(("".join(chr(0x2800 + d) for d in dots[at:end]), styles[owner[at]]))
            at = end
        return strip(parts, canvas.width + gutter, axis)

    def _legend(self, width: int) -> Strip:
        """The current runs and their last values; the values go first where there is little room."""
        say = words.short if self._robust else words.loss
        plain = self.look("foreground")
        current = [t for t in self._tracks if t.age == 0]
        names = [f"{t.server} {t.label}" for t in current]
        values = [f" {say(next((y for y in reversed(t.ys) if math.isfinite(y)), None))}" for t in current]
        if sum(len(n) + len(v) + 4 for n, v in zip(names, values, strict=True)) - 2 > width:
            values = [""] * len(current)
        parts: list[Part] = []
        for track, name, value in zip(current, names, values, strict=True):
            colour = self.look.side(track.side, bold=True)
            parts += [("━ ", colour), (name, plain), (f"{value}  ", colour)]
        if any(t.age for t in self._tracks) and sum(len(text) for text, _ in parts) + 17 <= width:
            parts.append(("┄ earlier repeats", self.look("muted")))
        return strip(parts, width, plain)

    def _steps(self, width: int, gutter: int) -> Strip:
        style = self.look("muted")
        line = [" "] * width
        for value in [0.0, *ticks(0.0, self._x_hi, max(2, width // 9))]:
            text = words.short(value) if value >= 1e4 else f"{value:.0f}"
            at = round(value / self._x_hi * (width - 1)) if self._x_hi else 0
            at = min(max(0, at - (len(text) // 2 if value else 0)), width - len(text))
            if at >= 0 and all(c == " " for c in line[max(0, at - 1) : at + len(text) + 1]):
                line[at : at + len(text)] = text
        word = "step"
        if gutter >= len(word) + 1:
            return strip([(f"{word:>{gutter - 1}} ", style), ("".join(line), style)], width + gutter, style)
        return strip([("".join(line), style)], width + gutter, style)

    def _message(self, text: str, width: int, height: int) -> list[Strip]:
        blank = strip([], width, self.look("muted"))
        lines = [blank] * height
        if height:
            lines[height // 2] = strip([(text.center(width), self.look("muted"))], width, self.look("muted"))
        return lines


def _tick_rows(scale: Scale, height: int) -> dict[int, str]:
    """Labels by the row that they stand in."""
    values = ticks(scale.low, scale.high, max(2, height // 2 - 1), log=scale.log)
    step = min((b - a for a, b in itertools.pairwise(values)), default=0.0)
    rows: dict[int, str] = {}
    for value in values:
        at = scale.share(value)
        if at is not None and height:
            rows.setdefault(height - 1 - int(at * (height - 1) + 0.5), tick_label(value, step))
    return rows


def tick_label(value: float, step: float) -> str:
    """A tick with as many decimals as its step has, in units where it is large."""
    if not step:  # a single tick
        return words.short(value)
    size = max(abs(value), abs(step))
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit and size < limit * 1000:
            return f"{_plain(value / _UNIT[unit], step / _UNIT[unit])}{unit}"
    return _plain(value, step) if 1e-4 <= size < 1e4 or not value else f"{value:.1e}"


_UNIT = {"k": 1e3, "M": 1e6, "G": 1e9}


def _plain(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(abs(step)) + 1e-9))
    return f"{value:.{min(decimals, 6)}f}"
