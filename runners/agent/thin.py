"""Fewer ticks for the same time: what becomes of telemetry that has grown old.

All ticks within one span of the monotonic clock become one: its stamps, counters and settings are those of the last,
what comes and goes is a mean with its least and largest value beside it, and the first reading of the energy counter
is kept too (`first`), so that no joule between two ticks that are left is lost. Spans are 1, 10 and 60 s, each a
multiple of the one before: thinning a thinned tick gives what thinning the first ones would have. `num` says of how
many ticks a mean is, where not all `n` had the field.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from .gpu.source import HOT, SLOW, THROTTLE

SPANS_S = (1, 10, 60)
LATE = "late"  # the one gap that may stand within a thinned tick: from_seq to seq are then more numbers than n
_DEVICE_MEANS = frozenset(HOT + SLOW)
_LIMITED = frozenset(("power", "thermal", "hw"))
_BESIDE = frozenset(
    ("index", "min", "max", "num", "first", "throttle", "throttled", "energy_j", "energy_at", "stale_s")
)

Values = Dict[str, Any]


def thin(lines: Iterable[bytes], every_s: int) -> Iterator[bytes]:
    """The lines of a segment, each with its newline, with one tick for every `every_s` seconds.

    Lines without a number stay as they are, a damaged one is left out.
    """
    span: Optional[_Span] = None
    held: List[Tuple[bool, bytes]] = []  # lines since the span's last tick, and whether each is a gap of late ticks
    for raw in lines:
        try:
            line = json.loads(raw)
            kind = line["type"]
            tick = _Tick(line) if kind == "tick" else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        if tick is not None:
            key = tick.mono // (every_s * 1_000_000_000)
            if span is None or span.key != key:
                yield from _flushed(span, held)
                span, held = _Span(key), []
            held = [(late, other) for late, other in held if not late]
            span.add(tick)
            continue
        late = kind == "gap" and line.get("reason") == LATE
        if kind in ("gap", "hello", "segment") and not late:
            yield from _flushed(span, held)
            span, held = None, []
        if span is None:
            yield raw
        else:
            held.append((late, raw))
    yield from _flushed(span, held)


def _flushed(span: Optional[_Span], held: List[Tuple[bool, bytes]]) -> Iterator[bytes]:
    if span is not None:
        yield span.line()
    for _, raw in held:
        yield raw


class _Tick:
    """A tick's own numbers. Raises KeyError or TypeError on one that is damaged."""

    def __init__(self, line: Values) -> None:
        self.seq: int = line["seq"] + 0
        self.mono: int = line["t_mono_ns"] + 0
        self.wall: int = line["t_wall_ns"]
        self.from_seq: int = line.get("from_seq", self.seq)
        self.n: int = line.get("n", 1) + 0
        self.devices: List[Tuple[int, Values]] = [(device["index"] + 0, device) for device in line["devices"]]
        self.host: Optional[Values] = line.get("host")


class _Span:
    """The ticks of one span."""

    def __init__(self, key: int) -> None:
        self.key = key
        self._first: Optional[_Tick] = None
        self._last: Optional[_Tick] = None
        self._n = 0
        self._devices: Dict[int, _Many] = {}
        self._host: Optional[_Many] = None

    def add(self, tick: _Tick) -> None:
        """The next tick, thinned before or not."""
        if self._first is None:
            self._first = tick
        self._last = tick
        self._n += tick.n
        for index, values in tick.devices:
            if index not in self._devices:
                self._devices[index] = _Many(_DEVICE_MEANS)
            self._devices[index].add(values, tick)
        if tick.host is not None:
            if self._host is None:
                self._host = _Many(None)
            self._host.add(tick.host, tick)

    def line(self) -> bytes:
        """All of them as one."""
        assert self._first is not None
        assert self._last is not None
        tick: Values = {"type": "tick", "seq": self._last.seq, "from_seq": self._first.from_seq, "n": self._n}
        tick["t_mono_ns"], tick["t_wall_ns"] = self._last.mono, self._last.wall
        tick["devices"] = [{"index": i, **many.values(self._n)} for i, many in sorted(self._devices.items())]
        if self._host is not None:
            tick["host"] = self._host.values(self._n)
        return json.dumps(tick, separators=(",", ":")).encode() + b"\n"


class _Many:
    """One device's values, or the machine's, over the ticks of a span.

    `means` are the fields that are means; None: all numbers but counters and totals, as the machine's values are.
    """

    def __init__(self, means: Optional[frozenset[str]]) -> None:
        self._fields = means
        self._means: Dict[str, List[float]] = {}  # sum, of how many ticks, least, largest
        self._others: Values = {}  # the last that was known
        self._nulls: Dict[str, None] = {}
        self._energy: List[Tuple[float, int]] = []  # the first and the last reading, and when
        self._throttle: Optional[set[str]] = None
        self._throttle_n = [0, 0]  # ticks that said it, and those in which something limited the clock

    def add(self, values: Values, tick: _Tick) -> None:
        """The next tick's values."""
        num: Values = values.get("num") or {}
        low: Values = values.get("min") or {}
        high: Values = values.get("max") or {}
        for field, value in values.items():
            if field in _BESIDE:
                continue
            if value is None:
                self._nulls[field] = None
            elif type(value) in (int, float) and self._is_mean(field):
                count = num.get(field, tick.n)
                mean = self._means.setdefault(field, [0, 0, math.inf, -math.inf])
                mean[0] += value * count
                mean[1] += count
                mean[2] = min(mean[2], _beside(low, field, value))
                mean[3] = max(mean[3], _beside(high, field, value))
            else:
                self._others[field] = value
        self._add_beside(values, num, tick)

    def _add_beside(self, values: Values, num: Values, tick: _Tick) -> None:
        if "stale_s" in values:
            self._others["stale_s"] = max(values["stale_s"], self._others.get("stale_s", 0))
        energy = values.get("energy_j")
        if energy is not None:
            first = values.get("first") or values
            self._energy[1:] = []
            if not self._energy:
                self._energy.append((first["energy_j"], first.get("energy_at", tick.mono)))
            self._energy.append((energy, values.get("energy_at", tick.mono)))
        elif "energy_j" in values:
            self._nulls["energy_j"] = None
        throttle = values.get("throttle")
        if throttle is not None:
            count = num.get("throttle", tick.n)
            share = values.get("throttled", float(not _LIMITED.isdisjoint(throttle)))
            self._throttle = (self._throttle or set()).union(throttle)
            self._throttle_n[0] += count
            self._throttle_n[1] += round(share * count)
        elif "throttle" in values:
            self._nulls["throttle"] = None

    def _is_mean(self, field: str) -> bool:
        if self._fields is not None:
            return field in self._fields
        return not field.endswith(("energy_j", "_at", "_total"))

    def values(self, n: int) -> Values:
        """As one tick's, of `n` ticks."""
        out: Values = dict(self._nulls)
        out.update(self._others)
        num: Dict[str, int] = {}
        for field, (total, count, least, most) in self._means.items():
            out[field] = _short(total / count) if least < most else least
            if count != n:
                num[field] = int(count)
        if self._throttle is not None:
            out["throttle"] = [word for word in THROTTLE if word in self._throttle]
            out["throttled"] = _short(self._throttle_n[1] / self._throttle_n[0])
            if self._throttle_n[0] != n:
                num["throttle"] = self._throttle_n[0]
        if self._energy:
            (out["energy_j"], out["energy_at"]), first = self._energy[-1], self._energy[0]
            if first != self._energy[-1]:
                out["first"] = {"energy_j": first[0], "energy_at": first[1]}
        out["min"] = {field: mean[2] for field, mean in self._means.items()}
        out["max"] = {field: mean[3] for field, mean in self._means.items()}
        if num:
            out["num"] = num
        return out


def _beside(extremes: Values, field: str, value: float) -> float:
    found: float = extremes.get(field, value)
    return found


def _short(value: float) -> float:
    """Nine digits: a mean is not known better, and the disk is small."""
    value = float("%.9g" % value)
    return int(value) if value.is_integer() else value
