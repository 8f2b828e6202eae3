"""Nodes that trained together on one time: each one's samples moved onto the clock that the iterations bear.

Only columns in memory move, by what pings told of the clocks (metrics/clock.py); the lines on disk keep their stamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from cockpit.metrics.clock import Clock

if TYPE_CHECKING:
    from cockpit.metrics.telemetry import Telemetry
    from cockpit.metrics.tickcolumns import Floats, Points


def line_up(each: Sequence[Telemetry], log_node: int) -> tuple[tuple[Telemetry, ...], tuple[float | None, ...]]:
    """Each node's telemetry by the clock of `log_node`, and how far it may be off (s).

    None where a clock was never measured: such a node's stamps are left as they are, as if the clocks agreed.
    """
    if not 0 <= log_node < len(each):
        log_node = 0
    reference = Clock(each[log_node].clock_points)
    lined: list[Telemetry] = []
    errors: list[float | None] = []
    for i, one in enumerate(each):
        clock = Clock(one.clock_points)
        if i == log_node:
            lined.append(one)
            errors.append(0.0)
        elif not (clock and reference and len(one)):
            lined.append(one)
            errors.append(None)
        else:
            lined.append(_moved(one, clock, reference))
            errors.append(_error(lined[-1], one, clock, reference))
    return tuple(lined), tuple(errors)


def _moved(one: Telemetry, clock: Clock, reference: Clock) -> Telemetry:
    def move(t: Floats) -> Floats:
        here = t - clock.offsets(t)
        there = here + reference.offsets(here + reference.points[0].offset_s)
        return here + reference.offsets(there)

    def points(found: Points) -> Points:
        return replace(found, t=move(found.t))

    t = move(one.t)
    return replace(
        one,
        t=t,
        moved_s=float(t[0] - one.t[0]),
        counters={index: points(found) for index, found in one.counters.items()},
        host_counter=None if one.host_counter is None else points(one.host_counter),
        courses={},
    )


def _error(moved: Telemetry, one: Telemetry, clock: Clock, reference: Clock) -> float:
    """The largest bound, by where the ticks begin and end and half way between the clock's points."""
    times = [float(one.t[0]), float(one.t[-1])]
    shift = float(moved.t[0] - one.t[0])
    known = [p.t for p in clock.points] + [p.t - shift for p in reference.points]
    known = sorted(t for t in known if times[0] < t < times[1])
    edges = [times[0], *known, times[1]]
    times += [(a + b) / 2 for a, b in pairwise(edges)]
    found = [(clock.offset(t), reference.offset(t + shift)) for t in times]
    return max(a[1] + b[1] for a, b in found if a is not None and b is not None)
