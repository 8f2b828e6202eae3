"""What telemetry says, and what it is not believed in."""

from __future__ import annotations

from typing import Any

import pytest

from cockpit.metrics import energy, telemetry, throttling
from cockpit.metrics.telemetry import read_ticks
from tests.metrics.made import START, hello, tick

WHOLE = (START, START + 10.0)


def gpu(index: int = 0, **fields: Any) -> dict[str, Any]:
    """A GPU's fields in a tick."""
    return {"index": index, **fields}


def counting(watts: float, joules_per_s: float, n: int = 11) -> list[dict[str, Any]]:
    """A tick a second of a GPU that draws `watts` and whose counter rises by `joules_per_s`."""
    return [tick(float(t), gpu(power_w=watts, energy_j=1000 + joules_per_s * t)) for t in range(n)]


def test_energy_comes_from_the_counter() -> None:
    found = energy.energy_j(read_ticks(counting(100.0, 120.0)), None)
    assert found.value == pytest.approx(1200.0)
    assert found.note == "scope: GPU sockets, counter; the counter of GPU 0 gives 1.20 times the integral of power"


def test_energy_of_a_part_is_interpolated_on_the_counter() -> None:
    found = energy.energy_j(read_ticks(counting(100.0, 120.0)), (START + 2.5, START + 4.0))
    assert found.value == pytest.approx(180.0)


@pytest.mark.parametrize("slope", [0.0, -5.0, 10.0, 300.0])
def test_a_counter_that_stands_runs_back_or_disagrees_is_not_believed(slope: float) -> None:
    found = energy.energy_j(read_ticks(counting(100.0, slope)), None)
    assert found.value == pytest.approx(1000.0)
    assert found.note is not None
    assert "integrated power" in found.note


def test_a_counter_is_believed_where_no_power_contradicts_it() -> None:
    lines = [tick(float(t), host={"energy_j": 7.0 * t, "energy_src": "rapl"}) for t in range(11)]
    found = energy.energy_j(read_ticks([hello(), *lines]), None)
    assert found.value == pytest.approx(70.0)
    assert found.note == "scope: CPU packages (rapl), counter"


def test_without_any_sensor_energy_and_power_are_unknown() -> None:
    ticks = read_ticks([hello(), *(tick(float(t), host={"energy_j": None}) for t in range(5))])
    assert energy.energy_j(ticks, None).value is None
    assert energy.power_w(ticks, None).value is None
    assert energy.energy_j(read_ticks([]), None) == telemetry.Reading(None, "no telemetry")


def test_energy_is_not_made_up_for_a_part_without_readings() -> None:
    found = energy.energy_j(read_ticks(counting(100.0, 100.0)), (START, START + 60.0))
    assert found.value is None
    assert found.note is not None
    assert "do not cover" in found.note


def test_a_short_part_is_not_spoken_for_by_readings_of_half_of_it() -> None:
    ticks = read_ticks([hello(), *(tick(4.5 + t / 2, host={"power_w": 100.0}) for t in range(3))])
    assert energy.energy_j(ticks, (START, START + 10.0)).value is None
    found = energy.energy_j(ticks, (START + 4.49, START + 5.51))
    assert found.value == pytest.approx(100.0, rel=0.03)


def test_power_is_summed_over_the_gpus_and_one_silent_gpu_makes_the_sum_unknown() -> None:
    both = [tick(float(t), gpu(0, power_w=100.0), gpu(1, power_w=200.0)) for t in range(5)]
    assert energy.power_w(read_ticks(both), None).value == pytest.approx(300.0)
    silent = [tick(float(t), gpu(0, power_w=100.0), gpu(1, power_w=None)) for t in range(5)]
    assert energy.power_w(read_ticks(silent), None).value is None


def test_the_silent_die_of_a_package_does_not_count() -> None:
    devices = [{"index": 0, "package_id": "p"}, {"index": 1, "package_id": "p"}]
    lines = [tick(float(t), gpu(0, power_w=400.0), gpu(1, power_w=0.0)) for t in range(5)]
    ticks = read_ticks([hello(*devices), *lines])
    assert energy.power_w(ticks, None).value == pytest.approx(400.0)
    assert energy.energy_j(ticks, None).value == pytest.approx(1600.0)


def test_a_tick_that_came_twice_counts_once() -> None:
    lines = counting(100.0, 100.0)
    twice = [x for line in lines for x in (line, line)]
    assert len(read_ticks(twice)) == len(lines)


def test_only_the_run_s_own_gpus_are_read() -> None:
    lines = [tick(float(t), gpu(0, power_w=100.0), gpu(1, power_w=200.0)) for t in range(5)]
    ticks = read_ticks(lines, gpus=[1])
    assert ticks.count() == 1
    assert energy.power_w(ticks, None).value == pytest.approx(200.0)


def test_a_gpu_missing_from_some_ticks_keeps_its_columns_aligned() -> None:
    lines = [
        tick(0.0, gpu(0, mem_used=1)),
        tick(1.0, gpu(0, mem_used=2), gpu(1, mem_used=9)),
        tick(2.0, gpu(0, mem_used=3)),
    ]
    ticks = read_ticks(lines)
    assert {len(c["mem_used"]) for c in ticks.devices.values()} == {3}
    assert telemetry.peak(c["mem_used"] for c in ticks.devices.values()) == 9


def test_the_hottest_sensor_is_named() -> None:
    lines = [
        tick(float(t), gpu(0, temp_edge_c=60.0, temp_hot_c=None), gpu(1, temp_edge_c=55.0, temp_mem_c=90.0 + t))
        for t in range(3)
    ]
    assert telemetry.hottest(read_ticks(lines)) == telemetry.Reading(92.0, "GPU 1, memory sensor")


def test_throttling_counts_time_with_power_thermal_or_hardware_reasons() -> None:
    reasons = [[], ["idle"], ["power"], ["thermal", "sync"], ["hw"], ["other"], [], [], [], [], []]
    lines = [tick(float(t), gpu(throttle=r)) for t, r in enumerate(reasons)]
    assert throttling.throttled(read_ticks(lines), None).value == pytest.approx(0.3)


def test_throttling_is_unknown_where_no_gpu_reports_it() -> None:
    lines = [tick(float(t), gpu(throttle=None)) for t in range(4)]
    assert throttling.throttled(read_ticks(lines), None).value is None


def test_a_sensor_that_says_text_is_unknown_and_never_zero() -> None:
    ticks = read_ticks([tick(float(t), gpu(power_w="N/A", energy_j=True, mem_used=None)) for t in range(3)])
    assert energy.power_w(ticks, None).value is None
    assert energy.energy_j(ticks, None).value is None
    assert telemetry.peak(c["mem_used"] for c in ticks.devices.values()) is None


def test_rubbish_of_a_server_costs_no_run_its_summary() -> None:
    huge = 10**400
    odd = {**tick(1.0, gpu()), "t_wall_ns": huge}
    lines = [
        hello({"index": "x", "package_id": 1}, {"index": 0, "package_id": 2}),
        odd,
        tick(1.0, gpu(power_w=huge, throttle=[{}])),
    ]
    lines += [tick(2.0, *(gpu(i) for i in range(100_000)))]
    found = read_ticks(lines)
    assert found.t.size == 2
    assert found.packages() == {0: "2"}
    assert energy.power_w(found, None).value is None
    assert len(found.devices) < 10_000


def test_models_and_count_come_from_the_devices_seen() -> None:
    ticks = read_ticks([hello({"index": 0, "model": "NVIDIA H200"}, {"index": 1, "model": "NVIDIA H200"})])
    assert ticks.model() == "NVIDIA H200"
    assert ticks.count() == 2
    assert read_ticks([hello()]).count() == 0
    assert read_ticks([]).count() is None
    assert read_ticks([]).inside(WHOLE).size == 0
