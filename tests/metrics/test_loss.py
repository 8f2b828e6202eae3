"""Loss parity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cockpit.metrics.loss import FLOOR, loss_parity
from cockpit.metrics.sides import RunFacts, Side

STEPS = np.arange(1.0, 101)
CURVE = 2 + 5 / np.sqrt(STEPS)


def facts(run: str, loss: Any, tokens: float | None = 100.0, steps: Any = STEPS) -> RunFacts:
    """A run with this loss curve."""
    table = {
        "step": steps,
        "loss": np.asarray(loss),
        "tokens": np.full(len(steps), np.nan if tokens is None else tokens),
    }
    summary = {"state": "SUCCEEDED", "metrics": {"loss_final": {"value": float(np.mean(loss[-10:]))}}}
    return RunFacts(run, summary, {}, loss=table)


def sides(*curves: list[RunFacts]) -> list[Side]:
    """Sides named a, b, ..."""
    return [Side("abc"[i], runs) for i, runs in enumerate(curves)]


def test_equal_curves_are_the_same() -> None:
    found = loss_parity(sides([facts("1", CURVE), facts("2", CURVE)], [facts("3", CURVE), facts("4", CURVE)]))
    assert found["verdict"] == "same"
    assert found["max_rel_diff"] == 0.0
    assert found["tolerance"] == FLOOR
    assert found["final_rel_diff"] == 0.0


def test_a_curve_further_off_than_repeats_are_differs() -> None:
    found = loss_parity(sides([facts("1", CURVE), facts("2", CURVE * 1.002)], [facts("3", CURVE * 1.05)]))
    assert found["verdict"] == "differs"
    assert found["tolerance"] == pytest.approx(0.002, rel=0.01)
    assert found["max_rel_diff"] == pytest.approx(0.0467, rel=0.02)
    assert found["final_rel_diff"] == pytest.approx(0.0467, rel=0.02)


def test_repeats_that_differ_widen_the_tolerance() -> None:
    found = loss_parity(sides([facts("1", CURVE), facts("2", CURVE * 1.1)], [facts("3", CURVE * 1.05)]))
    assert found["verdict"] == "same"


def test_one_bad_moment_is_seen_although_the_ends_agree() -> None:
    spiked = CURVE.copy()
    spiked[40] *= 1.5
    found = loss_parity(sides([facts("1", CURVE), facts("2", CURVE)], [facts("3", spiked)]))
    assert found["final_rel_diff"] == 0.0
    assert found["verdict"] == "differs"


def test_without_repeats_there_is_no_tolerance_and_no_verdict() -> None:
    found = loss_parity(sides([facts("1", CURVE)], [facts("2", CURVE)]))
    assert (found["verdict"], found["tolerance"], found["max_rel_diff"]) == ("unknown", None, 0.0)


def test_curves_are_aligned_by_consumed_tokens() -> None:
    half = np.arange(1.0, 51)  # steps of twice the tokens: step k has seen what step 2k of the other has
    slow, fast = facts("1", CURVE), facts("2", CURVE[1::2], tokens=200.0, steps=half)
    found = loss_parity(sides([slow, facts("3", CURVE)], [fast, facts("4", CURVE[1::2], tokens=200.0, steps=half)]))
    assert found["aligned_by"] == "tokens"
    assert found["max_rel_diff"] < 1e-12
    by_step = loss_parity(sides([facts("1", CURVE, None)], [facts("2", CURVE[1::2], None, half)]))
    assert by_step["aligned_by"] == "step"
    assert by_step["max_rel_diff"] > 0.1


@pytest.mark.parametrize("tokens", [None, 100.0])
def test_a_step_trained_again_after_a_restart_counts_once(tokens: float | None) -> None:
    steps = np.concatenate([STEPS[:60], STEPS[40:]])
    loss = np.concatenate([CURVE[:40], CURVE[40:60] * 3, CURVE[40:]])
    again = facts("2", loss, tokens, steps)
    assert loss_parity(sides([facts("1", CURVE, tokens)], [again]))["max_rel_diff"] == pytest.approx(0.0, abs=1e-12)


def test_steps_that_are_not_in_the_log_consumed_tokens_too() -> None:
    every_fifth = facts("2", CURVE[4::5], steps=STEPS[4::5])
    lost_some = facts("3", np.delete(CURVE, range(20, 40)), steps=np.delete(STEPS, range(20, 40)))
    for other in (every_fifth, lost_some):
        found = loss_parity(sides([facts("1", CURVE)], [other]))
        assert found["aligned_by"] == "tokens"
        assert found["max_rel_diff"] == pytest.approx(0.0, abs=1e-12)


def test_a_side_that_diverged_is_not_called_the_same() -> None:
    gone = np.where(STEPS > 30, np.nan, CURVE)
    found = loss_parity(sides([facts("1", CURVE), facts("2", CURVE)], [facts("3", gone), facts("4", gone)]))
    assert found["verdict"] == "unknown"
    assert "140 of b" in found["note"]


def test_a_loss_near_zero_does_not_make_small_differences_large() -> None:
    fell = np.exp(-STEPS / 5)
    found = loss_parity(sides([facts("1", fell), facts("2", fell)], [facts("3", fell + 1e-6)]))
    assert found["verdict"] == "same"


def test_without_curves_or_overlap_nothing_is_said() -> None:
    bare = RunFacts("2", {"state": "SUCCEEDED"}, {})
    assert loss_parity(sides([facts("1", CURVE)], [bare]))["verdict"] == "unknown"
    empty = facts("1", CURVE)
    apart = facts("2", CURVE, None, STEPS + 1000)
    assert loss_parity(sides([facts("3", CURVE, None)], [apart]))["max_rel_diff"] is None
    assert loss_parity(sides([empty]))["verdict"] == "unknown"
    nothing = facts("5", np.full(100, np.nan))
    assert loss_parity(sides([nothing], [empty]))["verdict"] == "unknown"
