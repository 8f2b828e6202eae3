"""The verdict on one metric for one pair of sides: rules in order, and the sentence that says why.

The run is the unit: each gives one value, compared on a logarithmic scale, so that the answer is a ratio. The
interval is a cautious Welch's t (`interval.between_runs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cockpit.metrics import interval, words
from cockpit.metrics.words import Judged

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MIN_RUNS = 3
_POWER = 0.8  # planned runs settle the question this often
_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """`ratio` is second over first, with `ci95` where both sides have two runs; None where it cannot be said."""

    verdict: str
    why: str
    ratio: float | None = None
    ci95: tuple[float, float] | None = None
    needs_runs: int | None = None


def judge(
    metric: Judged,
    first: tuple[str, Sequence[float]],
    second: tuple[str, Sequence[float]],
    *,
    within: float,
    confidence: float = interval.CONFIDENCE,
) -> PairVerdict:
    """Judge `second` against `first`, each a name with one finite value a run.

    `within` is the ratio that counts as the same (0.01 for 1 %). Rules in order: not_comparable (no value on a side,
    or one of zero or less), insufficient_runs, SIDE_better, equivalent, indistinguishable.
    """
    import numpy as np

    for name, values in (first, second):
        if not values:
            return PairVerdict("not_comparable", f"{metric.name} is not known for {name}.")
        if min(values) <= 0:
            return PairVerdict(
                "not_comparable", f"{name} has a {metric.name} of zero or less: no ratio can be formed."
            )
    a, b = (np.log(np.asarray(v, dtype=np.float64)) for _, v in (first, second))
    counts = (a.size, b.size)
    ratio = math.exp(float(b.mean() - a.mean()))
    if min(counts) < 2:
        return _few(metric, second[0], ratio, None, counts)
    difference, low, high = (float(x) for x in interval.between_runs(a, b, confidence))
    ratio, ci = math.exp(difference), (math.exp(low), math.exp(high))
    if min(counts) < MIN_RUNS:
        return _few(metric, second[0], ratio, ci, counts)
    return _rules(metric, (first[0], second[0]), (a, b), ratio, ci, within, confidence)


def _few(
    metric: Judged, side: str, ratio: float, ci: tuple[float, float] | None, counts: tuple[int, int]
) -> PairVerdict:
    seen = f"{words.effect(metric, side, ratio)} {words.runs(counts)}"
    spread = f" ({words.interval(ci)})" if ci else ""
    why = f"{seen}{spread}, but fewer than {MIN_RUNS} runs a side are too few for a verdict."
    return PairVerdict("insufficient_runs", why, ratio, ci, MIN_RUNS)


def _rules(
    metric: Judged,
    names: tuple[str, str],
    logs: tuple[interval.Floats, interval.Floats],
    ratio: float,
    ci: tuple[float, float],
    within: float,
    confidence: float,
) -> PairVerdict:
    counts = (logs[0].size, logs[1].size)
    seen = f"{words.effect(metric, names[1], ratio)} {words.runs(counts)}"
    band = words.bound(within)
    flat = not any(float(interval.variance(x)) for x in logs)
    caution = " No side varies at all between its runs: check that they are not copies." if flat else ""
    if ci[0] > 1 or ci[1] < 1:
        better = names[1] if (ratio > 1) == metric.higher else names[0]
        shown = words.interval(ci)
        return PairVerdict(
            f"{better}_better", f"{seen}, and {shown} leaves no room for equal sides.{caution}", ratio, ci
        )
    if ci[0] >= 1 - within and ci[1] <= 1 + within:
        why = f"{seen}, and {words.interval(ci)} lies within {band}: equal for that purpose.{caution}"
        return PairVerdict("equivalent", why, ratio, ci)
    need, what = needed(logs, math.log(ratio), within, confidence)
    settle = (
        f"; about {need} runs a side would settle {what}" if need else "; no reasonable number of runs would tell"
    )
    why = f"{seen}, but {words.interval(ci)} includes no difference{settle}."
    return PairVerdict("indistinguishable", why, ratio, ci, need)


def needed(
    logs: tuple[interval.Floats, interval.Floats],
    effect: float,
    within: float,
    confidence: float = interval.CONFIDENCE,
) -> tuple[int | None, str]:
    """Runs a side that would settle it, and what: the effect seen, or that the sides are the same within `within`.

    The smaller of two plans, each to succeed four times in five if effect and spread are what they seem; a spread
    from three runs is itself known only within a factor of two or three, hence "about". None above a thousand.
    """
    spread = math.sqrt(sum(float(interval.variance(x)) for x in logs))
    if spread <= 0:
        return None, ""
    present = min(x.size for x in logs)
    plans = [
        (_to_differ(spread, abs(effect), present, confidence), words.percent(math.exp(effect))),
        (_to_agree(spread, abs(effect), within, present, confidence), f"that they are within {words.bound(within)}"),
    ]
    known = [(n, what) for n, what in plans if n is not None]
    return min(known) if known else (None, "")


def _to_differ(spread: float, effect: float, present: int, confidence: float) -> int | None:
    """The least n, above `present`, at which the interval of width spread/sqrt(n) leaves out no difference."""
    import numpy as np

    if effect <= 0:
        return None
    n = np.arange(present + 1, _MOST_RUNS + 1)
    df = 2 * (n - 1)
    reach = interval.t_quantile(confidence, df) + interval.t_quantile(2 * _POWER - 1, df)
    return _least(n, reach * spread / np.sqrt(n) <= effect)


def _to_agree(spread: float, effect: float, within: float, present: int, confidence: float) -> int | None:
    """The least n, above `present`, at which the interval lies within the bound: both of its ends must."""
    import numpy as np

    room = math.log1p(within)
    if effect >= room:
        return None
    n = np.arange(present + 1, _MOST_RUNS + 1)
    df, error = 2 * (n - 1), spread / np.sqrt(n)
    critical = interval.t_quantile(confidence, df)
    above = interval.t_below((room - effect) / error - critical, df)
    below = interval.t_below(critical - (room + effect) / error, df)
    return _least(n, above - below >= _POWER)


def _least(n: npt.NDArray[np.intp], enough: npt.NDArray[np.bool_]) -> int | None:
    import numpy as np

    found = np.flatnonzero(enough)
    return int(n[found[0]]) if found.size else None
