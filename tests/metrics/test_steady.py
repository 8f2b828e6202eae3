"""Where a run's warm-up ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from cockpit.metrics.steady import mser5, mser5_rows


def noise(rows: int, n: int, seed: int, phi: float = 0.4) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Stationary AR(1) step times around 0.25 s with a spread of 2 %."""
    white = np.random.default_rng(seed).standard_normal((rows, n + 50))
    return np.asarray(0.25 * (1 + 0.02 * lfilter([1.0], [1.0, -phi], white, axis=-1)[:, 50:]))


def by_hand(series: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    """MSER-5 as White writes it, one truncation point after the other."""
    count = len(series) // 5
    means = [series[5 * i : 5 * i + 5].mean() for i in range(count)]
    scores = [np.var(means[d:]) / (count - d) for d in range(count // 2 + 1)]
    return 5 * int(np.argmin(scores))


@pytest.mark.parametrize("n", [0, 1, 30, 99])
def test_nothing_is_dropped_where_the_run_is_too_short_to_tell(n: int) -> None:
    series = np.linspace(2.0, 1.0, n)  # all of it looks like a warm-up
    assert mser5(series) == 0


@pytest.mark.parametrize("warm", [15, 40, 60])
def test_a_planted_warm_up_is_dropped_and_little_more(warm: int) -> None:
    runs = noise(200, 300, seed=warm)
    runs[:, :warm] *= 1.3
    dropped = mser5_rows(runs)
    assert (dropped >= warm).all()
    assert np.median(dropped) <= warm + 15


def test_the_first_half_is_all_that_may_be_dropped() -> None:
    assert mser5(np.linspace(2.0, 1.0, 200)) == 100


def test_a_stationary_run_loses_little() -> None:
    for n, most in ((100, 0.12), (300, 0.05), (1000, 0.02)):
        dropped = mser5_rows(noise(500, n, seed=n))
        assert (dropped > 0).mean() < 0.55
        assert dropped.mean() / n < most


def test_applied_to_what_it_left_it_drops_little_again() -> None:
    runs = noise(100, 400, seed=5)
    runs[:, :50] *= 1.5
    again = [mser5(row[mser5(row) :]) for row in runs]
    assert np.median(again) <= 10
    assert np.mean(again) < 0.1 * 400


def test_constant_times_lose_nothing() -> None:
    assert mser5(np.full(500, 0.1)) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(100, 260), st.integers(0, 2**32 - 1), st.floats(1.0, 50.0))
def test_it_is_the_written_rule(n: int, seed: int, slow: float) -> None:
    series = noise(1, n, seed)[0]
    series[:7] *= slow
    assert mser5(series) == by_hand(series)


def test_a_huge_first_step_costs_no_digits() -> None:
    series = noise(1, 200, seed=3)[0]
    series[0] = 1e6
    assert mser5(series) == by_hand(series)


@pytest.mark.parametrize("bad", [np.ones((2, 100)), np.array([1.0, np.nan] * 60), np.array([np.inf] * 120)])
def test_what_is_not_one_finite_series_is_refused(bad: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(ValueError, match="mser5 takes"):
        mser5(bad)
