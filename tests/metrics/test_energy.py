"""Energy against a truth that is known, with counters that lie and telemetry with holes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.metrics import energy
from cockpit.metrics.energy import Energy
from cockpit.metrics.telemetry import read_ticks
from runners.agent.thin import thin
from tests.metrics.gpusim import HZ, Curve, mono, telemetry, wall
from tests.metrics.made import START, hello, tick

REAL = Path(os.environ.get("EKVI_REAL_DATA", "none"), "h200", "nvml_train_trace_h200.jsonl")
BUSY = Curve([(80.0, 10.0), (600.0, 60.0), (300.0, 20.0), (650.0, 60.0), (90.0, 10.0)])


def found(lines: list[dict[str, Any]], low: float | None = None, high: float | None = None) -> Energy:
    """Energy between two seconds after START, or of all."""
    window = None if low is None or high is None else (START + low, START + high)
    return energy.energy(read_ticks(lines), window)


def thinned(lines: list[dict[str, Any]], every_s: int) -> list[dict[str, Any]]:
    """What the agent makes of lines that have grown old."""
    raw = [json.dumps(line).encode() + b"\n" for line in lines]
    return [json.loads(line) for line in thin(raw, every_s)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(60, 700), st.floats(2, 40)), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.0000153, 0.001, 12.0]),
    st.floats(0, 0.2),
    st.floats(0, 0.02),
    st.lists(st.tuples(st.floats(0.05, 0.95), st.floats(0.2, 40)), max_size=3),
    st.tuples(st.floats(0, 0.4), st.floats(0.6, 1.0)),
    st.integers(0, 99),
)
def test_the_truth_lies_within_the_stated_error(
    parts: list[tuple[float, float]],
    resolution: float,
    lag: float,
    jitter: float,
    holes: list[tuple[float, float]],
    cut: tuple[float, float],
    seed: int,
) -> None:
    curve = Curve(parts)
    gaps = [(share * curve.seconds, share * curve.seconds + length) for share, length in holes]
    lines = telemetry(curve, resolution=resolution, lag=lag, jitter=jitter, gaps=gaps, seed=seed)
    low, high = cut[0] * curve.seconds, cut[1] * curve.seconds
    told = found(lines, low, high)
    if told.joules is None:  # said, not guessed
        assert told.why is not None
        assert "not known for" in told.why or "do not cover" in told.why or "neither" in told.why
        return
    # a reading may lag, and between two samples power may jump: at each end of a stretch that is judged by itself
    own = 2 * (resolution + lag * 700) + 700 * 0.12 * (2 + 2 * len(gaps))
    jumps = 650 * 0.12 * len(parts) * (told.src != "counter")
    assert told.joules == pytest.approx(curve.joules(low, high), abs=told.error_j + own + jumps + 0.002 * told.joules)


@settings(max_examples=30, deadline=None)
@given(st.floats(20, 140), st.floats(1.5, 60), st.booleans())
def test_over_a_gap_the_counter_carries_the_energy_and_an_integral_does_not(
    at: float, length: float, counted: bool
) -> None:
    at = min(at, BUSY.seconds - length - 2)
    lines = telemetry(BUSY, gaps=[(at, at + length)], counter=None if counted else lambda t, j: None)
    told = found(lines, 1.0, BUSY.seconds - 1)
    true = BUSY.joules(1.0, BUSY.seconds - 1)
    if counted:
        assert told.joules == pytest.approx(true, rel=0.01)
    elif length > 5.3:
        assert told.joules is None
        assert "no counter carries over it" in str(told.why)
    elif length < 4.7:
        assert told.joules is not None
        assert abs(told.joules - true) <= told.error_j + 0.001 * true
        assert told.error_j >= 0.5 * (length - 0.3) * 500


def test_a_counter_is_doubted_where_it_lies_and_nowhere_else() -> None:
    held: dict[str, float] = {}

    def sticks(t: float, joules: float) -> float:
        if 60 <= t < 90:
            return held.setdefault("at", joules)
        return joules

    told = found(telemetry(BUSY, counter=sticks))
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.02)
    assert told.src == "mixed"
    assert told.share == pytest.approx(1 - BUSY.joules(60, 90) / BUSY.joules(0, BUSY.seconds), abs=0.05)
    assert any("stood still for" in doubt for doubt in told.doubts)


@pytest.mark.parametrize(
    ("falsify", "word"),
    [
        (lambda t, j: 1e6 - j, "ran backwards"),
        (lambda t, j: 0.0, "stood still"),
        (lambda t, j: 5000.0 + (j - 5000) * 0.1, "disagreed with power"),
        (lambda t, j: 5000.0 + (j - 5000) * 2.5, "disagreed with power"),
    ],
)
def test_a_counter_that_lies_throughout_is_not_used_at_all(falsify: Any, word: str) -> None:
    told = found(telemetry(BUSY, counter=falsify))
    assert told.src == "integrated"
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.01)
    assert any(word in doubt for doubt in told.doubts)


def test_a_lying_counter_does_not_carry_over_a_gap() -> None:
    told = found(telemetry(BUSY, counter=lambda t, j: 0.0, gaps=[(60.0, 80.0)]))
    assert told.joules is None
    assert "its counter was not believed" in str(told.why)


def test_a_counter_that_wraps_or_starts_anew_costs_a_stretch_and_not_the_run() -> None:
    told = found(telemetry(BUSY, counter=lambda t, j: j if t < 80 else j - 40_000))
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.01)
    assert told.src == "mixed"
    assert any("ran backwards for" in d for d in told.doubts)


def test_readings_of_two_boots_are_no_pair() -> None:
    lines = telemetry(BUSY)
    half = len(lines) // 2
    again = {**lines[0], "boot_id": "c", "agent_id": "z"}
    for line in lines[half:]:
        if "energy_j" in line["devices"][0]:
            line["devices"][0]["energy_j"] += 20_000.0  # such as no rule of sums would find
    told = found([*lines[:half], again, *lines[half:]])
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.01)


def test_a_new_agent_of_the_same_boot_goes_on_with_the_counter() -> None:
    lines = [line for line in telemetry(BUSY) if not (line["type"] == "tick" and 600 <= line["seq"] < 900)]
    again = {**lines[0], "agent_id": "z"}
    told = found([*lines[:601], {"type": "gap", "from_seq": 600, "to_seq": 899}, again, *lines[601:]])
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.01)
    assert told.src == "counter"


@pytest.mark.parametrize("every_s", [1, 10, 60])
@pytest.mark.parametrize("counted", [True, False])
def test_thinned_ticks_hold_the_same_energy(every_s: int, counted: bool) -> None:
    lines = telemetry(BUSY, counter=None if counted else lambda t, j: None)
    told = found(thinned(lines, every_s))
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.003)
    power = energy.power_w(read_ticks(thinned(lines, every_s)), None)
    assert power.value == pytest.approx(BUSY.joules(0, BUSY.seconds) / BUSY.seconds, rel=0.003)


def test_old_ticks_that_are_thinned_join_new_ones_that_are_not() -> None:
    lines = telemetry(BUSY, counter=lambda t, j: None)
    told = found([*thinned(lines[:801], 10), *lines[801:]])
    assert told.joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.003)
    assert told.error_j < 0.001 * (told.joules or 0)


def test_a_thinned_tick_whose_power_was_mostly_unknown_does_not_speak_for_all_of_it() -> None:
    lines = telemetry(BUSY, counter=lambda t, j: None)
    for line in lines[1:]:
        if 300 <= line["seq"] < 480:
            line["devices"][0]["power_w"] = None
    assert found(thinned(lines, 60)).joules is None


def test_edges_are_set_between_readings_by_the_shape_of_power() -> None:
    told = found(telemetry(BUSY, power=True), 10.4, 69.6)
    assert told.joules == pytest.approx(BUSY.joules(10.4, 69.6), rel=0.01)
    assert told.error_j < 0.05 * (told.joules or 0)
    blind = found(telemetry(BUSY, power=False), 10.4, 69.6)
    assert blind.joules is not None
    assert abs(blind.joules - BUSY.joules(10.4, 69.6)) <= blind.error_j
    assert "within" in str(blind.reading().note)


@pytest.mark.parametrize("every_s", [10, 60])
@pytest.mark.parametrize("counted", [True, False])
def test_a_moment_within_a_thinned_tick_is_as_uncertain_as_that_is_long(every_s: int, counted: bool) -> None:
    lines = thinned(telemetry(BUSY, counter=None if counted else lambda t, j: None), every_s)
    for low in (3.0, 9.0, 66.0, 75.0, 91.0):
        told, true = found(lines, low, 100.0), BUSY.joules(low, 100.0)
        assert told.joules == pytest.approx(true, abs=told.error_j + 0.01 * true)


@pytest.mark.parametrize("counted", [True, False])
def test_what_readings_fall_short_of_goes_on_as_before(counted: bool) -> None:
    """The last sample is taken up to a tick before a run ends: a short run must not come out cheaper for that."""
    curve = Curve([(500.0, 60.0)])
    told = found(telemetry(curve, counter=None if counted else lambda t, j: None), -0.3, 60.3)
    assert told.joules == pytest.approx(500.0 * 60.6, abs=0.1)
    assert told.error_j >= 0.6 * 500.0 - 60.0
    assert told.src == ("counter" if counted else "integrated")


def test_a_counter_without_power_is_believed_unless_it_never_moves() -> None:
    assert found(telemetry(BUSY, power=False)).src == "counter"
    assert found(telemetry(BUSY, power=False, counter=lambda t, j: 0.0)).joules is None


def test_a_clock_that_is_set_neither_adds_nor_takes_energy() -> None:
    lines = telemetry(BUSY, counter=lambda t, j: None)
    for line in lines[1:]:
        if line["seq"] >= 500:
            line["t_wall_ns"] += 3_600_000_000_000
    assert found(lines).joules == pytest.approx(BUSY.joules(0, BUSY.seconds), rel=0.002)


def test_rapl_that_starts_anew_after_a_hello_costs_a_stretch() -> None:
    lines = [hello(boot_id="b", agent_id="a", hz=2.0, vendor="cpu")]
    for k in range(240):
        if k == 120:
            lines.append(hello(boot_id="b", agent_id="z", hz=2.0, vendor="cpu"))
        counter = 40.0 * k / 2 + (900_000 if k < 120 else 0)
        host = {"power_w": None if k in (0, 120) else 40.0, "energy_j": counter, "energy_src": "rapl"}
        lines.append({**tick(k / 2, host=host), "seq": k, "t_mono_ns": mono(k / 2)})
    told = found(lines)
    assert told.joules == pytest.approx(40.0 * 119.5, rel=0.01)
    assert (told.scope, told.words) == ("cpu", "CPU packages (rapl)")


def test_why_nothing_is_known_is_what_hello_says() -> None:
    lines = [hello(vendor="cpu", unavailable={"energy_j": "no RAPL here"}), *(tick(float(k)) for k in range(9))]
    assert str(found(lines).why).endswith("reports neither energy nor power: no RAPL here")


def test_a_mean_of_half_of_the_time_says_so() -> None:
    half = read_ticks(telemetry(Curve([(400.0, 100.0)]), gaps=[(30.0, 80.0)]))
    told = energy.power_w(half, (START, START + 100))
    assert told.value == pytest.approx(400.0)
    assert told.note == "scope: GPUs, known for 50 % of the time"
    assert energy.power_w(half, (START, START + 30)).note == "scope: GPUs"


def test_the_cpu_s_energy_is_not_a_gpu_run_s() -> None:
    lines = [hello(vendor="nvidia", backend="none"), *(tick(float(k), host={"power_w": 90.0}) for k in range(9))]
    assert found(lines).why == "no GPU telemetry"
    assert energy.power_w(read_ticks(lines), None).value is None


def test_how_far_off_it_may_be_is_a_share_which_holds_of_joules_a_token_too() -> None:
    def note(error_j: float) -> str:
        return str(Energy(1000.0, "gpu", "GPUs", counted=1000.0, error_j=error_j).reading().note)

    assert [note(e) for e in (0.9, 13.0, 240.0, 1500.0)] == [
        "scope: GPUs, counter",
        "scope: GPUs, counter, within 1.3 %",
        "scope: GPUs, counter, within 24 %",
        "scope: GPUs, counter, within 150 %",
    ]


def test_scopes_are_told_as_the_sensors_are() -> None:
    def of(*scopes: str) -> Energy:
        devices = [{"index": i, "power_scope": scope} for i, scope in enumerate(scopes)]
        ticks = [tick(float(t), *({"index": i, "power_w": 100.0} for i in range(len(scopes)))) for t in range(9)]
        return found([hello(*devices), *ticks])

    assert (of("gpu").scope, of("package").scope, of("gpu", "package").scope) == ("gpu", "package", "gpu+package")
    assert of("package").words == "GPU packages"


def idle_lines(**procs: Any) -> list[dict[str, Any]]:
    """Five seconds at 70 W, then a run at 500 W."""
    lines = telemetry(Curve([(70.0, 5.0), (500.0, 20.0)]))
    lines[1]["devices"][0].update(procs)
    return lines


def test_the_idle_baseline_is_what_was_drawn_before_the_run() -> None:
    ticks = read_ticks(idle_lines(procs=[]))
    told = energy.idle_w(ticks, START + 4.95, "g.left.r1")
    assert told.value == pytest.approx(70.0)
    assert "the last 2.4 s before the run" in str(told.note)
    assert energy.idle_w(ticks, None, None).value is None
    assert energy.idle_w(ticks, START, None).value is None


def test_an_idle_baseline_is_not_what_the_run_before_left_behind() -> None:
    """As an H200 does: it draws 124 W for 1.8 s after a program's end, and 77 W from then on."""
    ticks = read_ticks(telemetry(Curve([(124.0, 1.8), (77.0, 3.2), (500.0, 20.0)])))
    assert energy.idle_w(ticks, START + 4.95, "g.left.r2").value == pytest.approx(77.0)


def test_an_idle_baseline_with_a_stranger_on_the_gpu_is_refused() -> None:
    lines = idle_lines(procs=[{"pid": 7, "name": "python", "mem": 1, "run": None}])
    told = energy.idle_w(read_ticks(lines), START + 4.95, "g.left.r1")
    assert told.value is None
    assert "process 7 (python)" in str(told.note)
    unread = energy.idle_w(read_ticks(idle_lines(procs=None)), START + 4.95, None)
    assert unread.value == pytest.approx(70.0)
    assert "not known" in str(unread.note)


def test_the_node_s_sensor_is_a_figure_of_its_own() -> None:
    lines = [hello({"index": 0}, hz=10.0)]
    for k in range(300):
        host = {"node_power_w": 4000.0 + k} if k % 5 == 0 else None
        lines.append({**tick(k / HZ, {"index": 0, "power_w": 500.0}, host=host), "seq": k})
        if host is None:
            del lines[-1]["host"]
    ticks = read_ticks(lines)
    assert energy.node_power_w(ticks, None).value == pytest.approx(4147.5, rel=0.01)
    assert energy.node_energy_j(ticks, (START + 5, START + 25)).value == pytest.approx(20 * 4150, rel=0.01)
    assert energy.energy_j(ticks, None).value == pytest.approx(500 * 29.9)
    bare = read_ticks(telemetry(BUSY))
    assert energy.node_power_w(bare, None).note == "no sensor of the node is read"


@pytest.mark.skipif(not REAL.is_file(), reason="EKVI_REAL_DATA names no folder of real captures")
@pytest.mark.parametrize("every", [1, 10])
def test_a_training_on_an_h200_by_counter_and_by_integral(every: int) -> None:
    rows = [json.loads(line) for line in REAL.read_text().splitlines()]
    rows = [row for row in rows if row["t"] <= rows[0]["t"] + 157.05]

    def lines(counted: bool) -> list[dict[str, Any]]:
        out = [hello({"index": 0}, hz=10.0, boot_id="b")]
        for k, row in enumerate(rows):
            device: dict[str, Any] = {"index": 0, "power_w": row["power_mw"] / 1e3}
            if counted and (k % every == 0 or row is rows[-1]):
                device["energy_j"] = row["energy_mj"] / 1e3
            ns = round(row["t"] * 1e9)
            out.append({"type": "tick", "seq": k, "t_wall_ns": ns, "t_mono_ns": ns, "devices": [device]})
        return out

    counter, integral = found(lines(True)), found(lines(False))
    assert counter.src == "counter"
    assert counter.doubts == ()
    assert counter.joules == pytest.approx(58_737, rel=0.0005)
    assert integral.joules == pytest.approx(58_725, rel=0.0005)
    assert counter.joules == pytest.approx(integral.joules, rel=0.005)


def test_the_wall_clock_of_a_reading_follows_from_its_tick_s_pair() -> None:
    points = read_ticks(telemetry(BUSY)).counters[0]
    assert points.t[1] - START == pytest.approx(0.97, abs=1e-5)
    assert wall(0.97) / 1e9 == pytest.approx(points.t[1], abs=1e-5)
