"""Confidence intervals: within one run by batch means, between runs by a cautious Welch's t on logarithms.

Everything works along the last axis, so that a simulation judges the very code that a comparison uses. How the
method was chosen among others by its measured coverage: docs/design/verdict-interval.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
MIN_ITERATIONS = 50  # five batches of ten: fewer do not tell how far iterations hang together
_CAUTION = 1.5  # 1 is Welch; 2 covers more than 97 % at three equal runs a side
_FLAT = 1e-12  # relative spread below which values are the same but for rounding


def t_quantile(confidence: float, df: npt.ArrayLike) -> Floats:
    """The two-sided Student t quantile at `confidence` (0..1) for `df` degrees of freedom; not below 1 for df."""
    import numpy as np
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(df, 1.0), 0.5 + confidence / 2), dtype=np.float64)


def t_below(value: npt.ArrayLike, df: npt.ArrayLike) -> Floats:
    """The share (0..1) of Student's t with `df` degrees of freedom that lies below `value`."""
    import numpy as np
    from scipy.special import stdtr

    return np.asarray(stdtr(df, value), dtype=np.float64)


def variance(values: Floats) -> Floats:
    """Sample variance along the last axis; exactly 0 where the values differ by rounding only."""
    import numpy as np

    spread = np.ptp(values, axis=-1)
    scale = np.maximum(np.abs(values).max(axis=-1), 1.0)
    return np.where(spread <= _FLAT * scale, 0.0, values.var(axis=-1, ddof=1))


def between_runs(a: Floats, b: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Difference mean(b) - mean(a) with its interval: (difference, low, high), unequal variances allowed.

    `a` and `b` hold runs along the last axis (at least two each); leading axes are independent draws. Welch's t
    (Biometrika 34, 1947) with a critical value that is made more cautious where few runs let Welch's err too often,
    see `_critical`. The interval has no width where no side varies.
    """
    import numpy as np

    n_a, n_b = a.shape[-1], b.shape[-1]
    error_a, error_b = variance(a) / n_a, variance(b) / n_b
    error = error_a + error_b
    difference = b.mean(axis=-1) - a.mean(axis=-1)
    difference = np.where((error == 0) & (np.abs(difference) <= _FLAT), 0.0, difference)
    half = _critical(error_a, error_b, n_a, n_b, confidence) * np.sqrt(error)
    return difference, difference - half, difference + half


def _critical(error_a: Floats, error_b: Floats, n_a: int, n_b: int, confidence: float) -> Floats:
    """The multiple of the standard error at which the interval ends; `error_*` are the squared errors of the means.

    Satterthwaite's degrees of freedom lie between those of the smaller side and those of both. With three runs they
    are themselves an uncertain estimate, and too high where the sides vary unequally: what they have above the lower
    bound is taken to the power 1.5. Where one side has fewer runs, the value is moved besides towards that of Cochran
    and Cox (1950), by the share of runs that the side lacks. Both numbers were chosen by simulation.
    """
    import numpy as np

    error = error_a + error_b
    least, most = min(n_a, n_b) - 1, n_a + n_b - 2
    weight = error_a**2 / (n_a - 1) + error_b**2 / (n_b - 1)
    df = np.divide(error**2, weight, out=np.full_like(error, most), where=weight > 0)
    above = np.clip((df - least) / (most - least), 0.0, 1.0)
    critical = t_quantile(confidence, least + (most - least) * above**_CAUTION)
    if n_a == n_b:
        return critical
    share = np.divide(error_a, error, out=np.zeros_like(error), where=error > 0)
    cochran = share * t_quantile(confidence, n_a - 1) + (1 - share) * t_quantile(confidence, n_b - 1)
    lacking = 1 - min(n_a, n_b) / max(n_a, n_b)
    return np.asarray((1 - lacking) * critical + lacking * cochran)


def mean_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student's interval of the mean of independent `values` (one a run); None for fewer than two."""
    import numpy as np

    n = values.size
    if n < 2:
        return None
    half = float(t_quantile(confidence, n - 1) * np.sqrt(variance(values) / n))
    mean = float(values.mean())
    return mean - half, mean + half


def batch_count(n: int) -> int:
    """How many batches a run of `n` iterations is cut into: 5 to 30, 0 where it is too short.

    Schmeiser's advice is 10 to 30; below 200 iterations fewer but longer batches keep the coverage, at the price of
    a wider interval. A batch has 10 iterations at least and 20 where it can, long against the autocorrelation seen
    in trainings (0.2 to 0.5 at lag one).
    """
    return 0 if n < MIN_ITERATIONS else min(max(n // 20, 5), 30)


def _batches(values: Floats, count: int) -> Floats:
    size = values.size // count
    return values[values.size - size * count :].reshape(count, size)


def ratio_interval(num: Floats, den: Floats, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Interval of sum(num) / sum(den) within one run whose iterations are autocorrelated; None where too few.

    Non-overlapping batch means (B. Schmeiser, Operations Research 30, 1982) of the linearised ratio: the batches are
    nearly independent although the iterations are not.
    """
    import numpy as np

    count = batch_count(num.size)
    if not count:
        return None
    ratio = float(num.sum() / den.sum())
    tops, bottoms = _batches(num, count).mean(axis=-1), _batches(den, count).mean(axis=-1)
    residual = tops - ratio * bottoms
    half = float(t_quantile(confidence, count - 1) * residual.std(ddof=1) / np.sqrt(count) / bottoms.mean())
    return ratio - half, ratio + half


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Interval of the median within one run, from the spread of its batches' medians; None where too few."""
    import numpy as np

    count = batch_count(values.size)
    if not count:
        return None
    medians = np.median(_batches(values, count), axis=-1)
    half = float(t_quantile(confidence, count - 1) * medians.std(ddof=1) / np.sqrt(count))
    middle = float(np.median(values))
    return middle - half, middle + half
