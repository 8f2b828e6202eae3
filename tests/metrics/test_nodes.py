"""Several nodes as one machine: sums over all or none, the largest of what has a maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cockpit.core.events import Diagnostic
from cockpit.metrics.summary import summarise
from tests.metrics.made import columns, hello, meta, tick
from tests.metrics.test_summary import STEP, gpu_ticks, note, value

HANDLE = {"queue": "q", "nodes": [{"access": {"address": a}} for a in ("h1", "h2")]}
SUMS = ("power_w", "energy_j", "energy_warmup_j", "energy_per_token_j", "tokens_per_j")


def of_two(*others: list[dict[str, Any]], first: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    ticks = gpu_ticks() if first is None else first
    return summarise(meta(vendor="nvidia", handle=HANDLE), columns(STEP, tokens=1e6), ticks, others=others)


def test_what_adds_up_is_the_sum_of_the_nodes() -> None:
    summary = of_two(gpu_ticks(4))
    assert summary["gpu"] == {"model": "NVIDIA H200", "count": 6}
    assert value(summary, "tokens_per_s_gpu") == pytest.approx(2e6 / 6)
    assert value(summary, "power_w") == pytest.approx(3000.0)
    assert value(summary, "energy_j") == pytest.approx(3000.0 * 114)
    assert value(summary, "energy_warmup_j") == pytest.approx(3000.0 * 5)
    assert value(summary, "energy_per_token_j") == pytest.approx(3000 * 0.5 / 1e6, rel=1e-3)
    assert note(summary, "power_w") == "2 nodes, each scope: GPUs"


def test_each_node_is_cut_by_its_own_stamps() -> None:
    late = [line for line in gpu_ticks() if line["type"] == "hello" or line["t_wall_ns"] > (1.7e9 + 50) * 1e9]
    summary = of_two(late)  # it speaks for half of the steady part only
    assert value(summary, "energy_per_token_j") is None
    assert "do not cover" in note(summary, "energy_per_token_j")
    assert "node h2" in note(summary, "energy_per_token_j")
    assert value(summary, "energy_j") == pytest.approx(1000.0 * 114 + 1000.0 * (109 - 51))


@pytest.mark.parametrize("others", [(), ([],)])
def test_a_node_without_telemetry_makes_sums_unknown(others: tuple[list[dict[str, Any]], ...]) -> None:
    summary = of_two(*others)
    for name in SUMS:
        assert value(summary, name) is None, name
        assert note(summary, name) == "node h2: no telemetry"
    assert summary["gpu"]["count"] is None
    assert value(summary, "tokens_per_s_gpu") is None
    assert value(summary, "tokens_per_s") == pytest.approx(2e6)
    assert value(summary, "temp_max_c") == 60.0
    assert "not known of node h2" in note(summary, "temp_max_c")


def test_the_largest_of_all_nodes_is_named() -> None:
    hot = [hello({"index": 0, "model": "NVIDIA H200"})] + [
        tick(
            float(t), {"index": 0, "temp_hot_c": 91.0, "mem_used": 70, "throttle": ["thermal"]}, host={"mem_used": 9}
        )
        for t in range(-5, 110)
    ]
    summary = of_two(hot)
    assert value(summary, "temp_max_c") == 91.0
    assert note(summary, "temp_max_c") == "node h2, GPU 0, hotspot sensor"
    assert value(summary, "throttled_ratio") == 1.0
    assert value(summary, "mem_peak_by") == 40 << 30
    assert value(summary, "host_mem_peak_by") == 9


def test_each_node_has_a_place_in_the_provenance() -> None:
    second = [hello(boot_id="other", host={"hostname": "h2"}), *gpu_ticks()[1:]]
    found = of_two(second)["provenance"]
    assert found["boot_id"] == "boot"
    assert found["nodes"] == [
        {"boot_id": "boot", "host": None, "clock_error_s": 0.0},
        {"boot_id": "other", "host": {"hostname": "h2"}, "clock_error_s": None},
    ]


def test_nodes_that_prepared_other_data_are_told() -> None:
    def data(sha256: str, node: int) -> Diagnostic:
        return Diagnostic(level="info", code="data", message="", data={"sha256": sha256}, node=node)

    table = columns(np.full(20, 0.5))
    same = summarise(meta(), table, diagnostics=[data("a", 0), data("a", 1)])
    assert "nodes_differ" not in same["provenance"]["data"]
    assert summarise(meta(), table, diagnostics=[data("a", 0), data("b", 1)])["provenance"]["data"]["nodes_differ"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_calibration_is_the_first_node_s_however_the_nodes_words_arrive(order: tuple[int, int]) -> None:
    rates = {0: 600.0, 1: 300.0}
    said = [
        Diagnostic(level="info", code="calibrate", message="", data={"matmul_tflops": rates[n]}, node=n)
        for n in order
    ]
    about = meta(vendor="nvidia", handle=HANDLE)
    summary = summarise(about, columns(STEP, tokens=1e6), gpu_ticks(), said, others=[gpu_ticks(4)])
    assert note(summary, "mfu_measured") == "of 600 TFLOP/s measured"
