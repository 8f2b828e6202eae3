"""Where a run's warm-up ends.

MSER-5: K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6),
1997. The series is averaged in batches of five; of all truncation points the one is taken that makes the standard
error of the remaining mean smallest: it weighs the bias of keeping a warm-up against the loss of data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

BATCH = 5
MIN_BATCHES = 20  # with 6 batches MSER-5 drops something from every second stationary run: it needs about 100 points


def mser5(series: npt.ArrayLike) -> int:
    """How many leading points of `series` (one-dimensional, finite; any unit) are warm-up.

    A multiple of 5, at most half of the series. 0 for a series of fewer than 100 points: too short to tell. A
    minimum in the second half would mean that the run never settled, so only the first half is searched. Raises
    ValueError where `series` is not one-dimensional or not finite.
    """
    import numpy as np

    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"mser5 takes one series, got an array of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("mser5 takes finite values; leave unknown iterations out")
    return int(mser5_rows(values[np.newaxis, :])[0])


def mser5_rows(rows: Floats) -> npt.NDArray[np.intp]:
    """`mser5` of every row of `rows` (runs x points, finite) at once: the points to drop, one a row."""
    import numpy as np

    count = rows.shape[-1] // BATCH
    if count < MIN_BATCHES:
        return np.zeros(rows.shape[0], dtype=np.intp)
    means = rows[:, : count * BATCH].reshape(rows.shape[0], count, BATCH).mean(axis=-1)
    level = means[:, count // 2 :].mean(axis=-1, keepdims=True)
    centred = means - level  # on the later half, so that a huge first batch costs the others no digits
    flat = np.abs(centred).max(axis=-1) <= 1e-12 * np.abs(level[:, 0])
    # Sums from the end: entry d speaks of the batches d, d+1, ... that stay when d batches are dropped.
    left = np.cumsum(centred[:, ::-1], axis=-1)[:, ::-1]
    squares = np.cumsum(centred[:, ::-1] ** 2, axis=-1)[:, ::-1]
    stay = np.arange(count, 0, -1, dtype=np.float64)
    error = (squares - left**2 / stay) / stay**2
    best = np.argmin(error[:, : count // 2 + 1], axis=-1)
    return np.where(flat, 0, best * BATCH)
