"""Two servers with clocks of their own, lined up by what pings tell: the bound holds the truth."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.metrics.clock import DRIFT_PPM, Clock, Point, point_of, points_of
from cockpit.telemetry.clock import Pings, here, reference

S = 1_000_000_000
START_S = 1_800_000_000


@dataclass
class World:
    """True time, and a cockpit whose clock is it."""

    at_ns: int = START_S * S

    def now(self) -> int:
        return self.at_ns


@dataclass
class Server:
    """A machine whose clock is `ahead_s` off at the beginning and drifts."""

    world: World
    ahead_s: float
    ppm: float

    def at(self, true_ns: int) -> int:
        past = true_ns - START_S * S
        return round(true_ns + self.ahead_s * S + past * self.ppm * 1e-6)

    def ping(self, pings: Pings, there_s: float, back_s: float) -> dict[str, Any] | None:
        """One ping over a way that takes so long each way."""
        line = pings.ping()
        self.world.at_ns += round(there_s * S)
        t1 = self.at(self.world.at_ns)
        self.world.at_ns += 50_000
        t2 = self.at(self.world.at_ns)
        self.world.at_ns += round(back_s * S)
        return pings.pong({"type": "pong", "id": line["id"], "t0_ns": line["t0_ns"], "t1_ns": t1, "t2_ns": t2})


def _measured(server: Server, pings: int, seed: int, worst_s: float) -> Clock:
    """The clock of a session with a ping every 10 s over a link whose delays are anything up to `worst_s`."""
    rng, tool, lines = random.Random(seed), Pings(server.world.now), []
    for _ in range(pings):
        line = server.ping(tool, rng.random() ** 3 * worst_s, rng.random() ** 3 * worst_s)
        lines += [line] if line is not None else []
        server.world.at_ns += 10 * S
    return Clock(points_of(lines))


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-7200, 7200),
    st.floats(-DRIFT_PPM / 2, DRIFT_PPM / 2),
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.floats(1e-4, 3),
)
def test_the_truth_is_within_the_bound_at_any_time(
    ahead_s: float, ppm: float, pings: int, seed: int, worst_s: float
) -> None:
    server = Server(World(), ahead_s, ppm)
    clock = _measured(server, pings, seed, worst_s)
    for k in range(-30, 12 * pings + 30, 7):
        true_ns = (START_S + k) * S
        shown = server.at(true_ns)
        offset, error = clock.offset(shown / S) or (None, None)
        assert offset is not None
        assert error is not None
        assert abs(offset - (shown - true_ns) / S) <= error + 1e-6  # seconds since 1970 as float: a quarter of a us


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([-50.0, 50.0]))
def test_samples_of_two_hosts_90_s_apart_and_drifting_line_up_within_50_ms(seed: int, ppm: float) -> None:
    left, right = Server(World(), 0.0, -ppm), Server(World(), 90.0, ppm)
    clocks = [_measured(s, 60, seed + i, 0.04) for i, s in enumerate((left, right))]
    for k in range(0, 620, 3):
        true_ns = (START_S + k) * S
        times = []
        for server, clock in zip((left, right), clocks, strict=True):
            found = clock.to_cockpit(server.at(true_ns) / S)
            assert found is not None
            times.append(found)
            assert abs(found[0] - true_ns / S) <= found[1] + 1e-6
            assert found[1] < 0.05
        assert abs(times[0][0] - times[1][0]) < 0.05


def test_between_two_points_it_goes_from_one_to_the_other_and_the_error_grows_with_the_distance() -> None:
    clock = Clock([Point(1100.0, 90.005, 0.001), Point(1000.0, 90.0, 0.001)])
    far = 0.001 + 200 * DRIFT_PPM * 1e-6
    for t, wanted in ((1050.0, (90.0025, 0.0085)), (1000.0, (90.0, 0.001)), (1300.0, (90.005, far))):
        assert list(clock.offset(t) or ()) == pytest.approx(wanted)
    errors = [(clock.offset(t) or (0, 0))[1] for t in (1100.0, 1200.0, 9000.0)]
    assert all(a < b for a, b in pairwise(errors))


def test_a_clock_that_somebody_set_between_two_points_is_not_known_there() -> None:
    clock = Clock([Point(1000.0, 0.0, 0.001), Point(1010.0, 30.0, 0.001)])
    offset, error = clock.offset(1005.0) or (0.0, 0.0)
    assert offset - error <= 0.0
    assert offset + error >= 30.0


def test_without_a_point_nothing_is_known() -> None:
    assert Clock([]).offset(1.0) is None
    assert not Clock([])


@pytest.mark.parametrize("value", [None, "1", True, 1e400, 10**400, [], {}])
def test_lines_that_say_nothing_are_passed_over(value: Any) -> None:
    line = {"type": "clock", "t_wall_ns": 5 * S, "offset_s": 1.0, "error_s": 0.1, "rtt_s": 0.2}
    assert point_of(line) == Point(5.0, 1.0, 0.1)
    for key in ("t_wall_ns", "offset_s", "error_s"):
        assert point_of({**line, key: value}) is None


# --- pings


def test_the_ping_with_the_shortest_way_of_the_last_eight_counts_and_is_told_once() -> None:
    server = Server(World(), 90.0, 0.0)
    pings = Pings(server.world.now)
    told = []
    for rtt in (0.2, 0.02, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.25):
        line = server.ping(pings, rtt / 2, rtt / 2)
        told.append(None if line is None else round(line["rtt_s"], 3))
        server.world.at_ns += 10 * S
    assert told == [0.2, 0.02, None, None, None, None, None, None, None, 0.25]


def test_a_clock_that_was_set_is_told_at_once() -> None:
    server = Server(World(), 0.0, 0.0)
    pings = Pings(server.world.now)
    server.ping(pings, 0.001, 0.001)
    server.ahead_s = 40.0
    line = server.ping(pings, 0.1, 0.1)
    assert line is not None
    assert line["offset_s"] == pytest.approx(40.0)


def test_answers_that_nobody_asked_for_or_that_cannot_be_are_dropped() -> None:
    server = Server(World(), 0.0, 0.0)
    pings = Pings(server.world.now)
    for wrong in (
        {"id": 7, "t1_ns": 1, "t2_ns": 2},
        {"id": pings.ping()["id"], "t1_ns": -1, "t2_ns": 2},
        {"id": pings.ping()["id"], "t1_ns": 5, "t2_ns": 4},
        {"id": pings.ping()["id"], "t1_ns": 0, "t2_ns": 5},  # longer at it than we waited
        {"id": True, "t1_ns": 1, "t2_ns": 1},
        {"id": [], "t1_ns": 1, "t2_ns": 1},
        {"id": pings.ping()["id"], "t1_ns": 10**400, "t2_ns": 10**400},
        {},
    ):
        assert pings.pong(wrong) is None, json.dumps(wrong)
    for _ in range(1000):
        pings.ping()
    assert len(pings._sent) <= 64


def test_this_machines_own_clock_is_known_without_a_ping() -> None:
    line = here()
    point = point_of(line)
    assert point is not None
    assert abs(point.offset_s) < 1.0
    assert point.error_s < 0.01
    assert abs(reference() / S - line["t_wall_ns"] / S) < 1.0
