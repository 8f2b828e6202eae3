"""Intervals: within a run and between runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cockpit.metrics import interval
from tests.metrics.test_steady import noise

logs = st.lists(st.floats(-2, 2), min_size=3, max_size=12).filter(lambda v: np.ptp(v) > 1e-3)


def oracle(
    a: np.ndarray[tuple[int], np.dtype[np.float64]], b: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[float, float]:
    """scipy's Welch interval of mean(b) - mean(a)."""
    found = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    return float(found.low), float(found.high)


@settings(max_examples=100, deadline=None)
@given(logs, logs)
def test_between_runs_is_never_narrower_than_welch_and_never_wider_than_cochran_and_cox(
    a: list[float], b: list[float]
) -> None:
    x, y = np.array(a), np.array(b)
    difference, low, high = interval.between_runs(x, y)
    assert difference == pytest.approx(y.mean() - x.mean())
    half = float(high - low) / 2
    welch_low, welch_high = oracle(x, y)
    assert half >= (welch_high - welch_low) / 2 * (1 - 1e-9)
    errors = x.var(ddof=1) / x.size, y.var(ddof=1) / y.size
    own = [e * stats.t.ppf(0.975, n - 1) for e, n in zip(errors, (x.size, y.size), strict=True)]
    least = stats.t.ppf(0.975, min(x.size, y.size) - 1) * math.sqrt(sum(errors))
    assert half <= max(sum(own) / math.sqrt(sum(errors)), least) * (1 + 1e-9)


def test_for_equal_counts_and_spreads_it_is_welch() -> None:
    x = np.array([1.0, 2.0, 4.0, 3.0])
    y = x[::-1] + 0.7
    _, low, high = interval.between_runs(x, y)
    assert (float(low), float(high)) == pytest.approx(oracle(x, y))


@settings(max_examples=50, deadline=None)
@given(logs, logs)
def test_swapping_the_sides_mirrors_the_interval(a: list[float], b: list[float]) -> None:
    _, low, high = interval.between_runs(np.array(a), np.array(b))
    _, low_back, high_back = interval.between_runs(np.array(b), np.array(a))
    assert (float(low), float(high)) == pytest.approx((-float(high_back), -float(low_back)))


def test_draws_along_leading_axes_are_judged_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((7, 3)), rng.standard_normal((7, 5))
    together = np.stack(interval.between_runs(a, b))
    alone = np.array([interval.between_runs(x, y) for x, y in zip(a, b, strict=True)]).T
    assert together == pytest.approx(alone)


def test_sides_that_do_not_vary_have_an_interval_without_width() -> None:
    same, other = np.full(3, 0.1 + 0.2), np.full(3, 0.3)
    assert [float(v) for v in interval.between_runs(same, other)] == [0.0, 0.0, 0.0]
    _, low, high = interval.between_runs(same, other + 1)
    assert float(low) == float(high) == pytest.approx(1.0)


def test_one_side_that_does_not_vary_leaves_the_other_side_s_spread() -> None:
    x = np.array([1.0, 1.1, 0.9])
    _, low, high = interval.between_runs(np.zeros(3), x)
    assert (float(low), float(high)) == pytest.approx(interval.mean_interval(x))


def test_the_mean_of_one_run_has_no_interval() -> None:
    assert interval.mean_interval(np.array([1.0])) is None


@pytest.mark.parametrize(("n", "batches"), [(49, 0), (50, 5), (100, 5), (240, 12), (600, 30), (10**6, 30)])
def test_batches_grow_with_the_run(n: int, batches: int) -> None:
    assert interval.batch_count(n) == batches


@pytest.mark.parametrize(("n", "phi"), [(60, 0.5), (120, 0.5), (400, 0.5), (400, 0.0)])
def test_within_a_run_the_interval_covers_although_steps_hang_together(n: int, phi: float) -> None:
    draws = 2000
    runs = noise(draws, n, seed=n, phi=phi)
    tokens = np.ones(n)
    ratio = [interval.ratio_interval(tokens, row) for row in runs]
    middle = [interval.median_interval(row) for row in runs]
    error = math.sqrt(0.95 * 0.05 / draws)
    for found, truth in ((ratio, 4.0), (middle, 0.25)):
        covered = np.mean([ci is not None and ci[0] <= truth <= ci[1] for ci in found])
        assert 0.92 - 2 * error <= covered <= 0.97 + 2 * error


def test_taking_autocorrelated_steps_for_independent_would_cover_too_little() -> None:
    runs = noise(1000, 400, seed=11, phi=0.5)
    half = 1.96 * runs.std(axis=-1, ddof=1) / math.sqrt(400)
    naive = np.mean(np.abs(runs.mean(axis=-1) - 0.25) <= half)
    assert naive < 0.85


def test_too_few_iterations_give_no_interval() -> None:
    few = np.full(49, 0.25)
    assert interval.ratio_interval(few, few) is None
    assert interval.median_interval(few) is None
