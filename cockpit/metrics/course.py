"""How one sensor's energy grew: its counter where that can be believed, integrated power where not.

A counter is believed by stretches of about JUDGED_S: where no step runs backwards and the sum is 0.2 to 2 times the
integral of power over the same time; single readings may lag by half a second, so shorter stretches would condemn
an honest one. Within a believed stretch power says how the energy is spread over the time. Over a gap in which power
is not known the counter carries the energy, if it grew as some power between those seen would let it. Without a
counter a gap of up to BRIDGED_S is bridged by a straight line, with half of what power ever swung as its error (5 s
between idle and full load are 1.6 kJ of an H200, 3 % of a run of two minutes); over a longer one nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cockpit.metrics.tickcolumns import Floats, Points

    Bools = npt.NDArray[np.bool_]

JUDGED_S = 5.0
BRIDGED_S = 5.0
USUAL = 2.5  # periods from reading to reading that are no gap
SHORT_S = 1.0  # nor is less than this
EDGE_S = 1.0  # of the readings that are next to a run's begin or end say what there was beyond
LEAST, MOST = 0.2, 2.0  # of the integral, for a counter to be believed
_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Part:
    """Energy of a stretch of time: joules by the counter and by integration, seconds of which nothing is known."""

    counted: float
    integrated: float
    unknown_s: float
    error_j: float

    @property
    def joules(self) -> float:
        """Both together."""
        return self.counted + self.integrated


@dataclass(frozen=True, slots=True)
class Course:
    """Sums since the first reading at the times `t` (s, wall clock): J counted, J integrated, s unknown, J of error.

    `edge_j` is how far the energy at a moment between two of `t` may be off, one entry a step. `doubted` says what
    was wrong with the counter, in seconds: "ran backwards", "stood still", "disagreed with power". `most_w` is the
    largest power seen. `ratio` is the counter over the integral of power where both are known; NaN where they never
    are.
    """

    t: Floats
    counted: Floats
    integrated: Floats
    unknown: Floats
    bridged: Floats
    edge_j: Floats
    most_w: float
    ratio: float
    doubted: dict[str, float]

    def part(self, low: float, high: float) -> Part:
        """The energy from `low` to `high`; outside of all readings it goes on as next to it, and all that is error.

        The last reading stands before the end of a run: without what is between, each energy would be too small.
        """
        import numpy as np

        at = [low, high]
        first, last = float(self.t[0]), float(self.t[-1])
        unknown, bridged = (float(np.diff(np.interp(at, self.t, y))[0]) for y in (self.unknown, self.bridged))
        counted, integrated = (
            float(np.diff(np.interp(at, self.t, y))[0])
            + max(0.0, first - low) * self._rate(first, y)
            + max(0.0, high - last) * self._rate(last - EDGE_S, y)
            for y in (self.counted, self.integrated)
        )
        outside = max(0.0, first - low) + max(0.0, high - last)
        steps = [int(np.searchsorted(self.t, x, side="right")) - 1 for x in at if first < x < last]
        edges = math.fsum(float(self.edge_j[k]) for k in steps)
        return Part(counted, integrated, unknown, bridged + edges + outside * self.most_w)

    def _rate(self, start: float, sums: Floats) -> float:
        """What a sum grows by a second in the EDGE_S from `start`, as far as there are readings."""
        import numpy as np

        at = np.clip([start, start + EDGE_S], self.t[0], self.t[-1])
        return float(np.diff(np.interp(at, self.t, sums))[0] / (at[1] - at[0]))

    def joules(self) -> Floats:
        """Energy since the first reading at each of `t`."""
        return self.counted + self.integrated


@dataclass(frozen=True, slots=True)
class Power:
    """Samples of power at `t` (s, wall clock) and `clock` (s, monotonic), `period` s apart.

    `span` is how long a sample is a mean of (s), 0 for a plain one.
    """

    t: Floats
    clock: Floats
    watts: Floats
    span: Floats
    period: float

    @classmethod
    def of(cls, t: Floats, clock: Floats, watts: Floats, span: Floats, period: float) -> Power:
        """Those of the samples that are known. A sensor may be slower than the ticks: the period is what is seen."""
        import numpy as np

        known = np.isfinite(watts)
        clock, span = clock[known], span[known]
        plain = np.diff(clock)[span[1:] == 0]
        seen = float(np.median(plain)) if plain.size else 0.0
        found = max(seen, period if math.isfinite(period) else 0.0)
        return cls(t[known], clock, watts[known].astype(np.float64), span, found)

    @property
    def usual(self) -> float:
        """Seconds between samples that are no gap."""
        return USUAL * self.period

    def weights(self) -> Floats:
        """Seconds that each sample speaks for: since the one before, no gap included, or its own span."""
        import numpy as np

        known = (self.span[:1] > 0) & np.isfinite(self.span[:1])
        first = np.where(known, self.span[:1], self.period)  # nobody knows what was before
        since = np.concatenate((first, np.diff(self.clock)))
        return np.asarray(np.where(self.span > 0, np.minimum(self.span, since), np.minimum(since, self.usual)))


@dataclass(frozen=True, slots=True)
class _Integral:
    """Integrated power at `t`: J, seconds of which it is not known, and J of error from bridged gaps."""

    t: Floats
    joules: Floats
    unknown: Floats
    error: Floats


def course(power: Power, counter: Points | None) -> Course | None:
    """The course of one sensor, or None where neither power nor a counter is known."""
    import numpy as np

    counts = counter if counter is not None and counter.t.size >= 2 else None
    if counts is None and power.t.size < 2 and not (power.t.size and power.span[0] > 0):
        return None
    integral = _integrate(power, counts)
    readings = np.empty(0) if counts is None else counts.t
    t = np.unique(np.concatenate((integral.t, readings)))
    width = np.diff(t)
    joules, dark, error = _on(t, integral)
    grid = _Grid(t, joules, dark)
    counted: Floats = np.zeros(width.size)
    believed: Bools = np.zeros(width.size, dtype=np.bool_)
    told = _Told(counted)
    if counts is not None:
        counted, believed, told = _by_counter(grid, counts, power)
    if counts is not None and not power.t.size and not believed.any():
        return None
    by_power = np.where(believed | dark, 0.0, joules)
    return Course(
        t=t,
        counted=_sums(np.where(believed, counted, 0.0)),
        integrated=_sums(by_power),
        unknown=_sums(np.where(~believed & dark, width, 0.0)),
        bridged=_sums(np.where(believed | dark, 0.0, error)),
        edge_j=np.where(believed, told.edge_j, 0.0) + _blurred(t, power),
        most_w=float(power.watts.max(initial=0.0)),
        ratio=told.ratio,
        doubted=told.doubted,
    )


@dataclass(frozen=True, slots=True)
class _Grid:
    """Times, and for each step between them: J by power, and whether power is not known."""

    t: Floats
    joules: Floats
    dark: Bools


@dataclass(frozen=True, slots=True)
class _Told:
    """Of a counter: the error of a moment in each step, its ratio to power, what was wrong with it."""

    edge_j: Floats
    ratio: float = math.nan
    doubted: dict[str, float] = field(default_factory=dict)


def _sums(steps: Floats) -> Floats:
    import numpy as np

    return np.concatenate(([0.0], np.cumsum(steps)))


def _integrate(power: Power, counter: Points | None) -> _Integral:
    """Power over time, sample by sample: a mean over its own span, a straight line between plain ones."""
    import numpy as np

    if not power.t.size:
        return _Integral(*[np.empty(0)] * 4)
    since = np.diff(power.clock)
    covered = np.minimum(power.span[1:], since)
    rest = since - covered
    p0, p1 = power.watts[:-1], power.watts[1:]
    bound = max(BRIDGED_S, power.usual)
    swing = float(np.ptp(power.watts))
    gap, lost = rest > max(SHORT_S, power.usual) + _EPS, rest > bound + _EPS
    wall = np.diff(power.t)
    border = power.t[1:] - np.where(since > 0, covered / np.where(since > 0, since, 1.0) * wall, 0.0)

    def woven(between: Floats, within: Floats) -> Floats:
        return np.column_stack((between, within)).ravel()

    t = woven(border, power.t[1:])
    joules = woven(np.where(lost, 0.0, rest * (p0 + p1) / 2), covered * p1)
    unknown = woven(np.where(lost, rest, 0.0), np.zeros(rest.size))
    error = woven(np.where(gap & ~lost, rest * swing / 2, 0.0), np.zeros(rest.size))
    head, tail = _ends(power, counter)
    t = np.concatenate(([power.t[0] - head], power.t[:1], t, [power.t[-1] + tail]))
    joules = np.concatenate(([0.0], [head * power.watts[0]], joules, [tail * power.watts[-1]]))
    unknown, error = (np.concatenate(([0.0, 0.0], y, [0.0])) for y in (unknown, error))
    keep = np.concatenate(([True], np.diff(t) > 0))
    return _Integral(t[keep], *(np.cumsum(y)[keep] for y in (joules, unknown, error)))


def _on(t: Floats, integral: _Integral) -> tuple[Floats, Bools, Floats]:
    """The integral between the times `t`: J, whether it is not known, J of error."""
    import numpy as np

    if not integral.t.size:
        return np.zeros(t.size - 1), np.ones(t.size - 1, dtype=bool), np.zeros(t.size - 1)
    joules, unknown, error = (
        np.diff(np.interp(t, integral.t, y)) for y in (integral.joules, integral.unknown, integral.error)
    )
    middle = (t[:-1] + t[1:]) / 2
    dark = (middle < integral.t[0]) | (middle > integral.t[-1]) | (unknown > _EPS)
    return joules, dark, error


def _blurred(t: Floats, power: Power) -> Floats:
    """J by which a moment in each step may be off because a thinned tick tells only the mean of its span.

    Of a span half may have been drawn at the largest power and half at none: at its middle that is a quarter off.
    """
    import numpy as np

    out = np.zeros(t.size - 1)
    if not (power.span > 0).any():
        return out
    spoken = np.where(power.span > 0, power.weights(), 0.0)
    middle = (t[:-1] + t[1:]) / 2
    of = np.searchsorted(power.t, middle)
    known = of < power.t.size
    span = spoken[of[known]]
    within = middle[known] > power.t[of[known]] - span
    out[known] = np.where(within, span * float(power.watts.max()) / 4, 0.0)
    return out


def _ends(power: Power, counter: Points | None) -> tuple[float, float]:
    """Seconds before the first and after the last sample for which they speak: to the counter's nearest reading."""
    head = float(power.span[0]) if math.isfinite(power.span[0]) else 0.0
    tail = 0.0
    if counter is not None:
        before, after = float(power.t[0] - counter.t[0]), float(counter.t[-1] - power.t[-1])
        head = max(head, before if 0 < before <= power.usual else 0.0)
        tail = after if 0 < after <= power.usual else 0.0
    return head, tail


def _by_counter(grid: _Grid, counter: Points, power: Power) -> tuple[Floats, Bools, _Told]:
    """For each step of the grid: J by the counter, whether that is believed; and what there is to tell of it."""
    import numpy as np

    jumps, took = np.diff(counter.joules), np.diff(counter.t)
    block = _blocks(counter, took)
    middle = (grid.t[:-1] + grid.t[1:]) / 2
    pair = np.searchsorted(counter.t, middle, side="right") - 1
    under = (pair >= 0) & (pair < took.size)
    pair = np.clip(pair, 0, took.size - 1)
    where = block[pair]
    n = int(block[-1]) + 1

    def summed(index: npt.NDArray[np.int64], values: Floats) -> Floats:
        return np.bincount(index, weights=values, minlength=n).astype(np.float64)

    grown, lasted = summed(block, jumps), summed(block, took)
    joules = summed(where[under], grid.joules[under])
    judged = summed(where[under], grid.dark[under].astype(np.float64)) == 0
    broken = summed(block, (np.diff(counter.source) != 0).astype(np.float64)) > 0
    back = summed(block, (jumps < 0).astype(np.float64)) > 0
    agrees = (joules <= 0) | ((grown >= LEAST * joules) & (grown <= MOST * joules))
    fine = judged & agrees & ~back & ~broken
    fine |= ~judged & ~back & ~broken & _plausible(grown, lasted, power) & _trusted(fine, judged, lasted)
    if not power.t.size and not grown[fine].sum() > 0:
        fine[:] = False  # it never moved: it tells nothing
    shaped = judged & (joules > 0)
    scale = np.divide(grown, joules, out=np.ones(n), where=shaped)
    linear = jumps[pair] * np.diff(grid.t) / took[pair]
    counted = np.where(shaped[where], grid.joules * scale[where], linear)
    good = fine & shaped
    # between two readings without power to say how it grew, all that the counter grew by may have come at once
    parted = float(np.percentile(np.abs(grown[good] - joules[good]), 95)) if good.any() else 0.0
    told = _Told(
        edge_j=np.where(shaped[where], parted, np.abs(jumps[pair])),
        ratio=float(grown[good].sum() / joules[good].sum()) if good.any() else math.nan,
        doubted=_doubts(grown, lasted, ~(fine | broken), back),
    )
    return counted, under & fine[where], told


def _blocks(counter: Points, took: Floats) -> npt.NDArray[np.int64]:
    """The stretch that each pair of readings belongs to: about JUDGED_S, a longer pair alone, one source in each."""
    import numpy as np

    bins = np.floor((counter.t[:-1] - counter.t[0]) / JUDGED_S)
    alone = (took > JUDGED_S) | (np.diff(counter.source) != 0)
    first = np.concatenate(([True], (np.diff(bins) != 0) | alone[1:] | alone[:-1]))
    block = np.cumsum(first) - 1
    lasted = np.bincount(block, weights=took)
    lonely = alone[first]
    short = (lasted < JUDGED_S / 2) & ~lonely  # judged together with the one before
    short &= np.concatenate(([False], ~lonely[:-1]))
    merged = np.cumsum(~short)[block].astype(np.int64)
    return np.asarray(merged - merged[0])


def _plausible(grown: Floats, lasted: Floats, power: Power) -> Bools:
    """Whether a counter grew as some power between those seen would let it."""
    import numpy as np

    if not power.t.size:
        return np.ones(grown.size, dtype=bool)
    low, high = LEAST * float(power.watts.min()) * lasted, MOST * float(power.watts.max()) * lasted
    return (grown >= low) & (grown <= high)


def _trusted(fine: Bools, judged: Bools, lasted: Floats) -> bool:
    """Whether the counter agreed with power for most of the time in which it could be judged."""
    total = float(lasted[judged].sum())
    return total == 0 or float(lasted[fine].sum()) >= total / 2


def _doubts(grown: Floats, lasted: Floats, bad: Bools, back: Bools) -> dict[str, float]:
    """What was wrong with the counter, and for how many seconds."""
    doubted: dict[str, float] = {}
    for why, which in (
        ("ran backwards", bad & back),
        ("stood still", bad & ~back & (grown == 0)),
        ("disagreed with power", bad & ~back & (grown != 0)),
    ):
        if which.any():
            doubted[why] = float(lasted[which].sum())
    return doubted
