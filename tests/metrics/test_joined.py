"""What the GPUs did while each iteration ran."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from cockpit.metrics import nodes
from cockpit.metrics.joined import Joined, join
from tests.metrics.gpusim import Curve, telemetry
from tests.metrics.made import START, columns, hello, meta, tick
from tests.metrics.test_energy import thinned

ONE_GPU = hello({"index": 0}, boot_id="b", agent_id="a", hz=10.0)


def joined(table: dict[str, Any], *streams: list[dict[str, Any]], **about: Any) -> Joined:
    """The iterations of a table with one node's lines, or several nodes'."""
    return join(table, nodes.read(streams, meta(vendor="nvidia", **about)))


def lines(*values: dict[str, Any], index: int = 0) -> list[dict[str, Any]]:
    """A hello and a tick every tenth of a second, the first at 0.05 s."""
    return [ONE_GPU, *({**tick(0.05 + k / 10, {"index": index, **v}), "seq": k} for k, v in enumerate(values))]


def test_ticks_belong_to_the_iteration_in_which_they_fall() -> None:
    watts = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0]
    found = joined(columns([0.2, 0.1, 0.3]), lines(*({"power_w": w} for w in watts)))
    assert found.power_w.tolist() == [150.0, 300.0, 500.0]
    assert found.samples.tolist() == [2, 1, 3]


def test_an_iteration_without_a_tick_has_energy_and_nothing_else() -> None:
    device = {"power_w": 500.0, "temp_hot_c": 60.0, "clk_sm_mhz": 1500.0, "throttle": []}
    found = joined(columns([0.3, 0.02, 0.02, 0.3]), lines(*[device] * 7))
    assert found.samples.tolist() == [3, 0, 0, 3]
    row = list(found.rows())[1]
    assert row["energy_j"] == pytest.approx(10.0)
    for name in ("power_w", "temp_c", "sensor", "clk_min_mhz", "clk_max_mhz", "throttle"):
        assert row[name] is None, name


def test_extremes_and_reasons_are_of_all_gpus() -> None:
    first = {
        "index": 0,
        "power_w": 100.0,
        "temp_edge_c": 50.0,
        "temp_mem_c": 71.0,
        "clk_sm_mhz": 1980,
        "throttle": [],
    }
    second = {"index": 3, "power_w": 50.0, "temp_hot_c": 70.0, "clk_sm_mhz": 1400, "throttle": ["power", "sync"]}
    found = joined(columns([0.4]), [ONE_GPU, *(tick(t / 10, first, second) for t in range(1, 5))])
    row = next(found.rows())
    assert (row["power_w"], row["temp_c"], row["sensor"]) == (150.0, 71.0, "GPU 0 memory")
    assert (row["clk_min_mhz"], row["clk_max_mhz"]) == (1400.0, 1980.0)
    assert row["throttle"] == ["power", "sync"]
    assert row["samples"] == 4


def test_one_silent_gpu_makes_the_sum_of_power_unknown_and_not_smaller() -> None:
    half = [tick(t / 10 - 0.05, {"index": 0, "power_w": 100.0}, {"index": 1, "power_w": 50.0 if t < 5 else None})
            for t in range(1, 9)]  # fmt: skip
    found = joined(columns([0.4, 0.4]), [ONE_GPU, *half])
    assert found.power_w[0] == pytest.approx(150.0)
    assert np.isnan(found.power_w[1])


def test_no_throttling_is_not_the_same_as_no_word_of_it() -> None:
    found = joined(columns([0.1, 0.1]), lines({"throttle": []}, {"throttle": None}))
    assert [row["throttle"] for row in found.rows()] == [[], None]


def test_energy_of_the_iterations_sums_to_the_run_s() -> None:
    curve = Curve([(80.0, 4.0), (600.0, 20.0), (200.0, 6.0)])
    rng = np.random.default_rng(1)
    took = rng.uniform(0.01, 0.4, 120)
    took *= 25 / took.sum()
    found = joined(columns(took), telemetry(curve, jitter=0.02))
    assert np.nansum(found.energy_j) == pytest.approx(curve.joules(0.0, 25.0), rel=0.01)
    ends = np.cumsum(took)
    true = np.array([curve.joules(e - t, e) for e, t in zip(ends, took, strict=True)])
    assert np.abs(found.energy_j - true).max() < 600 * 0.12


def test_where_energy_is_not_known_an_iteration_has_none() -> None:
    lost = telemetry(Curve([(100.0, 60.0)]), gaps=[(20.0, 40.0)], counter=lambda t, j: None)
    found = joined(columns([10.0] * 7), lost)
    assert np.isfinite(found.energy_j).tolist() == [True, True, False, False, True, True, False]


def test_a_line_that_stands_for_ten_steps_has_the_energy_of_ten() -> None:
    whole = columns([0.5] * 100)
    tenth = {name: column[9::10] for name, column in whole.items()}
    found = joined(tenth, telemetry(Curve([(400.0, 60.0)])))
    assert found.steps.tolist() == [10.0] * 10
    assert found.energy_j[1:].tolist() == pytest.approx([400 * 5.0] * 9, rel=1e-3)


def test_a_thinned_tick_speaks_for_no_line_shorter_than_itself() -> None:
    old = thinned(telemetry(Curve([(400.0, 60.0)])), 1)
    short, long = joined(columns([0.5] * 100), old), joined(columns([5.0] * 10), old)
    assert short.samples.sum() == 0
    assert np.isnan(short.power_w).all()
    assert np.nansum(short.energy_j) == pytest.approx(400 * 50, rel=0.01)
    assert long.samples.min() >= 4
    assert long.power_w.tolist() == pytest.approx([400.0] * 10)


def test_a_log_without_time_joins_nothing() -> None:
    table = columns([0.2, np.nan, 0.2])
    table["t"][2] = np.nan
    found = joined(table, lines(*[{"power_w": 100.0}] * 9))
    assert found.samples.tolist() == [2, 0, 0]
    assert np.isnan(found.energy_j[1:]).all()


def test_several_nodes_are_summed_and_the_hottest_is_named() -> None:
    def node(watts: float, temp: float) -> list[dict[str, Any]]:
        return lines(*[{"power_w": watts, "temp_hot_c": temp}] * 9)

    handle = {"nodes": [{"access": {"address": a}} for a in ("h1", "h2")]}
    found = joined(columns([0.4, 0.4]), node(100.0, 50.0), node(300.0, 60.0), handle=handle)
    row = next(found.rows())
    assert (row["power_w"], row["sensor"]) == (400.0, "node h2, GPU 0 hotspot")
    without = joined(columns([0.4]), node(100.0, 50.0), [], handle=handle)
    assert np.isnan(without.power_w[0])
    assert np.isnan(without.energy_j[0])


def test_a_server_without_gpus_has_its_packages_power() -> None:
    ticks = [hello(hz=2.0), *(tick(k / 2, host={"power_w": 30.0}) for k in range(1, 9))]
    row = next(joined(columns([2.0]), ticks).rows())
    assert (row["power_w"], row["temp_c"], row["throttle"]) == (30.0, None, None)


def test_a_run_without_telemetry_or_iterations_is_no_trouble() -> None:
    assert [row["samples"] for row in joined(columns([0.1, 0.1]), []).rows()] == [0, 0]
    assert list(joined(columns([]), []).rows()) == []
    assert joined({}, lines({"power_w": 1.0})).t.size == 0


def test_a_million_iterations_are_joined_fast() -> None:
    n = 1_000_000
    table = {"step": np.arange(1.0, n + 1), "step_s": np.full(n, 6e-5), "t": START + 6e-5 * np.arange(1, n + 1)}
    ticks = nodes.read([telemetry(Curve([(400.0, 60.0)]))], meta())
    began = time.process_time()
    found = join(table, ticks)
    assert time.process_time() - began < 5.0  # 1 s where it was measured
    assert int(found.samples.sum()) == 600
    assert np.nansum(found.energy_j) == pytest.approx(400 * 60, rel=0.01)
