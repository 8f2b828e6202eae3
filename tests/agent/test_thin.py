"""Thinned ticks: what is kept of the first ones, and that thinning twice is thinning once."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.agent.gpu.source import THROTTLE
from runners.agent.thin import SPANS_S, thin

S = 1_000_000_000


def _tick(seq: int, at_s: float, devices: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    at = round(at_s * S)
    return {"type": "tick", "seq": seq, "t_mono_ns": at, "t_wall_ns": 10**18 + at, "devices": devices or [], **more}


def _thin(lines: list[dict[str, Any]], every_s: int) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in thin([json.dumps(line).encode() + b"\n" for line in lines], every_s)]


def test_values_become_means_with_their_extremes_and_counters_stay_those_of_the_last_tick() -> None:
    rows: list[dict[str, Any]] = [
        {"index": 0, "util": 0.1 * i, "power_w": 100.0 + i, "temp_mem_c": None, "throttle": [], "ecc_corr": i}
        for i in range(10)
    ]
    rows[2] |= {"sm_active": 0.25, "energy_j": 500.0, "energy_at": 7}
    rows[8] |= {"energy_j": 620.0, "energy_at": 9, "throttle": ["power", "idle"]}
    (tick,) = _thin([_tick(40 + i, 3 + i / 10, [row]) for i, row in enumerate(rows)], 1)
    assert (tick["from_seq"], tick["seq"], tick["n"], tick["t_mono_ns"]) == (40, 49, 10, 3_900_000_000)
    (device,) = tick["devices"]
    assert device["util"] == pytest.approx(0.45)
    assert (device["min"]["power_w"], device["power_w"], device["max"]["power_w"]) == (100.0, 104.5, 109.0)
    assert (device["sm_active"], device["num"]) == (0.25, {"sm_active": 1})
    assert (device["energy_j"], device["energy_at"]) == (620.0, 9)
    assert device["first"] == {"energy_j": 500.0, "energy_at": 7}
    assert (device["throttle"], device["throttled"]) == (["idle", "power"], 0.1)
    assert device["temp_mem_c"] is None
    assert "temp_mem_c" not in device["min"]
    assert device["ecc_corr"] == 9


def test_a_field_that_was_null_now_and_then_is_the_mean_of_the_rest() -> None:
    lines = [_tick(i, i / 10, [{"index": 0, "power_w": None if i % 2 else 10.0 + i}]) for i in range(4)]
    (tick,) = _thin(lines, 1)
    assert (tick["devices"][0]["power_w"], tick["devices"][0]["num"]) == (11.0, {"power_w": 2})


def test_the_machines_energy_keeps_its_first_and_last_reading_with_their_times() -> None:
    lines = [_tick(i, 5 + i / 10, host={"cpu_util": 0.5, "energy_j": 9.0 + i, "mem_total": 8}) for i in range(3)]
    (tick,) = _thin(lines, 1)
    assert (tick["host"]["energy_j"], tick["host"]["energy_at"]) == (11.0, 5_200_000_000)
    assert tick["host"]["first"] == {"energy_j": 9.0, "energy_at": 5_000_000_000}
    assert (tick["host"]["mem_total"], tick["host"]["cpu_util"]) == (8, 0.5)


def test_late_ticks_within_a_span_are_counted_by_its_numbers_and_other_gaps_stay() -> None:
    lines = [
        _tick(0, 0.0),
        {"type": "gap", "from_seq": 1, "to_seq": 2, "reason": "late"},
        _tick(3, 0.3),
        {"type": "gap", "from_seq": 4, "to_seq": 4, "reason": "no space left on the disk"},
        _tick(5, 0.5),
        {"type": "gap", "from_seq": 6, "to_seq": 11, "reason": "late"},
        _tick(12, 1.2),
    ]
    found = _thin(lines, 1)
    assert [(line["type"], line.get("from_seq"), line.get("n")) for line in found] == [
        ("tick", 0, 2),
        ("gap", 4, None),
        ("tick", 5, 1),
        ("gap", 6, None),
        ("tick", 12, 1),
    ]


def test_a_stale_device_stays_stale_and_null() -> None:
    lines = [_tick(i, i / 10, [{"index": 0, "stale_s": 1.1 + i / 10, "util": None}]) for i in range(3)]
    (tick,) = _thin(lines, 1)
    assert (tick["devices"][0]["util"], tick["devices"][0]["stale_s"]) == (None, pytest.approx(1.3))


def test_damaged_lines_are_left_out_and_lines_without_a_number_stay() -> None:
    raw = [b'{"type":"tick","seq":1}\n', b"\x00\x00\n", b'{"type":"tick","seq":"x","t_mono_ns":0}\n', b"[]\n"]
    err = b'{"type":"err","code":"blocked"}\n'
    assert list(thin([*raw, err], 1)) == [err]


# --- thinning twice is thinning once

_number = st.one_of(st.none(), st.floats(0, 1000, allow_nan=False).map(lambda x: round(x, 3)))
_device = st.fixed_dictionaries(
    {"util": _number, "power_w": _number, "throttle": st.none() | st.lists(st.sampled_from(THROTTLE), unique=True)},
    optional={
        "sm_active": _number,
        "energy_j": _number,
        "ecc_corr": st.none() | st.integers(0, 9),
        "procs": st.just([{"pid": 1}]),
    },
)
_host = st.fixed_dictionaries({"cpu_util": _number, "energy_j": _number, "mem_used": st.integers(0, 2**20)})
_between = st.sampled_from(["", "", "", "", "late", "the agent was away", "hello", "err"])


@st.composite
def _segments(draw: st.DrawFn) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    seq, at_s = draw(st.integers(0, 10**6)), draw(st.floats(0, 1e5))
    for _ in range(draw(st.integers(1, 25))):
        what = draw(_between)
        missing = draw(st.integers(1, 40)) if what and what not in ("hello", "err") else 0
        if missing:
            lines.append({"type": "gap", "from_seq": seq, "to_seq": seq + missing - 1, "reason": what})
        elif what:
            lines.append({"type": what, "text": "x"})
        seq += missing
        at_s += missing * 0.1 + draw(st.sampled_from([0.1, 0.1, 0.5, 4.0]))
        devices = [{"index": i, **draw(_device)} for i in range(draw(st.integers(0, 2)))]
        for device in devices:
            if device.get("energy_j") is not None:
                device["energy_at"] = round(at_s * S) - 1
        tick = _tick(seq, at_s, devices)
        if draw(st.booleans()):
            tick["host"] = draw(_host)
        lines.append(tick)
        seq += 1
    return lines


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-9)
    return bool(a == b)


@settings(max_examples=150, deadline=None)
@given(_segments())
def test_thinning_the_thinned_is_thinning_the_first_ones(lines: list[dict[str, Any]]) -> None:
    once = _thin(lines, SPANS_S[0])
    for before, span in pairwise(SPANS_S):
        once = _thin(once, span)
        direct = _thin(lines, span)
        assert _close(once, direct), (before, span)


def _covered(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for line in lines:
        if line["type"] == "tick":
            spans.append((line.get("from_seq", line["seq"]), line["seq"]))
        elif line["type"] == "gap":
            spans.append((line["from_seq"], line["to_seq"]))
    return spans


@settings(max_examples=100, deadline=None)
@given(_segments(), st.sampled_from(SPANS_S))
def test_every_number_is_still_spoken_of_once(lines: list[dict[str, Any]], span: int) -> None:
    before, after = _covered(lines), _covered(_thin(lines, span))
    assert (after[0][0], after[-1][1]) == (before[0][0], before[-1][1])
    assert all(b[0] == a[1] + 1 for a, b in pairwise(after))
    kept = sum(line.get("n", 1) for line in _thin(lines, span) if line["type"] == "tick")
    assert kept == sum(line["type"] == "tick" for line in lines)
