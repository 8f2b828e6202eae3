"""What telemetry says, and what it is not believed in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
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
    assert found.note == "scope: GPUs, counter; the counter of GPU 0 gives 1.20 times the integral of power"


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
    assert telemetry.hottest(read_ticks(lines), None) == telemetry.Reading(92.0, "GPU 1, memory sensor")


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


def stamped(seq: int, *devices: dict[str, Any], wall: float | None = None, **more: Any) -> dict[str, Any]:
    """A tick as the agent writes it, ten a second."""
    t = seq / 10
    line = tick(t if wall is None else wall, *devices)
    del line["host"]
    return {**line, "seq": seq, "t_mono_ns": round((50 + t) * 1e9), **more}


HELLO = hello({"index": 0, "model": "M"}, boot_id="b", agent_id="a", backend="nvml", hz=10.0)


def test_a_field_that_was_not_asked_for_has_no_value_at_that_tick() -> None:
    slow: dict[str, Any] = {"thr_power": 0.25}
    lines = [stamped(k, gpu(power_w=100.0, **(slow if k % 10 == 0 else {}))) for k in range(30)]
    column = read_ticks([HELLO, *lines]).devices[0]["thr_power"]
    assert np.flatnonzero(np.isfinite(column)).tolist() == [0, 10, 20]
    assert np.isfinite(read_ticks([HELLO, *lines]).devices[0]["power_w"]).all()


def test_energy_stands_at_its_own_moment_once() -> None:
    lines = [stamped(k, gpu(power_w=100.0)) for k in range(30)]
    for k, at in ((3, 50.25), (13, 51.25), (14, 51.25), (23, 52.2)):  # told again in tick 14
        lines[k]["devices"][0].update(energy_j=5.0 * k, energy_at=round(at * 1e9))
    points = read_ticks([HELLO, *lines]).counters[0]
    assert (points.t - START).tolist() == pytest.approx([0.25, 1.25, 2.2], abs=1e-5)
    assert points.joules.tolist() == [15.0, 65.0, 115.0]


def test_a_thinned_tick_speaks_by_its_mean_and_by_its_extremes() -> None:
    device = gpu(
        power_w=300.0,
        temp_hot_c=70.0,
        mem_used=50.0,
        clk_sm_mhz=1500.0,
        throttle=["idle", "power"],
        throttled=0.25,
        num={"power_w": 40},
        min={"power_w": 100.0, "clk_sm_mhz": 1200.0, "mem_used": 10.0},
        max={"power_w": 700.0, "temp_hot_c": 88.0, "mem_used": 90.0, "clk_sm_mhz": 1980.0},
    )
    ticks = read_ticks([HELLO, stamped(99, device, from_seq=0, n=50), stamped(100, gpu(power_w=200.0))])
    column = {name: float(c[0]) for name, c in ticks.devices[0].items()}
    assert (column["power_w"], column["temp_hot_c"], column["mem_used"]) == (300.0, 88.0, 90.0)
    assert (column["clk_lo"], column["clk_hi"], column["throttled"], column["throttle"]) == (
        1200.0,
        1980.0,
        0.25,
        3.0,
    )
    assert column["known"] == pytest.approx(0.8)
    assert ticks.span.tolist() == [5.0, 0.0]


def test_the_least_and_the_highest_clock_of_amd_s_dies_go_before_one_of_nvidia_s() -> None:
    lines = [
        HELLO,
        stamped(0, gpu(clk_sm_mhz=2000, clk_min_mhz=1900, clk_max_mhz=2100)),
        stamped(1, gpu(clk_sm_mhz=7)),
    ]
    column = read_ticks(lines).devices[0]
    assert (column["clk_lo"].tolist(), column["clk_hi"].tolist()) == ([1900.0, 7.0], [2100.0, 7.0])


def test_stale_ticks_are_unknown_and_not_zero() -> None:
    null: dict[str, Any] = dict.fromkeys(("power_w", "temp_hot_c", "throttle", "clk_sm_mhz", "mem_used"))
    blocked = [stamped(k, gpu(stale_s=k / 10, **null)) for k in range(10, 20)]
    lines = [stamped(k, gpu(power_w=100.0, temp_hot_c=50.0)) for k in (*range(10), *range(20, 30))]
    found = read_ticks(sorted([*lines, *blocked], key=lambda x: int(x["seq"])))
    assert np.isnan(found.devices[0]["power_w"][10:20]).all()
    assert energy.power_w(found, None).value == pytest.approx(100.0)
    assert (found.devices[0]["throttle"][10:20] == -1).all()


def test_the_host_stands_in_some_ticks_only() -> None:
    lines = [stamped(k, gpu(power_w=1.0)) for k in range(20)]
    for line in lines[::5]:
        line["host"] = {"mem_used": line["seq"]}
    found = read_ticks([HELLO, *lines])
    assert found.host_at.tolist() == [0, 5, 10, 15]
    assert found.host["mem_used"].tolist() == [0.0, 5.0, 10.0, 15.0]


def test_lines_of_other_kinds_say_nothing_here_but_what_a_driver_reports() -> None:
    event = {"type": "err", "code": "event", "event": "xid", "value": 79, "index": 0, "t_wall_ns": 5, "text": "lost"}
    others: list[dict[str, Any]] = [
        {"type": "segment", "first_seq": 0},
        {"type": "clock", "t_wall_ns": 1, "offset_s": 90.0, "error_s": 0.01, "rtt_s": 0.02},
        {"type": "gap", "from_seq": 3, "to_seq": 4, "reason": "late"},
        {"type": "err", "code": "blocked", "text": "x"},
        {"type": "pong"},
    ]
    found = read_ticks([HELLO, *others, stamped(0, gpu(power_w=1.0)), event])
    assert len(found) == 1
    assert [e["value"] for e in found.sightings.events] == [79]


def test_a_segment_that_was_read_twice_counts_once_and_a_new_agent_goes_on() -> None:
    first = [stamped(k, gpu(power_w=100.0)) for k in range(20)]
    again = {**HELLO, "agent_id": "z"}
    later = [stamped(k, gpu(power_w=100.0)) for k in range(30, 40)]
    found = read_ticks([HELLO, *first, HELLO, *first[5:], again, *later, again, *later])
    assert len(found) == 30


def test_a_tick_told_again_under_another_wall_clock_is_still_the_same_tick() -> None:
    lines = [stamped(k, gpu(power_w=1.0)) for k in range(5)]
    shifted = [stamped(k, gpu(power_w=1.0), wall=100 + k) for k in range(5)]
    assert len(read_ticks([HELLO, *lines, *shifted])) == 5


def test_what_hello_says_of_devices_outlives_one_that_lost_them() -> None:
    found = read_ticks([HELLO, stamped(0, gpu(power_w=1.0)), {**HELLO, "devices": [], "backend": None}])
    assert (found.model(), len(found.hellos)) == ("M", 2)


def test_throttling_is_weighted_by_time_and_names_its_reasons() -> None:
    plain = [stamped(k, gpu(throttle=["power"] if k < 50 else [])) for k in range(100)]
    mean = stamped(199, gpu(throttle=["thermal"], throttled=0.5), from_seq=100, n=100)
    told = throttling.throttled(read_ticks([HELLO, *plain, mean]), None)
    assert told.value == pytest.approx((4.9 + 5.0) / 19.9, abs=1e-3)
    assert told.note == "power 25 %, thermal 25 %"


def test_what_a_driver_counts_of_throttling_is_said_and_stands_in_where_no_reason_is() -> None:
    counted: dict[str, Any] = {"thr_power": 0.2, "thr_thermal": 0.0}
    both = [stamped(k, gpu(throttle=["power"], **(counted if k % 10 == 0 else {}))) for k in range(40)]
    told = throttling.throttled(read_ticks([HELLO, *both]), None)
    assert (told.value, told.note) == (1.0, "power 100 %; by the drivers' counters: power 20 %, thermal 0 %")
    silent = [stamped(k, gpu(throttle=None, **(counted if k % 10 == 0 else {}))) for k in range(40)]
    told = throttling.throttled(read_ticks([HELLO, *silent]), None)
    assert told.value == pytest.approx(0.2)
    assert "no reasons are told" in str(told.note)


def test_a_gap_does_not_count_as_throttled_time() -> None:
    lines = [stamped(k, gpu(throttle=[])) for k in range(50)]
    lines += [stamped(1000 + k, gpu(throttle=["power"] if k == 0 else [])) for k in range(50)]
    told = throttling.throttled(read_ticks([HELLO, *lines]), None).value
    assert told is not None
    assert told < 0.03


def test_many_ticks_take_little_memory_and_time() -> None:
    names = ("util", "mem_busy", "mem_used", "power_w", "temp_edge_c", "temp_mem_c", "clk_sm_mhz", "clk_mem_mhz")
    device: dict[str, Any] = {**dict.fromkeys(names, 500.5), "temp_hot_c": None, "throttle": []}
    n = 4000

    def lines() -> Iterator[dict[str, Any]]:
        yield HELLO
        for k in range(n):
            yield stamped(k, *({"index": i, **device} for i in range(8)))

    made = time.process_time()
    for _ in lines():
        pass
    made, began = time.process_time() - made, time.process_time()
    found = read_ticks(lines())
    took = time.process_time() - began - made
    assert len(found) == n
    assert sum(c.nbytes for d in found.devices.values() for c in d.values()) < n * 8 * 80
    assert took < 2.0  # 0.08 s where it was measured: 72,000 ticks within a few seconds


def test_what_drivers_count_of_old_ticks_weighs_by_the_time_that_these_stand_for() -> None:
    ends = range(60, 601, 60)
    old = [{**tick(float(k), gpu(0, thr_power=0.5)), "seq": k, "from_seq": k - 59, "n": 60} for k in ends]
    new = [{**tick(600.0 + k, gpu(0, thr_power=0.0)), "seq": 600 + k} for k in range(1, 61)]
    found = throttling.throttled(read_ticks([hello(hz=1.0), *old, *new]), None)
    assert found.value == pytest.approx(0.5 * 600 / 660, abs=0.001)
