"""The verdict: rules in order, and what the sentence says."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cockpit.core.errors import UsageError
from cockpit.metrics.compare import compare
from cockpit.metrics.sides import RunFacts, Side
from cockpit.metrics.summary import summarise
from cockpit.metrics.verdict import judge
from cockpit.metrics.words import JUDGED
from tests.metrics.made import CONFIG, PROVENANCE, columns, meta, run, side

SPEED = next(m for m in JUDGED if m.name == "tokens_per_s")
STEP = next(m for m in JUDGED if m.name == "step_s")


def metric(found: dict[str, Any], name: str = "tokens_per_s") -> dict[str, Any]:
    """One metric of a comparison."""
    return next(m for m in found["metrics"] if m["name"] == name)


def duel(left: list[float], right: list[float], within: float = 0.01) -> dict[str, Any]:
    """tokens_per_s of a comparison of two sides."""
    return metric(compare([side("left", left), side("right", right)], within))


def test_a_clear_difference_names_the_better_side() -> None:
    found = duel([1000, 1001, 999], [1050, 1051, 1049])
    assert found["verdict"] == "right_better"
    assert found["ratio"]["value"] == pytest.approx(1.05, abs=1e-3)
    assert found["needs_runs"] is None
    assert duel([1050, 1051, 1049], [1000, 1001, 999])["verdict"] == "left_better"


def test_where_lower_is_better_the_faster_side_still_wins() -> None:
    found = compare([side("left", [1000, 1001, 999]), side("right", [1050, 1051, 1049])])
    assert metric(found, "step_s")["verdict"] == "right_better"
    assert metric(found, "step_s")["ratio"]["value"] < 1


def test_better_goes_before_equivalent() -> None:
    found = duel([1000, 1000.1, 999.9], [1002, 1002.1, 1001.9])  # 0.2 % apart: within 1 %, yet surely apart
    assert found["verdict"] == "right_better"


def test_an_interval_inside_the_bound_is_equivalent() -> None:
    found = duel([1000, 1001, 999], [1000.5, 999.5, 1001.5])
    assert found["verdict"] == "equivalent"
    assert duel([1000, 1001, 999], [1000.5, 999.5, 1001.5], within=0.0001)["verdict"] == "indistinguishable"


def test_a_wide_interval_is_indistinguishable_and_says_how_many_runs_it_would_take() -> None:
    found = duel([1000, 1010, 990], [1004, 1016, 995])
    assert found["verdict"] == "indistinguishable"
    need = found["needs_runs"]
    assert need > 3
    assert f"about {need} runs a side would settle" in found["why"]


def test_the_sentence_names_effect_count_interval_and_rule() -> None:
    found = duel([1000, 1010, 990], [1004, 1016, 995])
    low, high = (100 * (x - 1) for x in found["ratio"]["ci95"])
    assert found["why"].startswith("right is 0.5 % faster over 3 runs a side, but the 95 % interval from ")
    assert f"from {low:+.1f} % to {high:+.1f} %" in found["why"]
    assert "includes no difference" in found["why"]


def test_a_slower_side_is_called_slower() -> None:
    assert "right is 4.8 % slower" in duel([1050, 1051, 1049], [1000, 1001, 999])["why"]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (2, 2), (2, 10)])
def test_fewer_than_three_runs_a_side_are_insufficient_however_far_apart(n: int, m: int) -> None:
    found = duel([1000.0 + i for i in range(n)], [2000.0 + i for i in range(m)])
    assert found["verdict"] == "insufficient_runs"
    assert found["needs_runs"] == 3
    assert found["ratio"]["value"] == pytest.approx(2.0, rel=0.01)
    assert (found["ratio"]["ci95"] is None) == (min(n, m) < 2)


def test_the_ratio_and_its_interval_are_welch_s_for_equal_counts_and_spreads() -> None:
    left, right = np.array([1000.0, 1010.0, 990.0]), np.array([1100.0, 1111.0, 1089.0])
    found = duel(list(left), list(right))
    ci = stats.ttest_ind(np.log(right), np.log(left), equal_var=False).confidence_interval(0.95)
    assert found["ratio"]["ci95"] == pytest.approx([math.exp(ci.low), math.exp(ci.high)], rel=1e-3)


def test_a_side_s_value_is_the_geometric_mean_of_its_runs() -> None:
    found = duel([1000, 2000, 4000], [1000, 1000, 1000])
    assert found["sides"]["left"]["value"] == pytest.approx(2000)
    assert found["sides"]["left"]["n"] == 3
    low, high = found["sides"]["left"]["ci95"]
    assert low < 2000 < high


def test_identical_values_on_both_sides_are_equivalent_and_a_caution_is_given() -> None:
    found = duel([1000.0] * 3, [1000.0] * 3)
    assert found["verdict"] == "equivalent"
    assert found["ratio"]["ci95"] == [1.0, 1.0]
    assert "copies" in found["why"]


def test_sides_without_any_spread_are_judged_but_doubted() -> None:
    found = duel([1000.0] * 3, [1100.0] * 3)
    assert found["verdict"] == "right_better"
    assert "copies" in found["why"]


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_value_of_zero_or_less_has_no_ratio(bad: float) -> None:
    found = judge(SPEED, ("left", [1.0, 2.0, 3.0]), ("right", [1.0, bad, 3.0]), within=0.01)
    assert found.verdict == "not_comparable"
    assert found.ratio is None
    assert "zero or less" in found.why


def test_a_metric_that_one_side_does_not_know_is_not_comparable_and_says_why() -> None:
    right = side("right", [1000, 1001, 999])
    for one in right.runs:
        one.summary["metrics"]["tokens_per_s"].update(value=None, note="the log does not say")
    found = compare([side("left", [1000, 1001, 999]), right])
    assert metric(found)["verdict"] == "not_comparable"
    assert "the log does not say" in metric(found)["why"]
    assert metric(found)["sides"]["right"] == {"value": None, "ci95": None, "n": 0}
    assert found["primary"] == "step_s"


def test_nan_counts_as_unknown() -> None:
    left = side("left", [1000, 1001, 999, 1000])
    left.runs[0].summary["metrics"]["tokens_per_s"]["value"] = math.nan
    found = compare([left, side("right", [1000, 1001, 999])])
    assert metric(found)["sides"]["left"]["n"] == 3
    assert any("tokens_per_s is known for 3 of 4 runs" in n for n in found["notes"])


def test_failed_runs_are_not_counted_and_are_named() -> None:
    left = side("left", [1000, 1001, 999])
    lost = run(10.0, "g.left.r9", "left", state="FAILED")
    found = compare([Side("left", [*left.runs, lost]), side("right", [1000, 1001, 999])])
    assert found["sides"][0]["runs"] == ["g.left.r1", "g.left.r2", "g.left.r3"]
    assert found["sides"][0]["left_out"] == [{"run": "g.left.r9", "state": "FAILED"}]
    assert metric(found)["sides"]["left"]["n"] == 3
    assert any("g.left.r9 (FAILED)" in n for n in found["notes"])


def test_a_side_without_a_run_that_succeeded_has_too_few() -> None:
    found = compare([side("left", [1000, 1001, 999]), side("right", [1.0, 2.0], state="FAILED")])
    assert metric(found)["verdict"] == "insufficient_runs"
    assert "No run of right succeeded" in metric(found)["why"]
    assert found["headline"].startswith("Too few runs")


def test_one_side_alone_has_values_and_no_ratio() -> None:
    found = compare([side("left", [1000, 1001, 999])])
    assert metric(found)["sides"]["left"]["value"] == pytest.approx(1000, rel=1e-3)
    assert metric(found)["ratio"] is None
    assert metric(found)["verdict"] is None


def test_a_run_against_itself_is_refused_with_its_name() -> None:
    one = run(1000.0, "g.left.r1")
    with pytest.raises(UsageError, match=r"g\.left\.r1 stands on both sides"):
        compare([Side("a", [one]), Side("b", [one])])
    with pytest.raises(UsageError, match=r"g\.left\.r1 stands twice on side a"):
        compare([Side("a", [one, one])])


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare([])
    with pytest.raises(UsageError, match="has no runs"):
        compare([Side("a", [])])
    with pytest.raises(UsageError, match="two sides are called"):
        compare([Side("a", [run(1.0, "r1")]), Side("a", [run(1.0, "r2")])])


@pytest.mark.parametrize("within", [0.0, -0.1, 1.0, math.nan, math.inf])
def test_a_bound_that_is_no_ratio_is_refused(within: float) -> None:
    with pytest.raises(UsageError, match="within"):
        compare([side("left", [1.0])], within)


def test_only_one_metric_is_the_primary_and_carries_the_headline() -> None:
    found = compare([side("left", [1000, 1001, 999]), side("right", [1050, 1051, 1049])])
    assert [m["name"] for m in found["metrics"] if m["primary"]] == [found["primary"]] == ["tokens_per_s"]
    assert found["headline"] == "right is faster."
    assert any("only the primary is the verdict" in n for n in found["notes"])


def test_with_gpus_the_primary_figure_is_tokens_a_gpu() -> None:
    sides = [side("left", [1000, 1001, 999]), side("right", [1050, 1051, 1049])]
    for one in (r for s in sides for r in s.runs):
        known = one.summary["metrics"]
        known["tokens_per_s_gpu"] = {**known["tokens_per_s"], "value": known["tokens_per_s"]["value"] / 8}
    assert compare(sides)["primary"] == "tokens_per_s_gpu"


def test_three_sides_are_held_against_the_first_with_wider_intervals() -> None:
    sides = [side("a", [1000, 1003, 997]), side("b", [1002, 1005, 999]), side("c", [1100, 1103, 1097])]
    found = metric(compare(sides))
    alone = duel([1000, 1003, 997], [1100, 1103, 1097])
    assert found["verdict"] == "c_better"
    assert found["ratio"]["side"] == "c"
    assert set(found["against"]) == {"b", "c"}
    assert found["against"]["b"]["verdict"] != "c_better"
    assert found["ratio"]["ci95"][0] < alone["ratio"]["ci95"][0]
    assert found["ratio"]["ci95"][1] > alone["ratio"]["ci95"][1]


def test_a_side_of_which_no_run_succeeded_widens_no_interval() -> None:
    a, b = side("a", [1000, 1003, 997]), side("b", [1100, 1103, 1097])
    never = Side("c", [RunFacts("c.r1", {}, {"state": "CANCELLED", "reason": "not launched: refused"})])
    found = compare([a, b, never])
    alone = duel([1000, 1003, 997], [1100, 1103, 1097])
    assert metric(found)["against"]["b"]["ci95"] == alone["ratio"]["ci95"]
    assert metric(found)["against"]["c"]["verdict"] == "insufficient_runs"
    assert "Bonferroni" not in found["method"]
    third = compare([a, b, side("d", [1100, 1103, 1097]), never])
    assert "widened for 2 comparisons" in third["method"]
    assert metric(third)["against"]["b"]["ci95"][0] < alone["ratio"]["ci95"][0]


def test_the_first_of_three_is_best_only_where_it_beats_both() -> None:
    best = [side("a", [1100, 1103, 1097]), side("b", [1002, 1005, 999]), side("c", [1000, 1003, 997])]
    assert metric(compare(best))["verdict"] == "a_better"
    one = [side("a", [1100, 1103, 1097]), side("b", [1100, 1150, 1050]), side("c", [1000, 1003, 997])]
    assert metric(compare(one))["verdict"] == "indistinguishable"


@pytest.mark.parametrize(
    ("third", "told"),
    [
        ([1100, 1150, 1050], "Against a, slower: b; no difference can be shown: c."),
        ([1100, 1103, 1097], "Against a, slower: b; equally fast: c."),
        ([1200, 1203, 1197], "Against a, faster: c; slower: b."),
    ],
)
def test_the_headline_of_three_sides_says_no_side_s_verdict_of_another(third: list[float], told: str) -> None:
    sides = [side("a", [1100, 1103, 1097]), side("b", [1002, 1005, 999]), side("c", third)]
    assert compare(sides)["headline"] == told


def test_the_same_machine_with_the_same_work_is_called_an_a_a_comparison() -> None:
    found = compare([side("left", [1000, 1001, 999]), side("right", [1000, 1001, 999])])
    assert "A/A" in found["scope"]
    assert "this one machine (box)" in found["scope"]


@pytest.mark.parametrize(
    ("config", "provenance", "is_a_a"),
    [
        ({"training": {**CONFIG["training"], "backend": "cuda"}}, {}, False),
        ({}, {"runner": {**PROVENANCE["runner"], "torch": {"version": "2.13.0+cu130"}}}, False),
        ({"training": {**CONFIG["training"], "name": "mine"}}, {"cockpit": "0.2.0"}, True),
    ],
    ids=["another device", "another build", "mere names"],
)
def test_one_machine_is_a_a_only_where_both_sides_ran_the_same(
    config: dict[str, Any], provenance: dict[str, Any], is_a_a: bool
) -> None:
    other = side("right", [1000, 1001, 999], config={**CONFIG, **config}, provenance={**PROVENANCE, **provenance})
    scope = compare([side("left", [1000, 1001, 999]), other])["scope"]
    assert ("A/A" in scope) is is_a_a
    assert "this one machine" in scope


def test_two_machines_do_not_speak_for_their_model() -> None:
    host = {**PROVENANCE["host"], "host_id": "h2"}
    other = side("right", [1000, 1001, 999], provenance={**PROVENANCE, "host": host})
    found = compare([side("left", [1000, 1001, 999]), other])
    assert "One machine a side" in found["scope"]
    unknown = side("right", [1000, 1001, 999], provenance={})
    assert "do not all record" in compare([side("left", [1000, 1001, 999]), unknown])["scope"]


def test_a_strict_comparison_of_other_work_is_refused_and_the_figures_stay() -> None:
    right = side("right", [1050, 1051, 1049])
    for one in right.runs:
        dict(one.meta)["config"]["model"]["layers"] = 99
    found = compare([side("left", [1000, 1001, 999]), right], strict=True)
    assert found["parity"]["verdict"] == "refused"
    assert found["headline"].startswith("Refused")
    assert metric(found)["verdict"] == "right_better"
    assert "did not do the same work" in compare([side("left", [1000, 1001, 999]), right])["headline"]


def test_a_comparison_is_json_and_holds_the_fixed_keys() -> None:
    found = compare([side("left", [1000, 1001, 999]), side("right", [1000, 1001, 999])])
    json.dumps(found, allow_nan=False)
    assert found["schema"] == "ekvi.compare/1"
    assert {"schema", "scope", "sides", "parity", "metrics", "loss_parity", "published"} <= set(found)
    for one in found["metrics"]:
        assert {"name", "unit", "sides", "ratio", "verdict", "why", "needs_runs"} <= set(one)
    assert set(found["sides"][0]) >= {"name", "runs", "vendor", "gpu"}
    assert {"verdict", "max_rel_diff", "tolerance"} <= set(found["loss_parity"])


def test_published_speeds_of_the_same_card_are_shown() -> None:
    about = meta("r1", vendor="nvidia")
    about["config"]["model"]["name"] = "llama31_8b"
    about["config"]["training"]["sequence_length"] = 8192
    one = RunFacts("r1", {"state": "SUCCEEDED", "gpu": {"model": "NVIDIA H200", "count": 8}, "metrics": {}}, about)
    found = compare([Side("left", [one])])["published"]
    assert found
    assert all(row["side"] == "left" and row["source"] for row in found)


def test_runs_too_short_to_lose_their_warm_up_are_told_beside_longer_ones() -> None:
    long = [RunFacts(f"l{i}", summarise(meta(), columns(np.full(150, 0.1 + i / 1e4))), meta()) for i in range(3)]
    short = side("short", [1000, 1001, 999])
    (found,) = [n for n in compare([Side("long", long), short])["notes"] if "warm-up" in n]
    assert found.startswith("3 of 6 runs had fewer than 100 iterations")
    assert not any("warm-up" in n for n in compare([side("a", [1000, 1001, 999]), short])["notes"])


def test_a_faster_side_whose_losses_part_is_named_with_a_caution() -> None:
    fast = side("right", [1050, 1051, 1049])
    curves = [{**(r.loss or {}), "loss": (r.loss or {})["loss"] + 0.5} for r in fast.runs]
    bought = Side("right", [RunFacts(r.id, r.summary, r.meta, c) for r, c in zip(fast.runs, curves, strict=True)])
    found = compare([side("left", [1000, 1001, 999]), bought])
    assert found["loss_parity"]["verdict"] == "differs"
    assert found["headline"] == "right is faster. But their losses part: see the loss parity."


def test_a_run_that_took_another_s_place_is_named() -> None:
    again = Side("right", [run(v, name, "right") for v, name in ((1000, "g.right.r1"), (1001, "g.right.r2.try2"))])
    notes = " ".join(compare([side("left", [1000, 1001]), again])["notes"])
    assert "g.right.r2.try2" in notes
    assert "g.right.r1" not in notes


def test_why_runs_did_not_succeed_is_said_once() -> None:
    refused = "not launched: server b: nothing listens there."
    gone = [
        RunFacts(f"b{i}", {"state": "CANCELLED", "metrics": {}}, {"state": "CANCELLED", "reason": refused})
        for i in (1, 2)
    ]
    there = [RunFacts("a1", {"state": "SUCCEEDED", "metrics": {}}, {"state": "SUCCEEDED"})]
    (said,) = (n for n in compare([Side("a", there), Side("b", gone)])["notes"] if n.startswith("b:"))
    assert said == (
        "b: not counted, because they did not succeed: b1 (CANCELLED), b2 (CANCELLED)"
        " (not launched: server b: nothing listens there)."
    )
