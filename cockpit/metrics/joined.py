"""Telemetry joined to iterations: what the GPUs did while each one ran.

A line of the log stands for its steps: from its end `t` back by what they took. A tick belongs to the line in which
its stamp falls; a thinned one to the line that holds the middle of its span, if that is no longer than the line.
Power is the mean of the ticks of a line, by GPU and then summed; temperature, clocks and throttle reasons are the
extremes of them. Where no tick falls in, they are None: nothing is carried over from other lines. Energy alone is
interpolated, since it grows between readings too; it is None where it is not known (see course.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cockpit.metrics import energy, iterations
from cockpit.metrics.telemetry import SENSORS, Telemetry
from cockpit.metrics.tickcolumns import THROTTLE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cockpit.metrics.nodes import Nodes
    from cockpit.metrics.tickcolumns import Floats

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

SCHEMA = "ekvi.iterations/1"
SEAM = 0.05  # of a line's time: two clocks measure, and what lies between two lines is no time of its own
RULE = (
    "A tick belongs to the line in which its stamp falls, a thinned one to the line that holds the middle of its "
    "span, if that is no longer than the line. power_w is the mean of a line's ticks, summed over the GPUs; "
    "energy_j is interpolated; all else is null where no tick falls in."
)


@dataclass(frozen=True, slots=True)
class Joined:
    """Columns with one entry a line of the log; NaN is unknown. `hot` points into `sensors`, -1 unknown.

    power_w (W), energy_j (J), temp_c (degC), clk_min_mhz and clk_max_mhz over all GPUs; `throttle` are bits in the
    order of THROTTLE, -1 unknown; `samples` counts the ticks (of the node with the fewest).
    """

    t: Floats
    step: Floats
    steps: Floats
    step_s: Floats
    loss: Floats
    power_w: Floats
    energy_j: Floats
    temp_c: Floats
    hot: Ints
    clk_min_mhz: Floats
    clk_max_mhz: Floats
    throttle: Ints
    samples: Ints
    sensors: tuple[str, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One object a line of the log, None for what is unknown."""
        names = ("t", "step_s", "loss", "power_w", "energy_j", "temp_c", "clk_min_mhz", "clk_max_mhz")
        columns = [getattr(self, name) for name in names]
        words = _words()
        for i in range(self.t.size):
            step, bits = float(self.step[i]), int(self.throttle[i])
            row: dict[str, Any] = {"step": int(step) if math.isfinite(step) else None, "steps": int(self.steps[i])}
            row.update({n: _known(float(c[i])) for n, c in zip(names, columns, strict=True)})
            row["sensor"] = self.sensors[self.hot[i]] if self.hot[i] >= 0 else None
            row["throttle"] = words[bits] if bits >= 0 else None
            row["samples"] = int(self.samples[i])
            yield row


def _known(value: float) -> float | None:
    """None for what is unknown; ten digits are more than a sensor has, but a time needs more."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.10g}") if abs(value) < 1e9 else value


def _words() -> list[list[str]]:
    return [[r for k, r in enumerate(THROTTLE) if bits & (1 << k)] for bits in range(1 << len(THROTTLE))]


def join(columns: iterations.Columns, ticks: Nodes) -> Joined:
    """Telemetry of every node joined to the lines of a log: `columns` as RunDir.columns gives them."""
    import numpy as np

    size = iterations.column(columns, "step_s", None).size
    step, step_s, t = (iterations.column(columns, name, size) for name in ("step", "step_s", "t"))
    steps = iterations.stands_for(step)
    spans = _Spans(_starts(t, np.where(step_s > 0, step_s, math.nan) * steps), t)
    found = [_of_node(one, spans) for one in ticks.each]
    several = len(ticks.each) > 1
    hot, names, base = _hottest(found, ticks.names if several else ("",))
    return Joined(
        t=t,
        step=step,
        steps=steps,
        step_s=step_s,
        loss=iterations.column(columns, "loss", size),
        power_w=np.sum([n.power for n in found], axis=0),
        energy_j=np.sum([n.energy for n in found], axis=0),
        temp_c=base,
        hot=hot,
        clk_min_mhz=_least([n.clk_lo for n in found]),
        clk_max_mhz=-_least([-n.clk_hi for n in found]),
        throttle=_either([n.throttle for n in found]),
        samples=np.min([n.samples for n in found], axis=0),
        sensors=names,
    )


@dataclass(frozen=True, slots=True)
class _Spans:
    """From when to when (s, wall clock) each line of the log speaks; NaN where that is unknown."""

    start: Floats
    end: Floats


def _starts(t: Floats, took: Floats) -> Floats:
    """When each line began: where the line before ended, if that is what it took but for a seam."""
    import numpy as np

    start, before = t - took, np.concatenate(([math.nan], t[:-1]))[: t.size]
    return np.where(np.abs(start - before) <= SEAM * took, before, start)


@dataclass(slots=True)
class _Found:
    """One node's part of `Joined`; `temps` are the sensors' names with their temperatures, hottest taken later."""

    power: Floats
    energy: Floats
    temp: Floats
    hot: Ints
    names: list[str]
    clk_lo: Floats
    clk_hi: Floats
    throttle: Ints
    samples: Ints


class _Cut:
    """Reductions of a node's ticks over spans. `low` and `high` bound each span's ticks: low <= i < high."""

    def __init__(self, telemetry: Telemetry, spans: _Spans) -> None:
        import numpy as np

        inside = np.isfinite(telemetry.span)
        thinned = np.where(inside, telemetry.span, 0.0)
        middle = telemetry.t - thinned / 2
        self.keep = _short_enough(middle, thinned, spans) & inside
        # ticks of different thinning may change places by their middles: spans are cut by them all the same
        self.order = np.flatnonzero(self.keep)[np.argsort(middle[self.keep], kind="stable")]
        at = middle[self.order]
        known = np.isfinite(spans.start) & np.isfinite(spans.end)
        self.low = np.where(known, np.searchsorted(at, np.where(known, spans.start, 0.0), side="right"), 0)
        self.high = np.where(known, np.searchsorted(at, np.where(known, spans.end, 0.0), side="right"), 0)
        self.high = np.maximum(self.high, self.low)
        self.samples: Ints = self.high - self.low
        self._pairs = np.column_stack((self.low, self.high)).ravel()

    def mean(self, column: Floats) -> Floats:
        """Mean of the known values in each span; NaN where there is none."""
        import numpy as np

        values = column[self.order].astype(np.float64)
        known = np.isfinite(values)
        sums = np.concatenate(([0.0], np.cumsum(np.where(known, values, 0.0))))
        counts = np.concatenate(([0], np.cumsum(known)))
        n = counts[self.high] - counts[self.low]
        total = sums[self.high] - sums[self.low]
        return np.where(n > 0, total / np.maximum(n, 1), math.nan)

    def most(self, column: Floats) -> Floats:
        """Largest known value in each span; NaN where there is none."""
        import numpy as np

        values = column[self.order].astype(np.float64)
        found = self._reduced(np.maximum, np.where(np.isfinite(values), values, -np.inf), -np.inf)
        return np.where(np.isfinite(found), found, math.nan)

    def bits(self, masks: Ints) -> Ints:
        """All bits of each span together; 0 where there is none."""
        import numpy as np

        return np.asarray(self._reduced(np.bitwise_or, masks[self.order], 0), dtype=np.int64)

    def _reduced(self, how: np.ufunc, values: Any, nothing: float) -> Any:
        import numpy as np

        padded = np.append(values, values.dtype.type(nothing))  # so that a span may end where the ticks do
        found = how.reduceat(padded, self._pairs)[::2]
        return np.where(self.samples > 0, found, values.dtype.type(nothing))


def _short_enough(middle: Floats, thinned: Floats, spans: _Spans) -> Bools:
    """Whether each tick is a plain one, or speaks for no longer than the line that it falls in took."""
    import numpy as np

    known = np.isfinite(spans.end) & np.isfinite(spans.start)
    if not known.any():
        return np.asarray(thinned == 0, dtype=np.bool_)
    ends, took = spans.end[known], (spans.end - spans.start)[known]
    order = np.argsort(ends, kind="stable")
    line = np.minimum(np.searchsorted(ends[order], middle), ends.size - 1)
    return np.asarray(thinned <= took[order][line] * (1 + 1e-6), dtype=np.bool_)


def _of_node(one: Telemetry, spans: _Spans) -> _Found:
    import numpy as np

    size = spans.end.size
    unknown = np.full(size, math.nan)
    if not len(one):
        nothing = np.full(size, -1, dtype=np.int64)
        return _Found(unknown, unknown, unknown, nothing, [], unknown, unknown, nothing, nothing + 1)
    cut = _Cut(one, spans)
    names: list[str] = []
    temp, hot = unknown, np.full(size, -1, dtype=np.int64)
    for index, column in one.devices.items():
        for key, sensor in SENSORS.items():
            found = cut.most(column[key])
            better = np.isfinite(found) & ~(found <= temp)
            if better.any():
                temp, hot = np.where(better, found, temp), np.where(better, len(names), hot)
                names.append(f"GPU {index} {sensor}")
    return _Found(
        power=_power(one, cut, unknown),
        energy=_energy(one, spans),
        temp=temp,
        hot=hot,
        names=names,
        clk_lo=_least([-cut.most(-c["clk_lo"]) for c in one.devices.values()] or [unknown]),
        clk_hi=-_least([-cut.most(c["clk_hi"]) for c in one.devices.values()] or [unknown]),
        throttle=_throttle(one, cut),
        samples=cut.samples,
    )


def _power(one: Telemetry, cut: _Cut, unknown: Floats) -> Floats:
    """Mean power of the node: the sum over its GPUs, NaN where one of them is not known."""
    import numpy as np

    if not one.devices:
        dense = np.full(len(one), math.nan)
        dense[one.host_at] = one.host["power_w"]
        return cut.mean(dense)
    means = [cut.mean(one.devices[i]["power_w"]) for i in energy.reporting(one)]
    return np.sum(means, axis=0) if means else unknown


def _energy(one: Telemetry, spans: _Spans) -> Floats:
    """Energy of each span, NaN where it is not known or lies outside of the readings."""
    import numpy as np

    out = np.zeros(spans.end.size)
    for course in energy.courses(one) or []:
        joules = course.joules()
        grown = np.interp(spans.end, course.t, joules) - np.interp(spans.start, course.t, joules)
        dark = np.interp(spans.end, course.t, course.unknown) - np.interp(spans.start, course.t, course.unknown)
        outside = ~((spans.start >= course.t[0]) & (spans.end <= course.t[-1]))
        out += np.where((dark > 1e-6) | outside, math.nan, grown)
    return out if energy.courses(one) else np.full(spans.end.size, math.nan)


def _throttle(one: Telemetry, cut: _Cut) -> Ints:
    """Reasons of any GPU in each span as bits; -1 where none is known."""
    import numpy as np

    if not one.devices:
        return np.full(cut.samples.size, -1, dtype=np.int64)
    masks = np.stack([c["throttle"] for c in one.devices.values()])
    told = np.nan_to_num(masks, nan=-1.0).astype(np.int64)
    marked = np.where(told >= 0, told | (1 << len(THROTTLE)), 0)  # one more bit: something is known
    bits = cut.bits(np.bitwise_or.reduce(marked, axis=0))
    return np.where(bits > 0, bits & ((1 << len(THROTTLE)) - 1), -1)


def _least(columns: list[Floats]) -> Floats:
    """The smallest known value of several columns."""
    import numpy as np

    return np.asarray(np.fmin.reduce(columns))


def _either(columns: list[Ints]) -> Ints:
    """Bits of all columns; -1 where none is known."""
    import numpy as np

    known = np.max(columns, axis=0) >= 0
    bits = np.bitwise_or.reduce([np.maximum(c, 0) for c in columns])
    return np.where(known, bits, -1)


def _hottest(found: list[_Found], names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...], Floats]:
    """(which sensor, the sensors' names, its temperature) of the hottest over all nodes."""
    import numpy as np

    told: list[str] = []
    hot = np.full(found[0].temp.size, -1, dtype=np.int64)
    temp = np.full(hot.size, math.nan)
    for one, name in zip(found, names, strict=True):
        better = np.isfinite(one.temp) & ~(one.temp <= temp)
        temp, hot = np.where(better, one.temp, temp), np.where(better, one.hot + len(told), hot)
        told += [f"{name}, {n}" if name else n for n in one.names]
    return hot, tuple(told), temp


def document(meta: Mapping[str, Any], joined: Joined) -> dict[str, Any]:
    """What stands before the rows of `ekvi.iterations/1`: schema, id, server and the rule of joining."""
    return {
        "schema": SCHEMA,
        "id": meta.get("id"),
        "server": meta.get("server"),
        "rule": RULE,
        "lines": joined.t.size,
    }
