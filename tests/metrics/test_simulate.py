"""The promise of a verdict's interval, in small; the whole of it is `python -m tests.metrics.simulate`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cockpit.metrics import interval
from cockpit.metrics.summary import summarise
from tests.metrics import simulate
from tests.metrics.made import columns, meta
from tests.metrics.simulate import Cell

DRAWS = 1500
SLACK = 3.5  # standard errors: all cells together err about once in two hundred seeds, and the seeds are fixed


def covered(cell: Cell) -> simulate.Rates:
    """Rates of the product's interval in one cell."""
    a, b = simulate.logs(cell, DRAWS, simulate.seeded(cell))
    return simulate.rates(simulate.chosen(a, b), cell.ratio)


def test_the_simulation_s_throughput_is_what_a_summary_says() -> None:
    cell = Cell((3, 3), (0.005, 0.005))
    step_s = simulate.step_times(cell, 0, 4, np.random.default_rng(1))
    step_s[0, 0, :20] *= 2  # one with a warm-up
    fast = simulate.throughput(step_s)
    for draw in range(4):
        for run in range(3):
            summary = summarise(meta(), columns(step_s[draw, run], simulate.TOKENS))
            assert summary["metrics"]["tokens_per_s"]["value"] == pytest.approx(fast[draw, run], rel=1e-12)


@pytest.mark.parametrize("cell", [*simulate.EQUAL, simulate.MORE[0], simulate.MORE[1]], ids=lambda c: c.name)
def test_equal_sides_are_told_apart_in_at_most_one_of_twenty(cell: Cell) -> None:
    found = covered(cell)
    slack = SLACK * simulate.error(0.05, DRAWS)
    assert found.better <= 0.05 + slack
    assert 0.93 - slack <= found.covers <= 0.97 + slack


@pytest.mark.parametrize(
    "cell",
    [
        Cell((3, 3), (0.0015, 0.014)),
        Cell((3, 10), (0.005, 0.005)),
        Cell((3, 10), (0.014, 0.0015)),
        *simulate.UNEQUAL[::4],
    ],
    ids=lambda c: c.name,
)
def test_the_interval_holds_under_unequal_spreads_counts_and_speeds(cell: Cell) -> None:
    found = covered(cell)
    slack = SLACK * simulate.error(0.05, DRAWS)
    assert 0.93 - slack <= found.covers <= 0.97 + slack


def test_the_methods_not_chosen_fail_where_the_document_says() -> None:
    cell = Cell((3, 10), (0.014, 0.0015))
    a, b = simulate.logs(cell, DRAWS, simulate.seeded(cell))
    assert simulate.rates(simulate.pooled(a, b), 1.0).covers < 0.75
    equal = Cell((3, 3), (0.005, 0.005))
    a, b = simulate.logs(equal, DRAWS, simulate.seeded(equal))
    assert simulate.rates(simulate.bootstrap(a[:500], b[:500]), 1.0).covers < 0.87


def test_more_runs_find_a_difference_of_one_percent_more_often() -> None:
    found = [covered(Cell((n, n), (0.005, 0.005), ratio=1.01)).better for n in (3, 5, 10)]
    assert found[0] < found[1] - 0.1 < found[2] - 0.2


def test_the_steps_are_autocorrelated_and_the_runs_spread_as_told() -> None:
    cell = Cell((10, 10), (0.014, 0.014), phi=0.4)
    step_s = simulate.step_times(cell, 0, 300, np.random.default_rng(2))
    flat = np.log(step_s) - np.log(step_s).mean(axis=-1, keepdims=True)
    first = float((flat[..., 1:] * flat[..., :-1]).mean() / (flat**2).mean())
    assert first == pytest.approx(0.4, abs=0.03)
    assert np.log(simulate.throughput(step_s)).std() == pytest.approx(math.hypot(0.014, 0.0028), rel=0.05)


def test_the_interval_is_the_one_that_comparisons_use() -> None:
    a, b = np.array([[0.0, 0.1, 0.3]]), np.array([[0.2, 0.1, 0.5]])
    low, high = simulate.chosen(a, b)
    assert [float(low[0]), float(high[0])] == pytest.approx([float(v) for v in interval.between_runs(a[0], b[0])[1:]])
