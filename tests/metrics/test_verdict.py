"""One metric of two sides: the verdict follows its rules, and the runs that it asks for do settle it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.metrics.verdict import judge
from cockpit.metrics.words import JUDGED

SPEED = next(m for m in JUDGED if m.name == "tokens_per_s")
STEP = next(m for m in JUDGED if m.name == "step_s")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8),
    st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8),
    st.floats(1e-4, 0.5),
)
def test_whatever_the_runs_gave_the_verdict_follows_its_rules(a: list[float], b: list[float], within: float) -> None:
    found = judge(SPEED, ("left", a), ("right", b), within=within)
    assert found.why.endswith(".")
    assert "nan" not in found.why
    if min(len(a), len(b)) < 3:
        assert found.verdict == "insufficient_runs"
        return
    assert found.ci95 is not None
    low, high = found.ci95
    if low > 1:
        assert found.verdict == "right_better"
    elif high < 1:
        assert found.verdict == "left_better"
    elif low >= 1 - within and high <= 1 + within:
        assert found.verdict == "equivalent"
    else:
        assert found.verdict == "indistinguishable"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(900, 1100), min_size=3, max_size=6), st.lists(st.floats(900, 1100), min_size=3, max_size=6))
def test_speed_and_step_time_never_contradict_each_other(a: list[float], b: list[float]) -> None:
    speed = judge(SPEED, ("left", a), ("right", b), within=0.01)
    step = judge(STEP, ("left", [1 / x for x in a]), ("right", [1 / x for x in b]), within=0.01)
    if speed.verdict.endswith("_better") or step.verdict.endswith("_better"):
        assert speed.verdict == step.verdict


@pytest.mark.parametrize(("cv", "gap"), [(0.005, 0.004), (0.01, 0.02)])
def test_the_runs_it_asks_for_do_settle_it_most_of_the_time(cv: float, gap: float) -> None:
    rng = np.random.default_rng(3)
    left = np.exp(cv * np.array([-1.0, 0.0, 1.0]))
    asked = judge(SPEED, ("left", list(left)), ("right", list(left * math.exp(gap))), within=0.0001).needs_runs
    assert asked is not None
    settled = 0
    for _ in range(300):
        a, b = np.exp(cv * rng.standard_normal((2, asked)))
        settled += (
            judge(SPEED, ("left", list(a)), ("right", list(b * math.exp(gap))), within=0.0001).verdict
            == "right_better"
        )
    assert 0.72 <= settled / 300 <= 0.9


@pytest.mark.parametrize(("cv", "gap"), [(0.005, 0.0), (0.005, 0.001)])
def test_the_runs_it_asks_for_to_show_equality_do_show_it_most_of_the_time(cv: float, gap: float) -> None:
    rng = np.random.default_rng(3)
    left = np.exp(cv * np.array([-1.0, 0.0, 1.0]))
    found = judge(SPEED, ("left", list(left)), ("right", list(left * math.exp(gap))), within=0.01)
    assert found.needs_runs is not None
    assert "within 1 %" in found.why
    draws = np.exp(cv * rng.standard_normal((500, 2, found.needs_runs)))
    verdicts = [judge(SPEED, ("l", list(a)), ("r", list(b * math.exp(gap))), within=0.01).verdict for a, b in draws]
    assert 0.75 <= verdicts.count("equivalent") / 500 <= 0.9


def test_more_comparisons_at_once_need_more_runs() -> None:
    left, right = [100.0, 103.0, 97.0], [104.0, 107.0, 101.0]
    one = judge(SPEED, ("left", left), ("right", right), within=0.01)
    of_five = judge(SPEED, ("left", left), ("right", right), within=0.01, confidence=0.99)
    assert one.needs_runs is not None
    assert of_five.needs_runs is not None
    assert of_five.needs_runs > one.needs_runs


def test_what_more_runs_would_settle_is_the_effect_that_was_seen() -> None:
    found = judge(SPEED, ("left", [100.0, 120.0, 80.0]), ("right", [80.0, 100.0, 64.0]), within=0.01)
    size = re.match(r"right is ([\d.]+ %) slower", found.why)
    assert size is not None
    assert f"would settle {size[1]}." in found.why
