"""One GPU's values on their way from JSON objects into columns, a block at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

_DOUBLE = ("mem_used",)  # more digits than a float32 has
_ASKED = (
    *("power_w", "temp_hot_c", "temp_mem_c", "temp_edge_c", "clk_sm_mhz", "clk_min_mhz", "clk_max_mhz"),
    *("mem_used", "thr_power", "thr_thermal", "energy_j", "energy_at"),
)
_MOST_OF = ("temp_hot_c", "temp_mem_c", "temp_edge_c", "mem_used")  # a thinned tick speaks by its largest
THROTTLE = ("idle", "power", "thermal", "hw", "sync", "other")
_BITS = {reason: 1 << i for i, reason in enumerate(THROTTLE)}
_OTHER = _BITS["other"]
SLOWED = _BITS["power"] | _BITS["thermal"] | _BITS["hw"]
_TOO_LARGE = 1e19  # of any unit: a wall clock in ns is the largest, and sums must not overflow
_OLD_S = 3600.0  # a counter's reading is not older
_PLAIN = frozenset({float, int, type(None)})


@dataclass(frozen=True, slots=True)
class Points:
    """Readings of an energy counter: `t` (s, wall clock), `joules`, and `source`, a number for each boot and backend.

    Only differences mean something, and only between readings of one source.
    """

    t: Floats
    joules: Floats
    source: npt.NDArray[np.int32]


def number(value: Any) -> float:
    """A number that can be true, as float; NaN for everything else, bool too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        found = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.nan
    return found if abs(found) < _TOO_LARGE else math.nan


def extremes(device: Mapping[str, Any], ticks: Any) -> dict[str, Any]:
    """The device of a thinned tick that stands for so many `ticks`, with its extremes where those count.

    `known` is the share of the ticks that power is a mean of.
    """
    least, most = device.get("min"), device.get("max")
    least, most = (x if isinstance(x, Mapping) else {} for x in (least, most))
    out = {**device, **{name: most[name] for name in _MOST_OF if most.get(name) is not None}}
    sm = device.get("clk_sm_mhz")
    num, n = device.get("num"), number(ticks)
    told = number(num.get("power_w")) if isinstance(num, Mapping) else math.nan
    out["known"] = min(1.0, told / n) if n > 0 and told > 0 else 1.0
    out["clk_min_mhz"] = least.get("clk_min_mhz", device.get("clk_min_mhz"))
    out["clk_max_mhz"] = most.get("clk_max_mhz", device.get("clk_max_mhz"))
    if out["clk_min_mhz"] is None:
        out["clk_min_mhz"] = least.get("clk_sm_mhz", sm)
    if out["clk_max_mhz"] is None:
        out["clk_max_mhz"] = most.get("clk_sm_mhz", sm)
    return out


class Device:
    """One GPU's values on their way into columns."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._flat: list[Any] = []
        self._masks: list[tuple[float, ...]] = []
        self._firsts: list[tuple[int, float, float]] = []
        self._blocks: list[tuple[Any, Any, Any]] = []

    def add(self, at: int, device: Mapping[str, Any]) -> None:
        """The device's entry in tick `at`."""
        if self._at and self._at[-1] == at:
            return  # named twice in one tick
        self._at.append(at)
        self._flat.extend(map(device.get, _ASKED))
        bits = _mask(device.get("throttle"))
        share = number(device["throttled"]) if "throttled" in device else math.nan
        if not 0 <= share <= 1:
            share = math.nan if bits < 0 else float(bits & SLOWED != 0)
        self._masks.append((bits, share, device.get("known", 1.0)))
        if "first" in device:
            self._firsts.append((at, *first_reading(device)))

    def pack(self) -> None:
        """Turn what came so far into arrays."""
        import numpy as np

        if self._at:
            values = _floats(self._flat).reshape(-1, len(_ASKED))
            self._blocks.append((np.array(self._at), values, np.array(self._masks, dtype=np.float32)))
            self._at, self._flat, self._masks = [], [], []

    def columns(self, ticks: int) -> dict[str, Floats]:
        """Each column with one entry a tick; what was left out of a tick is unknown there."""
        import numpy as np

        self.pack()
        names = [n for n in _ASKED if not n.startswith(("energy", "clk"))]
        out: dict[str, Floats] = {
            n: np.full(ticks, math.nan, dtype=np.float64 if n in _DOUBLE else np.float32)
            for n in (*names, "clk_lo", "clk_hi", "throttled", "throttle", "known")
        }
        out["throttle"][:] = -1
        sm = _ASKED.index("clk_sm_mhz")
        for at, values, masks in self._blocks:
            for name in names:
                out[name][at] = values[:, _ASKED.index(name)]
            for name, asked in (("clk_lo", "clk_min_mhz"), ("clk_hi", "clk_max_mhz")):
                own = values[:, _ASKED.index(asked)]
                out[name][at] = np.where(np.isfinite(own), own, values[:, sm])
            out["throttle"][at], out["throttled"][at], out["known"][at] = masks.T
        return out

    def points(self, t: Floats, mono: Floats, source: npt.NDArray[np.int32]) -> Points:
        """The energy readings, those that thinned ticks keep of their beginning too."""
        import numpy as np

        joules, at = _ASKED.index("energy_j"), _ASKED.index("energy_at")
        found = [np.column_stack((i, v[:, joules], v[:, at])) for i, v, _ in self._blocks]
        return readings(np.concatenate([np.array(self._firsts).reshape(-1, 3), *found]), t, mono, source)


def first_reading(values: Mapping[str, Any]) -> tuple[float, float]:
    """The first energy reading of a thinned tick: J, and when (ns, monotonic)."""
    first = values.get("first")
    first = first if isinstance(first, Mapping) else {}
    return number(first.get("energy_j")), number(first.get("energy_at"))


def readings(rows: Floats, t: Floats, mono: Floats, source: npt.NDArray[np.int32]) -> Points:
    """Counter readings of rows (tick, J, ns by the monotonic clock), each at its own moment on the wall clock.

    A reading's time is set off against its tick's pair of stamps; it is the tick's own where it is not known.
    """
    import numpy as np

    rows = rows[np.isfinite(rows[:, 1])]
    i = rows[:, 0].astype(np.int64)
    late = mono[i] - rows[:, 2] / 1e9
    when = t[i] - np.where(np.abs(late) < _OLD_S, late, 0.0)
    order = np.argsort(when, kind="stable")
    new = np.concatenate(([True], np.diff(when[order]) > 0))[: order.size]  # the same reading may be told again
    order = order[new]
    return Points(when[order], rows[order, 1], source[i[order]])


def _floats(flat: list[Any]) -> Floats:
    """Values as float64, NaN for what is no finite number."""
    import numpy as np

    if _PLAIN.issuperset(set(map(type, flat))):
        try:
            found = np.array(flat, dtype=np.float64)
        except OverflowError:
            found = np.array([number(v) for v in flat])
    else:
        found = np.array([number(v) for v in flat])
    found[~(np.abs(found) < _TOO_LARGE)] = math.nan
    return found


def _mask(reasons: Any) -> int:
    """Throttle reasons as bits; -1 where they are unknown."""
    if not isinstance(reasons, (list, tuple)):
        return -1
    bits = 0
    for reason in reasons:
        bits |= _BITS.get(reason, _OTHER) if isinstance(reason, str) else _OTHER
    return bits
