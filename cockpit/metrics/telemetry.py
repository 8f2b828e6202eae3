"""What a run's telemetry (`ekvi.gpu/1` lines) says of a stretch of time: power, energy, memory, heat, throttling.

Energy comes from the sensor's counter. A counter that runs backwards, stands still under load, or disagrees with the
integral of power by more than 0.2x to 2x is not believed: power is integrated instead, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

_DEVICE = ("power_w", "energy_j", "mem_used", "temp_hot_c", "temp_mem_c", "temp_edge_c", "throttled")
_HOST = ("power_w", "energy_j", "mem_used")
SENSORS = {"temp_hot_c": "hotspot", "temp_mem_c": "memory", "temp_edge_c": "edge"}
# A server says which GPUs it has: a hostile one must not fill the memory.
_MOST_DEVICES = 1024
THROTTLE = frozenset({"power", "thermal", "hw"})
EDGE = 0.02  # telemetry may begin or end this share of a stretch inside it and still speak for it
EDGE_S = 5.0  # but never more


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, or None with the reason in `note`; a note may also qualify a value."""

    value: float | None
    note: str | None = None


@dataclass(slots=True)
class Telemetry:
    """Columns of a run's telemetry, one entry a tick; NaN where a value is unknown.

    `t` is the server's wall clock (seconds), `devices` maps a GPU's index to its columns (W, J, By, degC, and
    `throttled` 0 or 1), `host` holds the node's. `hello` is the last hello line, `energy_src` the host sensor's name.
    """

    hello: Mapping[str, Any] | None
    t: Floats
    devices: dict[int, dict[str, Floats]] = field(default_factory=dict)
    host: dict[str, Floats] = field(default_factory=dict)
    energy_src: str | None = None

    def __len__(self) -> int:
        return int(self.t.size)

    def inside(self, window: tuple[float, float] | None) -> npt.NDArray[np.bool_]:
        """Which ticks lie in `window` (wall clock, seconds); all of them where it is None."""
        import numpy as np

        if window is None:
            return np.ones(self.t.size, dtype=np.bool_)
        return (self.t >= window[0]) & (self.t <= window[1])

    def model(self) -> str | None:
        """The GPUs' model as the driver calls it; several models joined; None without a GPU."""
        names = dict.fromkeys(str(d["model"]) for d in self._listed() if d.get("model"))
        return " + ".join(names) or None

    def count(self) -> int | None:
        """How many GPUs were sampled; None where nothing was."""
        return len(self.devices) if self.devices else (len(self._listed()) if self.hello is not None else None)

    def _listed(self) -> list[Mapping[str, Any]]:
        listed = (self.hello or {}).get("devices")
        return [d for d in listed if isinstance(d, Mapping)] if isinstance(listed, list) else []

    def packages(self) -> dict[int, str]:
        """GPU index -> package, where dies share one: only one die of a package reports its power."""
        listed = [d for d in self._listed() if isinstance(d.get("index"), int) and d.get("package_id") is not None]
        return {d["index"]: str(d["package_id"]) for d in listed}


def _value(source: Mapping[str, Any], name: str) -> float:
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.nan


def _throttled(source: Mapping[str, Any]) -> float:
    reasons = source.get("throttle")
    if not isinstance(reasons, (list, tuple)):
        return math.nan
    return float(not THROTTLE.isdisjoint(r for r in reasons if isinstance(r, str)))


def read_ticks(lines: Iterable[Mapping[str, Any]], gpus: Iterable[int] | None = None) -> Telemetry:
    """Columns from telemetry lines (hello, tick, gap) in the order they were written.

    `gpus` keeps only those indices. A tick whose clock does not move on is one that came twice, and is dropped.
    """
    import numpy as np

    keep = None if gpus is None else set(gpus)
    hello: Mapping[str, Any] | None = None
    source: str | None = None
    times: list[float] = []
    host: dict[str, list[float]] = {name: [] for name in _HOST}
    devices: dict[int, dict[str, list[float]]] = {}
    for line in lines:
        if line.get("type") == "hello":
            hello = line
        t = _value(line, "t_wall_ns") / 1e9
        if line.get("type") != "tick" or not math.isfinite(t) or (times and t <= times[-1]):
            continue
        times.append(t)
        node = line.get("host")
        node = node if isinstance(node, Mapping) else {}  # one odd line must not cost a run its summary
        source = node.get("energy_src") or source
        for name in _HOST:
            host[name].append(_value(node, name))
        listed = line.get("devices")
        for device in listed if isinstance(listed, list) else ():
            index = device.get("index") if isinstance(device, Mapping) else None
            if not isinstance(index, int) or (index not in devices and len(devices) >= _MOST_DEVICES):
                continue
            if keep is None or index in keep:
                _device(devices.setdefault(index, {name: [] for name in _DEVICE}), device, len(times))
    for columns in devices.values():
        _pad(columns, len(times))
    return Telemetry(
        hello=hello,
        t=np.asarray(times),
        devices={i: {k: np.asarray(v) for k, v in columns.items()} for i, columns in sorted(devices.items())},
        host={k: np.asarray(v) for k, v in host.items()},
        energy_src=source,
    )


def _device(columns: dict[str, list[float]], device: Mapping[str, Any], ticks: int) -> None:
    _pad(columns, ticks - 1)
    for name in _DEVICE:
        columns[name].append(_throttled(device) if name == "throttled" else _value(device, name))


def _pad(columns: dict[str, list[float]], ticks: int) -> None:
    """A GPU that came late or was left out of a tick has unknown values there."""
    for column in columns.values():
        column.extend([math.nan] * (ticks - len(column)))


def _integral(t: Floats, power: Floats) -> Floats:
    """Energy so far (J) at each of `t` (s) by the trapezoid rule over `power` (W)."""
    import numpy as np

    steps = np.diff(t) * (power[1:] + power[:-1]) / 2
    return np.concatenate(([0.0], np.cumsum(steps)))


def _so_far(t: Floats, counter: Floats, power: Floats) -> tuple[Floats, Floats, str] | None:
    """(times, energy so far in J, where from) of one sensor, or None where neither counter nor power is known."""
    import numpy as np

    counted, powered = np.isfinite(counter), np.isfinite(power)
    whole = None
    if powered.sum() >= 2:
        whole = (t[powered], _integral(t[powered], power[powered]), "integrated power")
    if counted.sum() >= 2:
        steps = np.diff(counter[counted])
        total = float(steps.sum())
        expected = float(whole[1][-1]) if whole is not None else None
        honest = expected is None or expected <= 0 or 0.2 <= total / expected <= 2.0
        if (steps >= 0).all() and total > 0 and honest:
            return t[counted], np.concatenate(([0.0], np.cumsum(steps))), "counter"
    return whole


def _covered(t: Floats, window: tuple[float, float]) -> bool:
    edge = min(EDGE_S, EDGE * (window[1] - window[0]))
    return bool(t.size and t[0] <= window[0] + edge and t[-1] >= window[1] - edge)


def _sensors(telemetry: Telemetry) -> tuple[list[tuple[str, Floats, Floats]], str]:
    """(name, counter, power) of every sensor whose sum is the energy, and the scope in words."""
    if telemetry.devices:
        named = [(f"GPU {i}", c["energy_j"], c["power_w"]) for i, c in _reporting(telemetry).items()]
        return named, "GPU sockets"
    label = f"the node's sensor ({telemetry.energy_src})" if telemetry.energy_src else "the node's sensor"
    return [("the node", telemetry.host["energy_j"], telemetry.host["power_w"])], label


def _reporting(telemetry: Telemetry) -> dict[int, dict[str, Floats]]:
    """GPUs whose sensors count: a silent or zero die is left out where its package mate speaks for both."""
    import numpy as np

    packages = telemetry.packages()
    live = {i for i, c in telemetry.devices.items() if np.nanmax(np.append(c["power_w"], 0.0)) > 0}
    spoken = {packages[i] for i in live if i in packages}
    return {i: c for i, c in telemetry.devices.items() if i in live or packages.get(i) not in spoken}


def energy_j(telemetry: Telemetry, window: tuple[float, float] | None) -> Reading:
    """Energy (J) in `window` (wall clock, seconds), or over all ticks; the note says scope and method."""
    import numpy as np

    if not len(telemetry):
        return Reading(None, "no telemetry")
    named, scope = _sensors(telemetry)
    total, methods = 0.0, set()
    for name, counter, power in named:
        so_far = _so_far(telemetry.t, counter, power)
        if so_far is None:
            return Reading(None, f"{name} reports neither energy nor power")
        t, energy, method = so_far
        if window is not None and not _covered(t, window):
            return Reading(None, f"the energy readings of {name} do not cover this part of the run")
        low, high = window or (float(t[0]), float(t[-1]))
        total += float(np.interp(high, t, energy) - np.interp(low, t, energy))
        methods.add(method)
    return Reading(total, f"scope: {scope}, {' and '.join(sorted(methods))}")


def power_w(telemetry: Telemetry, window: tuple[float, float] | None) -> Reading:
    """Mean power (W) in `window`, summed over the run's GPUs, else of the node's sensor."""
    import numpy as np

    if not len(telemetry):
        return Reading(None, "no telemetry")
    named, scope = _sensors(telemetry)
    chosen = telemetry.inside(window)
    means = []
    for name, _counter, power in named:
        known = power[chosen][np.isfinite(power[chosen])]
        if not known.size:
            return _power_by_energy(telemetry, window, name)
        means.append(float(known.mean()))
    return Reading(math.fsum(means), f"scope: {scope}")


def _power_by_energy(telemetry: Telemetry, window: tuple[float, float] | None, name: str) -> Reading:
    span = window or (float(telemetry.t[0]), float(telemetry.t[-1]))
    energy = energy_j(telemetry, span)
    if energy.value is None or span[1] <= span[0]:
        return Reading(None, f"{name} reports no power")
    return Reading(energy.value / (span[1] - span[0]), f"{energy.note}, energy over time")


def peak(columns: Iterable[Floats]) -> float | None:
    """The largest known value of several columns, or None."""
    import numpy as np

    known = [float(c[np.isfinite(c)].max()) for c in columns if np.isfinite(c).any()]
    return max(known, default=None)


def hottest(telemetry: Telemetry) -> Reading:
    """The highest temperature (degC) of any GPU's hottest sensor over the run; the note names GPU and sensor."""
    found = [
        (value, index, sensor)
        for index, columns in telemetry.devices.items()
        for name, sensor in SENSORS.items()
        if (value := peak([columns[name]])) is not None
    ]
    if not found:
        return Reading(None, "no GPU reports a temperature" if telemetry.devices else "no GPU telemetry")
    value, index, sensor = max(found)
    return Reading(value, f"GPU {index}, {sensor} sensor")


def throttled(telemetry: Telemetry, window: tuple[float, float] | None) -> Reading:
    """Share of the time (0..1) in `window` in which any GPU was throttled by power, heat or hardware."""
    import numpy as np

    if not telemetry.devices:
        return Reading(None, "no GPU telemetry")
    flags = np.stack([c["throttled"] for c in telemetry.devices.values()])
    known = np.isfinite(flags).any(axis=0) & telemetry.inside(window)
    if known.sum() < 2:
        return Reading(None, "no GPU reports throttling")
    weight = np.diff(telemetry.t[known])
    any_one = np.nan_to_num(flags[:, known]).max(axis=0)[1:]
    return Reading(float((any_one * weight).sum() / weight.sum()))
