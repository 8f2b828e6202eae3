"""A run's telemetry (`ekvi.gpu/1` lines) as columns, and what they say of memory and heat.

A field that a tick does not hold was not asked for at that moment: it has no value there, which is not zero. A
thinned tick stands for many: power is their mean, and of temperatures, memory and clocks the extremes are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cockpit.metrics.clock import Point, point_of
from cockpit.metrics.sightings import Sightings
from cockpit.metrics.tickcolumns import Device, Points, extremes, first_reading, number, readings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

_HOST = ("power_w", "mem_used", "node_power_w")
SENSORS = {"temp_hot_c": "hotspot", "temp_mem_c": "memory", "temp_edge_c": "edge"}
# A server says which GPUs it has: a hostile one must not fill the memory.
_MOST_DEVICES = 1024
_MOST_HELLOS = 64
_BLOCK = 2048  # ticks that are held as objects before they become columns


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, or None with the reason in `note`; a note may also qualify a value."""

    value: float | None
    note: str | None = None


def _no_ticks() -> npt.NDArray[np.int64]:
    import numpy as np

    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Telemetry:
    """Columns of a run's telemetry, one entry a tick; NaN where a value is unknown.

    `t` is the server's wall clock (s); `clock` counts the seconds since the first tick by the monotonic clock where
    it is known; `span` is how long a thinned tick speaks for (s, 0 for a plain one). `devices` maps a GPU's index to
    its columns: power_w (W), temp_* (degC), clk_lo and clk_hi (MHz), mem_used (By), thr_power and thr_thermal,
    throttled (share of the tick, 0..1), throttle (bits in the order of THROTTLE, -1 unknown) and known (the share of
    a thinned tick that power is a mean of). `host` has the
    node's, one entry for each of the ticks `host_at`. `counters` are the energy readings of GPUs, `host_counter` of
    the node. `hello` is the last one that names devices, else the last.
    """

    hello: Mapping[str, Any] | None
    t: Floats
    clock: Floats
    span: Floats
    devices: dict[int, dict[str, Floats]] = field(default_factory=dict)
    host: dict[str, Floats] = field(default_factory=dict)
    host_at: npt.NDArray[np.int64] = field(default_factory=_no_ticks)
    counters: dict[int, Points] = field(default_factory=dict)
    host_counter: Points | None = None
    energy_src: str | None = None
    hellos: tuple[Mapping[str, Any], ...] = ()
    sightings: Sightings = field(default_factory=Sightings)
    clock_points: tuple[Point, ...] = ()  # how the server's wall clock stood to the cockpit's
    moved_s: float = 0.0  # by how much `t` was moved onto another node's clock; sightings stay by its own
    courses: dict[str, Any] = field(default_factory=dict)  # what energy.py made of it, kept

    def __len__(self) -> int:
        return int(self.t.size)

    def inside(self, window: tuple[float, float] | None) -> npt.NDArray[np.bool_]:
        """Which ticks lie in `window` (wall clock, seconds); all of them where it is None."""
        import numpy as np

        if window is None:
            return np.ones(self.t.size, dtype=np.bool_)
        return (self.t >= window[0]) & (self.t <= window[1])

    @property
    def period(self) -> float:
        """Seconds from tick to tick: as hello says, else as most are; NaN where neither is known."""
        import numpy as np

        hz = number((self.hello or {}).get("hz"))
        if hz > 0:
            return 1 / hz
        plain = np.diff(self.clock)[self.span[1:] == 0]
        return float(np.median(plain)) if plain.size else math.nan

    def model(self) -> str | None:
        """The GPUs' model as the driver calls it; several models joined; None without a GPU."""
        names = dict.fromkeys(str(d["model"]) for d in self.identities() if d.get("model"))
        return " + ".join(names) or None

    def count(self) -> int | None:
        """How many GPUs were sampled; None where nothing was."""
        return len(self.devices) if self.devices else (len(self.identities()) if self.hello is not None else None)

    def identities(self) -> list[Mapping[str, Any]]:
        """The devices that hello names."""
        listed = (self.hello or {}).get("devices")
        return [d for d in listed if isinstance(d, Mapping)] if isinstance(listed, list) else []

    def told(self, index: int, key: str) -> Any:
        """What hello says of a device, or None."""
        return next((d.get(key) for d in self.identities() if d.get("index") == index), None)

    def packages(self) -> dict[int, str]:
        """GPU index -> package, where dies share one: only one die of a package reports its power."""
        listed = [d for d in self.identities() if isinstance(d.get("index"), int) and d.get("package_id") is not None]
        return {d["index"]: str(d["package_id"]) for d in listed}


def read_ticks(lines: Iterable[Mapping[str, Any]], gpus: Iterable[int] | None = None) -> Telemetry:
    """Columns from telemetry lines (hello, tick, err, clock) in the order they were written; others say nothing.

    `gpus` keeps only those indices. A tick that came twice (boot_id, agent_id, seq) counts once, and one whose wall
    clock does not move on is left out. Whatever a server wrote, this raises nothing.
    """
    reader = _Reader(None if gpus is None else frozenset(gpus))
    for line in lines:
        kind = line.get("type")
        if kind == "tick":
            reader.tick(line)
        elif kind == "hello":
            reader.hello(line)
        elif kind == "err":
            reader.sightings.error(line)
        elif kind == "clock" and (point := point_of(line)) is not None:
            reader.clock_points.append(point)
    return reader.telemetry()


class _Reader:
    """Ticks on their way into columns, a block at a time: a night of ticks as objects would fill the memory."""

    def __init__(self, keep: frozenset[int] | None) -> None:
        self.sightings = Sightings()
        self.clock_points: list[Point] = []
        self._keep = keep
        self._hellos: list[Mapping[str, Any]] = []
        self._hz = math.nan
        self._source = (0, 0)
        self._sources: dict[tuple[str, ...], int] = {}
        self._agent: tuple[str, str] = ("", "")
        self._last_seq: dict[tuple[str, str], int] = {}
        self._energy_src: str | None = None
        self._rows: list[tuple[float, ...]] = []  # t, mono, span (s), source of the GPUs' values, boot
        self._devices: dict[int, Device] = {}
        self._host: list[tuple[float, ...]] = []
        self._host_counts: list[tuple[int, float, float]] = []

    def hello(self, line: Mapping[str, Any]) -> None:
        """Who speaks from here on."""
        if len(self._hellos) < _MOST_HELLOS and line not in self._hellos[-1:]:
            self._hellos.append(line)
        elif self._hellos:
            self._hellos[-1] = line
        self._hz = number(line.get("hz"))
        boot = str(line.get("boot_id"))
        self._agent = (boot, str(line.get("agent_id")))
        keys = ((boot, str(line.get("backend"))), (boot,))
        gpus, host = (self._sources.setdefault(key, len(self._sources)) for key in keys)
        self._source = (gpus, host)

    def tick(self, line: Mapping[str, Any]) -> None:
        """Keep one tick, unless it is there already."""
        t = number(line.get("t_wall_ns")) / 1e9
        if not math.isfinite(t) or (self._rows and t <= self._rows[-1][0]):
            return
        seq, before = line.get("seq"), self._last_seq.get(self._agent, -1)
        if isinstance(seq, int):
            if seq <= before:
                return
            self._last_seq[self._agent] = seq
        mono = number(line.get("t_mono_ns")) / 1e9
        at, thin = len(self._rows), "n" in line
        self._rows.append((t, mono, self._span(line, before) if thin else 0.0, *self._source))
        node = line.get("host")
        if isinstance(node, Mapping):
            self._node(at, node)
        listed = line.get("devices")
        for device in listed if isinstance(listed, list) else ():
            index = device.get("index") if isinstance(device, dict) else None
            if not isinstance(index, int) or (self._keep is not None and index not in self._keep):
                continue
            columns = self._devices.get(index)
            if columns is None:
                if len(self._devices) >= _MOST_DEVICES:
                    continue
                columns = self._devices[index] = Device()
            columns.add(at, extremes(device, line["n"]) if thin else device)
            if "procs" in device:
                self.sightings.procs(t, index, device["procs"])
        if at % _BLOCK == _BLOCK - 1:
            for columns in self._devices.values():
                columns.pack()

    def _span(self, line: Mapping[str, Any], before: int) -> float:
        """Seconds that a thinned tick speaks for; infinite (all since the one before) where hello has no rate."""
        count = number(line.get("n"))
        first, last = line.get("from_seq"), line.get("seq")
        if isinstance(first, int) and isinstance(last, int):
            whole = last - first + 1
            count = min(count, max(1, last - max(first, before + 1) + 1)) if whole > 0 else count
        return max(count, 1.0) / self._hz if self._hz > 0 else math.inf

    def _node(self, at: int, node: Mapping[str, Any]) -> None:
        """The host's values; one odd line must not cost a run its summary."""
        source = node.get("energy_src")
        self._energy_src = str(source) if source else self._energy_src
        most = node.get("max")
        values = {**node, **most, **_means(node)} if isinstance(most, Mapping) else node
        self._host.append((float(at), *(number(values.get(name)) for name in _HOST)))
        self._host_counts.append((at, number(node.get("energy_j")), number(node.get("energy_at"))))
        if "first" in node:
            self._host_counts.append((at, *first_reading(node)))

    def telemetry(self) -> Telemetry:
        """All columns."""
        import numpy as np

        rows = np.array(self._rows, dtype=np.float64).reshape(-1, 5)
        t, mono, span = rows[:, 0], rows[:, 1], rows[:, 2]
        source, boot = rows[:, 3].astype(np.int32), rows[:, 4].astype(np.int32)
        host = np.array(self._host, dtype=np.float64).reshape(-1, 1 + len(_HOST))
        at = host[:, 0].astype(np.int64)
        last = self._hellos[-1] if self._hellos else None
        found = Telemetry(
            hello=next((h for h in reversed(self._hellos) if h.get("devices")), last),
            t=t,
            clock=_clock(t, mono, boot),
            span=span,
            host={name: host[:, i] for i, name in enumerate(_HOST, 1)},
            host_at=at,
            energy_src=self._energy_src,
            hellos=tuple(self._hellos),
            sightings=self.sightings,
            clock_points=tuple(self.clock_points),
        )
        for index, device in sorted(self._devices.items()):
            found.devices[index] = device.columns(t.size)
            found.counters[index] = device.points(t, mono, source)
        counts = np.array(self._host_counts, dtype=np.float64).reshape(-1, 3)
        found.host_counter = readings(counts, t, mono, boot)
        return found


def _means(node: Mapping[str, Any]) -> dict[str, Any]:
    """What a thinned tick's host tells by its mean."""
    return {name: node.get(name) for name in ("power_w", "node_power_w")}


def _clock(t: Floats, mono: Floats, boot: npt.NDArray[np.int32]) -> Floats:
    """Seconds since the first tick: the wall clock may be set while a run goes on, the monotonic one may not."""
    import numpy as np

    if not t.size:
        return np.empty(0)
    wall, steps = np.diff(t), np.diff(mono)
    steps = np.where((boot[1:] == boot[:-1]) & (steps > 0), steps, wall)  # NaN is not > 0
    return np.concatenate(([0.0], np.cumsum(steps)))


def peak(columns: Iterable[Floats]) -> float | None:
    """The largest known value of several columns, or None."""
    import numpy as np

    known = [float(c[np.isfinite(c)].max()) for c in columns if np.isfinite(c).any()]
    return max(known, default=None)


def hottest(telemetry: Telemetry, window: tuple[float, float] | None) -> Reading:
    """The highest temperature (degC) of any GPU's hottest sensor in `window`; the note names GPU and sensor."""
    inside = telemetry.inside(window)
    found = [
        (value, index, sensor)
        for index, columns in telemetry.devices.items()
        for name, sensor in SENSORS.items()
        if (value := peak([columns[name][inside]])) is not None
    ]
    if not found:
        return Reading(None, "no GPU reports a temperature" if telemetry.devices else "no GPU telemetry")
    value, index, sensor = max(found)
    return Reading(value, f"GPU {index}, {sensor} sensor")
