"""Two nodes whose clocks differ: their samples are read by one of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from cockpit.metrics import nodes
from cockpit.metrics.summary import summarise
from tests.metrics.made import START, columns, meta
from tests.metrics.test_summary import STEP, gpu_ticks, note, value

HANDLE = {"queue": "q", "nodes": [{"access": {"address": a}} for a in ("h1", "h2")]}
PPM = 50e-6


def _by(lines: list[dict[str, Any]], ahead_s: float, ppm: float, every_s: float = 10.0) -> list[dict[str, Any]]:
    """The same lines as a machine stamps them whose clock is `ahead_s` off and drifts, with what pings told of it."""

    def shown(t: float) -> float:
        return t + ahead_s + (t - START) * ppm

    out = []
    for line in copy.deepcopy(lines):
        if "t_wall_ns" in line:
            line["t_wall_ns"] = round(shown(line["t_wall_ns"] / 1e9) * 1e9)
        out.append(line)
    for t in np.arange(START - 5, START + 110, every_s):
        offset = shown(float(t)) - float(t)
        at = round(shown(float(t)) * 1e9)
        out.append({"type": "clock", "t_wall_ns": at, "offset_s": offset, "error_s": 0.001, "rtt_s": 0.002})
    return out


def _loaded(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """GPUs that draw their power from the first iteration to the last and nothing around it."""
    for line in lines:
        t = line["t_wall_ns"] / 1e9 - START if line["type"] == "tick" else 0
        for device in line["devices"] if line["type"] == "tick" else ():
            device.pop("energy_j", None)
            device["power_w"] = 500.0 if 0 < t <= 100 else 0.0
    return lines


def test_a_node_90_s_ahead_and_drifting_is_cut_where_the_other_is() -> None:
    plain = _loaded(gpu_ticks(seconds=105))
    lined = summarise(
        meta(vendor="nvidia", handle=HANDLE),
        columns(STEP, tokens=1e6),
        _by(plain, 0.0, -PPM),
        others=(_by(plain, 90.0, PPM),),
    )
    assert value(lined, "power_w") == pytest.approx(2000.0, rel=0.01)
    errors = [node["clock_error_s"] for node in lined["provenance"]["nodes"]]
    assert errors[0] == 0.0
    assert 0.001 < errors[1] < 0.05
    apart = [line for line in _by(plain, 90.0, PPM) if line["type"] != "clock"]
    left = summarise(meta(vendor="nvidia", handle=HANDLE), columns(STEP, tokens=1e6), plain, others=(apart,))
    assert value(left, "power_w") != pytest.approx(2000.0, rel=0.05) or "do not cover" in note(left, "power_w")
    assert left["provenance"]["nodes"][1]["clock_error_s"] is None


def test_samples_of_one_moment_have_one_time_within_50_ms_and_no_line_is_changed() -> None:
    plain = gpu_ticks()
    first, second = _by(plain, 0.0, -PPM), _by(plain, 90.0, PPM)
    before = json.dumps([first, second])
    read = nodes.read((first, second), meta(handle=HANDLE))
    assert float(np.abs(read.each[0].t - read.each[1].t).max()) < 0.05
    for index in (0, 1):
        apart = read.each[0].counters[index].t - read.each[1].counters[index].t
        assert float(np.abs(apart).max()) < 0.05
    assert json.dumps([first, second]) == before


def test_the_clock_of_the_node_with_the_log_is_the_one_that_counts() -> None:
    first, second = _by(gpu_ticks(), -30.0, 0.0), _by(gpu_ticks(), 90.0, 0.0)
    read = nodes.read((first, second), meta(handle=HANDLE, plan={"log_node": 1}))
    assert float(read.each[0].t[0]) == pytest.approx(START - 5 + 90.0, abs=0.01)
    assert float(read.each[1].t[0]) == pytest.approx(START - 5 + 90.0, abs=0.001)
    assert read.clock_errors[1] == 0.0


def test_a_node_without_telemetry_or_points_is_left_as_it_is() -> None:
    read = nodes.read((_by(gpu_ticks(), 0.0, 0.0), [], gpu_ticks()), meta())
    assert read.clock_errors == (0.0, None, None)
    assert float(read.each[2].t[0]) == START - 5
    assert len(read.each[1]) == 0
