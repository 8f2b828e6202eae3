"""How a server's clock stood to the cockpit's, at any moment of a run, and how far that may be wrong."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

# Two plain quartz clocks, each up to 100 ppm from true time: what cheap boards do when hot, and what time daemons
# stay below. Kernels may slew a clock by 500 ppm while they mend it, which pings every 10 s see as new points.
DRIFT_PPM = 200.0


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """At `t` (s, the server's wall clock) the server was `offset_s` ahead of the cockpit, give or take `error_s`."""

    t: float
    offset_s: float
    error_s: float


class Clock:
    """Offsets between measured points. `error_s` grows with the distance from a point, by DRIFT_PPM."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.points = tuple(sorted(points))
        self._t = [p.t for p in self.points]

    def __bool__(self) -> bool:
        return bool(self.points)

    def offset(self, t: float) -> tuple[float, float] | None:
        """Server minus cockpit at the server's time `t` (s), and its error bound (s); None where nothing is known.

        Between two points the offset goes from one to the other; before the first and after the last it stays. The
        truth lies within the bound as long as the clocks drift by no more than DRIFT_PPM and nobody sets them; where
        two points cannot both be so, somebody did, and the bound holds both.
        """
        if not self.points:
            return None
        i = bisect_right(self._t, t)
        if i in (0, len(self.points)):
            nearest = self.points[0 if i == 0 else -1]
            return nearest.offset_s, _grown(nearest, t)
        before, after = self.points[i - 1], self.points[i]
        span = after.t - before.t
        share = (t - before.t) / span if span > 0 else 0.0
        offset = before.offset_s + (after.offset_s - before.offset_s) * share
        errors = _grown(before, t), _grown(after, t)
        low = max(before.offset_s - errors[0], after.offset_s - errors[1])
        high = min(before.offset_s + errors[0], after.offset_s + errors[1])
        if low > high:
            low = min(before.offset_s - before.error_s, after.offset_s - after.error_s)
            high = max(before.offset_s + before.error_s, after.offset_s + after.error_s)
        offset = min(max(offset, low), high)
        return offset, max(high - offset, offset - low)

    def offsets(self, t: Floats) -> Floats:
        """`offset` without its bound, of many times; there must be a point."""
        import numpy as np

        return np.interp(t, self._t, [p.offset_s for p in self.points])

    def to_cockpit(self, t: float) -> tuple[float, float] | None:
        """The cockpit's time (s) when the server's clock showed `t`, and its error bound (s)."""
        found = self.offset(t)
        return None if found is None else (t - found[0], found[1])


def _grown(point: Point, t: float) -> float:
    return point.error_s + abs(t - point.t) * DRIFT_PPM * 1e-6


def points_of(lines: Iterable[Mapping[str, Any]]) -> list[Point]:
    """The points of a run's `clock` lines; others are passed over."""
    found = []
    for line in lines:
        point = point_of(line) if line.get("type") == "clock" else None
        if point is not None:
            found.append(point)
    return found


def point_of(line: Mapping[str, Any]) -> Point | None:
    """One clock line; None where it does not say what it should."""
    t, offset, error = (_number(line.get(key)) for key in ("t_wall_ns", "offset_s", "error_s"))
    return None if t is None or offset is None or error is None else Point(t / 1e9, offset, abs(error))


def _number(value: Any) -> float | None:
    if type(value) not in (int, float) or not abs(value) < 1e20:
        return None
    return float(value)
