"""One run's figures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.metrics.flops import Shape, flops_per_token
from cockpit.metrics.summary import UNITS, summarise
from tests.metrics.made import CONFIG, START, columns, hello, meta, tick, told
from tests.metrics.test_steady import noise

STEP = np.full(200, 0.5)


def value(summary: dict[str, Any], name: str) -> float | None:
    """A metric's value."""
    found: float | None = summary["metrics"][name]["value"]
    return found


def note(summary: dict[str, Any], name: str) -> str:
    """A metric's note."""
    return str(summary["metrics"][name]["note"])


def gpu_ticks(n: int = 2, model: str = "NVIDIA H200", seconds: int = 110) -> list[dict[str, Any]]:
    """Telemetry of `n` GPUs that draw 500 W each, from 5 s before the first iteration."""
    devices = [{"index": i, "model": model} for i in range(n)]
    fields = {"power_w": 500.0, "mem_used": 40 << 30, "temp_edge_c": 60.0, "throttle": []}
    lines = [
        tick(float(t), *({"index": i, **fields, "energy_j": 500.0 * t} for i in range(n))) for t in range(-5, seconds)
    ]
    return [hello(*devices, boot_id="boot"), *lines]


def test_every_metric_of_the_schema_is_there_with_unit_and_a_reason_where_unknown() -> None:
    summary = summarise(meta(), columns(STEP))
    assert summary["schema"] == "ekvi.summary/1"
    assert list(summary["metrics"]) == list(UNITS)
    for name, metric in summary["metrics"].items():
        assert set(metric) == {"value", "unit", "n", "ci95", "note"}
        assert metric["unit"] == UNITS[name]
        assert metric["value"] is not None or metric["note"], name


def test_throughput_is_all_tokens_over_all_time_and_not_the_mean_of_rates() -> None:
    took = np.tile([0.5, 1.5], 30)
    summary = summarise(meta(), columns(took, tokens=100.0))
    assert value(summary, "tokens_per_s") == pytest.approx(100.0)
    assert value(summary, "step_s") == pytest.approx(1.0)


def test_warm_up_is_left_out_of_speed_but_not_of_the_count() -> None:
    took = noise(1, 300, seed=1)[0]
    took[:25] *= 3
    summary = summarise(meta(), columns(took))
    it = summary["iterations"]
    assert it["total"] == 300
    assert 25 <= it["warmup_dropped"] <= 60
    assert it["steady"] == 300 - it["warmup_dropped"] == summary["metrics"]["tokens_per_s"]["n"]
    assert value(summary, "tokens_per_s") == pytest.approx(1024 / 0.25, rel=0.01)


def test_a_short_run_keeps_everything_and_says_so() -> None:
    summary = summarise(meta(), columns(np.linspace(2.0, 1.0, 30)))
    assert summary["iterations"]["warmup_dropped"] == 0
    assert "MSER-5 needs 100" in summary["iterations"]["note"]
    assert summary["metrics"]["tokens_per_s"]["ci95"] is None


def test_change_points_are_unknown_and_not_none_found() -> None:
    it = summarise(meta(), columns(STEP))["iterations"]
    assert it["change_points"] is None
    assert "not looked for" in it["note"]


def test_iterations_without_a_time_are_left_out_and_counted() -> None:
    took = np.full(200, 0.5)
    took[[0, 50, 120]] = np.nan
    summary = summarise(meta(), columns(took))
    assert summary["iterations"]["total"] == 200
    assert summary["iterations"]["steady"] == 197
    assert "3 iterations without a step time" in summary["iterations"]["note"]


def test_steps_that_are_not_in_the_log_took_energy_for_their_tokens_too() -> None:
    whole, ticks = columns(STEP), gpu_ticks()
    every_fifth = {name: column[4::5] for name, column in whole.items()}
    some_lost = {name: np.delete(column, range(60, 90)) for name, column in whole.items()}
    cost = value(summarise(meta(vendor="nvidia"), whole, ticks), "energy_per_token_j")
    assert value(summarise(meta(vendor="nvidia"), some_lost, ticks), "energy_per_token_j") == pytest.approx(cost)
    sparse = summarise(meta(vendor="nvidia"), every_fifth, ticks)
    assert value(sparse, "energy_per_token_j") == pytest.approx(cost, rel=0.01)
    assert "means over 5 iterations" in note(sparse, "step_s_p99")
    assert value(sparse, "tokens_per_s") == pytest.approx(2048.0)


def test_lines_that_do_not_tell_their_tokens_do_not_make_the_others_dearer() -> None:
    table, ticks = columns(STEP), gpu_ticks()
    cost = value(summarise(meta(vendor="nvidia"), table, ticks), "energy_per_token_j")
    table["tokens"][50:100] = np.nan
    assert value(summarise(meta(vendor="nvidia"), table, ticks), "energy_per_token_j") == pytest.approx(cost)


def test_iterations_that_are_not_in_the_log_are_counted() -> None:
    table = {name: np.delete(column, [3, 4, 190]) for name, column in columns(np.full(200, 0.5)).items()}
    for more, missing in (({"total": 200}, 3), ({"total": 210}, 13), ({"total": 210, "state": "FAILED"}, 3)):
        told = summarise(meta(**more), table)["iterations"]["note"]
        assert told.startswith(f"{missing} iterations are not in the log")
    assert "not in the log" not in summarise(meta(total=200), columns(np.full(200, 0.5)))["iterations"]["note"]


def test_a_run_that_diverged_has_no_final_loss() -> None:
    table = columns(STEP)
    table["loss"][30:] = np.nan
    assert value(summarise(meta(), table), "loss_final") is None
    assert "none of the last 10" in note(summarise(meta(), table), "loss_final")
    table["loss"][-4:] = 2.0
    summary = summarise(meta(), table)
    assert value(summary, "loss_final") == 2.0
    assert "only 4 of the last 10" in note(summary, "loss_final")


def test_a_gpu_server_whose_gpus_nobody_sampled_is_not_said_to_have_none() -> None:
    summary = summarise(meta(vendor="nvidia"), columns(STEP), [hello(), *(tick(float(t)) for t in range(9))])
    assert summary["gpu"]["count"] is None
    for name in ("tokens_per_s_gpu", "mem_peak_by", "temp_max_c", "throttled_ratio"):
        assert "no GPU telemetry" in note(summary, name)


def test_the_final_loss_is_the_mean_of_the_last_ten() -> None:
    table = columns(STEP)
    table["loss"][:] = 9.0
    table["loss"][-10:] = np.arange(10.0)
    summary = summarise(meta(), table)
    assert value(summary, "loss_final") == pytest.approx(4.5)
    assert summary["metrics"]["loss_final"]["n"] == 10


def test_tokens_missing_from_the_log_come_from_a_megatron_configuration_and_nowhere_else() -> None:
    told_by_config = summarise(meta(), columns(STEP, tokens=None))
    assert value(told_by_config, "tokens_per_s") == pytest.approx(8 * 128 / 0.5)
    assert "configuration" in note(told_by_config, "tokens_per_s")
    other = summarise(meta(config={**CONFIG, "runner": {"name": "command"}}), columns(STEP, tokens=None))
    assert value(other, "tokens_per_s") is None
    assert "does not say" in note(other, "tokens_per_s")
    assert value(other, "step_s") == pytest.approx(0.5)


def test_a_run_without_iterations_has_no_figures() -> None:
    summary = summarise(meta(), columns([]))
    assert summary["iterations"]["total"] == 0
    assert all(m["value"] is None for n, m in summary["metrics"].items())
    assert "no iteration" in note(summary, "step_s")
    assert summarise(meta(), {})["iterations"]["total"] == 0


def test_a_cpu_server_has_no_gpu_figures() -> None:
    summary = summarise(
        meta(), columns(STEP), [hello(), *(tick(float(t), host={"mem_used": 100 + t}) for t in range(9))]
    )
    assert summary["gpu"] == {"model": None, "count": 0}
    for name in ("tokens_per_s_gpu", "tflops_gpu", "mfu", "mem_peak_by", "temp_max_c", "throttled_ratio"):
        assert value(summary, name) is None
        assert "no GPU" in note(summary, name)
    assert value(summary, "host_mem_peak_by") == 108


def test_gpu_figures_follow_from_tokens_flops_and_the_card() -> None:
    summary = summarise(meta(vendor="nvidia"), columns(STEP, tokens=1e6), gpu_ticks())
    per_token = flops_per_token(Shape(4, 128, 4, 2, 352, vocab=1024), 128)["B"]  # 1000 padded to 1024
    assert summary["gpu"] == {"model": "NVIDIA H200", "count": 2}
    assert value(summary, "tokens_per_s_gpu") == pytest.approx(1e6)
    assert value(summary, "tflops_gpu") == pytest.approx(per_token * 1e6 / 1e12)
    assert value(summary, "mfu") == pytest.approx(per_token * 1e6 / 1e12 / 989.4)
    assert "convention B" in note(summary, "tflops_gpu")
    assert value(summary, "power_w") == pytest.approx(1000.0)
    assert value(summary, "mem_peak_by") == 40 << 30
    assert value(summary, "energy_per_token_j") == pytest.approx(1000 * 0.5 / 1e6, rel=1e-3)
    assert value(summary, "tokens_per_j") == pytest.approx(2000.0, rel=1e-3)
    assert value(summary, "energy_j") == pytest.approx(1000.0 * 114)
    assert value(summary, "energy_warmup_j") == pytest.approx(1000.0 * 5)
    assert "GPUs" in note(summary, "energy_j")
    assert value(summary, "throttled_ratio") == 0.0


def test_the_runner_s_own_flop_count_goes_before_the_configuration() -> None:
    summary = summarise(
        meta(vendor="nvidia"),
        columns(STEP, tokens=1e6),
        gpu_ticks(),
        [told("model", flops_per_token={"A": 1e6, "B": 2e6})],
    )
    assert value(summary, "tflops_gpu") == pytest.approx(2.0)


def test_mfu_is_unknown_on_an_unknown_card_and_warned_of_above_one() -> None:
    cost = [told("model", flops_per_token={"B": 2e9})]
    strange = summarise(meta(vendor="nvidia"), columns(STEP, tokens=1e6), gpu_ticks(model="NVIDIA Z1"), cost)
    assert value(strange, "tflops_gpu") == pytest.approx(2000.0)
    assert value(strange, "mfu") is None
    assert "NVIDIA Z1" in note(strange, "mfu")
    above = summarise(meta(vendor="nvidia"), columns(STEP, tokens=1e6), gpu_ticks(), cost)
    assert value(above, "mfu") == pytest.approx(2000 / 989.4)
    assert "above 1" in note(above, "mfu")


def test_measured_mfu_needs_a_calibration() -> None:
    ticks = gpu_ticks()
    cost = told("model", flops_per_token={"B": 2e8})
    without = summarise(meta(vendor="nvidia"), columns(STEP, tokens=1e6), ticks, [cost])
    assert value(without, "mfu_measured") is None
    measured = summarise(
        meta(vendor="nvidia"), columns(STEP, tokens=1e6), ticks, [cost, told("calibrate", matmul_tflops=800.0)]
    )
    assert value(measured, "mfu_measured") == pytest.approx(200 / 800)


def test_energy_cannot_be_aligned_with_a_log_without_time() -> None:
    table = columns(STEP)
    table["t"][:] = np.nan
    summary = summarise(meta(vendor="nvidia"), table, gpu_ticks())
    assert value(summary, "energy_j") is not None
    assert value(summary, "energy_per_token_j") is None
    assert "no time" in note(summary, "energy_per_token_j")


def test_what_was_before_the_run_is_not_the_run_s() -> None:
    before = {"power_w": 90.0, "temp_edge_c": 83.0, "mem_used": 50 << 30, "throttle": ["thermal"]}
    during = {"power_w": 500.0, "temp_edge_c": 60.0, "mem_used": 40 << 30, "throttle": []}
    ticks = [tick(float(t), {"index": 0, **(before if t < 0 else during)}) for t in range(-50, 110)]
    ticks = [{**t, "host": {"node_power_w": 300.0 if t["t_wall_ns"] < 1e9 * START else 900.0}} for t in ticks]
    table = columns(STEP)
    table["t"][:] = np.nan
    lasted: dict[str, Any] = {"started": START, "ended": START + 100.0}
    summary = summarise(meta(vendor="nvidia", **lasted), table, [hello({"index": 0}), *ticks])
    assert (value(summary, "power_w"), value(summary, "node_power_w")) == (500.0, 900.0)
    assert "whole run" in note(summary, "power_w")
    assert (value(summary, "temp_max_c"), value(summary, "throttled_ratio")) == (60.0, 0.0)
    assert value(summary, "mem_peak_by") == 40 << 30


def test_tokens_a_dollar_need_a_price_and_gpus() -> None:
    plan = {"launcher": "process", "stages": [], "usd_per_gpu_hour": 2.0}
    two_gpus = summarise(meta(vendor="nvidia", plan=plan), columns(STEP), gpu_ticks())
    assert value(two_gpus, "tokens_per_usd") == pytest.approx(2048 / 2 * 3600 / 2)
    assert "no GPU on this server" in note(summarise(meta(plan=plan), columns(STEP)), "tokens_per_usd")
    assert "no price" in note(summarise(meta(), columns(STEP)), "tokens_per_usd")


def test_what_the_runner_said_stands_in_the_provenance() -> None:
    summary = summarise(
        meta(), columns(STEP), gpu_ticks(), [told("provenance", torch="2.13.0"), told("data", sha256="d")]
    )
    assert summary["provenance"]["runner"]["torch"] == "2.13.0"
    assert summary["provenance"]["data"]["sha256"] == "d"
    assert summary["provenance"]["boot_id"] == "boot"
    assert summary["provenance"]["code_sha256"] == "ab" * 32


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-3, 10)), max_size=150),
    st.one_of(st.none(), st.floats(0, 1e9)),
)
def test_whatever_the_log_holds_the_summary_is_json_without_nan(took: list[float], tokens: float | None) -> None:
    with np.errstate(all="ignore"):
        table = columns(took, tokens)
    summary = summarise(meta(vendor="nvidia"), table, gpu_ticks(1, seconds=20))
    json.dumps(summary, allow_nan=False)
    it = summary["iterations"]
    assert it["warmup_dropped"] + it["steady"] <= it["total"] == len(took)


@pytest.mark.parametrize(
    "odd",
    [
        {"diagnostics": [told("model", flops_per_token=1, padded_vocab="many")]},
        {"diagnostics": [told("calibrate", matmul_tflops="fast")]},
        {
            "ticks": [
                {**tick(1.0), "host": 5},
                {**tick(2.0), "devices": 3},
                {**tick(3.0), "devices": [5, {"index": "x"}]},
            ]
        },
        {"ticks": [hello(), {**hello(), "devices": 3}]},
    ],
)
def test_an_odd_line_costs_no_run_its_summary(odd: dict[str, Any]) -> None:
    found = summarise(meta(), columns(np.full(20, 0.5)), **odd)
    assert found["metrics"]["tokens_per_s"]["value"] == pytest.approx(2048)


def test_where_a_run_went_on_is_kept_with_it() -> None:
    summary = summarise(meta(), columns(STEP), diagnostics=[told("resumed", step=100)])
    assert summary["provenance"]["resumed"] == {"step": 100}


def test_time_to_target_is_what_the_runner_timed() -> None:
    reached = told("target", reached=True, target_loss=0.925, loss=0.921, seconds=1402.2, samples=3072)
    summary = summarise(meta(), columns(STEP), diagnostics=[reached])
    assert value(summary, "time_to_target_min") == pytest.approx(23.37)
    assert note(summary, "time_to_target_min") == "to loss 0.925 after 3,072 samples"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            {"reached": False, "target_loss": 0.925, "loss": 0.931, "seconds": 99.0},
            "was not reached: the last",
        ),
        ({"reached": True, "target_loss": 0.925, "seconds": float("nan")}, "was not reached"),
        ({"reached": True, "target_loss": 10**400, "seconds": True}, "the target was not reached"),
        ({"reached": True, "target_loss": 0.925, "seconds": None}, "loss 0.925 was reached, but from a checkpoint"),
        ({}, "the target was not reached"),
    ],
)
def test_a_target_that_was_not_reached_has_no_time(said: dict[str, Any], why: str) -> None:
    summary = summarise(meta(), columns(STEP), diagnostics=[told("target", **said)])
    assert value(summary, "time_to_target_min") is None
    assert why in note(summary, "time_to_target_min")


def test_a_configured_target_that_nothing_was_said_of_is_named() -> None:
    about = meta()
    assert note(summarise(about, columns(STEP)), "time_to_target_min") == "no target is configured"
    about["config"] = {**about["config"], "runner": {"name": "lora", "target_loss": 0.9}}
    assert "did not come as far" in note(summarise(about, columns(STEP)), "time_to_target_min")
