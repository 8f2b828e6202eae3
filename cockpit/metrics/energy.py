"""Energy and power of one machine's telemetry: how much, measured where, by what, and how far it may be off.

Scopes: "gpu" (each GPU's own sensor), "package" (one for the dies that share it), "cpu" (the CPU packages, on a
server without GPUs), and apart from them the node's sensor. Sources: "counter", "integrated", "mixed".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cockpit.core.text import printable
from cockpit.metrics.course import Course, Part, Power, course
from cockpit.metrics.telemetry import Reading, Telemetry

if TYPE_CHECKING:
    from cockpit.metrics.tickcolumns import Floats, Points

Window = tuple[float, float]

EDGE = 0.02  # telemetry may begin or end this share of a stretch inside it and still speak for it
EDGE_S = 5.0  # but never more
_PURE = 0.01  # of the energy: less from the other source does not make it a mixture
_APART = 0.1  # counter and power that differ by more in sum are told
_IDLE_S = 1.0  # the least that makes a baseline
_MOSTLY = 0.9  # of the time: a mean of less says so
_SCOPES = {"gpu": "GPUs", "package": "GPU packages", "gpu+package": "GPUs and GPU packages"}


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules in a stretch of time with their scope, or None and `why`; `error_j` bounds what interpolation adds."""

    joules: float | None
    scope: str | None = None
    words: str | None = None
    counted: float = 0.0
    error_j: float = 0.0
    doubts: tuple[str, ...] = ()
    why: str | None = None

    @property
    def share(self) -> float | None:
        """How much of it comes from the counters, 0..1; None where nothing is known."""
        if self.joules is None:
            return None
        return min(1.0, max(0.0, self.counted / self.joules)) if self.joules > 0 else float(self.counted > 0)

    @property
    def src(self) -> str | None:
        """Counter, integrated or mixed."""
        share = self.share
        if share is None:
            return None
        return "counter" if share >= 1 - _PURE else "integrated" if share <= _PURE else "mixed"

    def reading(self) -> Reading:
        """The joules, with scope and source in words."""
        if self.joules is None:
            return Reading(None, self.why)
        share = self.share or 0.0
        by = {
            "counter": "counter",
            "integrated": "integrated power",
            "mixed": f"counter {100 * share:.0f} % and integrated power {100 * (1 - share):.0f} %",
        }[self.src or "integrated"]
        off = self.error_j / abs(self.joules) if self.joules else 0.0  # a share: it holds of joules a token too
        known = f", within {100 * off:.{2 if off < 0.1 else 3}g} %" if off > 1e-3 else ""
        return Reading(self.joules, "; ".join((f"scope: {self.words}, {by}{known}", *self.doubts)))

    def to_json(self) -> dict[str, Any]:
        """For the summary: what a comparison must know of it."""
        return {
            "scope": self.scope,
            "src": self.src,
            "counter_share": None if self.share is None else round(self.share, 4),
            "error_j": None if self.joules is None else round(self.error_j, 3),
            "doubts": list(self.doubts),
        }


def total(parts: Sequence[Energy], names: Sequence[str]) -> Energy:
    """The sum over several nodes; None where one is unknown, with its name."""
    if len(parts) == 1:
        return parts[0]
    missing = [f"{name}: {p.why or 'not known'}" for p, name in zip(parts, names, strict=True) if p.joules is None]
    if missing:
        return Energy(None, why="; ".join(missing))
    words = " and ".join(dict.fromkeys(str(p.words) for p in parts))
    return Energy(
        joules=math.fsum(p.joules or 0.0 for p in parts),
        scope="+".join(sorted({str(p.scope) for p in parts})),
        words=words,
        counted=math.fsum(p.counted for p in parts),
        error_j=math.fsum(p.error_j for p in parts),
        doubts=tuple(f"{name}: {d}" for p, name in zip(parts, names, strict=True) for d in p.doubts),
    )


@dataclass(frozen=True, slots=True)
class Sensor:
    """A sensor whose energy counts: its name in words, its samples of power, its counter."""

    name: str
    power: Power
    counter: Points | None
    course: Course | None
    why: str | None = None  # hello's word for it, where it reports nothing


@dataclass(frozen=True, slots=True)
class _Sensors:
    each: tuple[Sensor, ...]
    scope: str
    words: str


def _sensors(telemetry: Telemetry) -> _Sensors:
    """The sensors whose sum is the energy: the run's GPUs', or on a server without GPUs the CPU packages'."""
    found = telemetry.courses.get("sensors")
    if not isinstance(found, _Sensors):
        found = _gpus(telemetry) if telemetry.devices else _cpu(telemetry)
        telemetry.courses["sensors"] = found
    return found


def _sensor(
    telemetry: Telemetry,
    name: str,
    watts: Floats,
    counter: Points | None,
    at: Any = slice(None),
    known: Any = 1.0,
    why: str | None = None,
) -> Sensor:
    span = telemetry.span[at] * known
    power = Power.of(telemetry.t[at], telemetry.clock[at], watts, span, telemetry.period)
    return Sensor(name, power, counter, course(power, counter), why)


def _gpus(telemetry: Telemetry) -> _Sensors:
    indices = reporting(telemetry)
    columns = telemetry.devices
    each = tuple(
        _sensor(
            telemetry,
            f"GPU {i}",
            columns[i]["power_w"],
            telemetry.counters.get(i),
            known=columns[i]["known"],
            why=_why(telemetry.told(i, "unavailable")),
        )
        for i in indices
    )
    scopes = {"package" if telemetry.told(i, "power_scope") == "package" else "gpu" for i in indices}
    scope = "+".join(sorted(scopes)) or "gpu"
    return _Sensors(each, scope, _SCOPES[scope])


def _cpu(telemetry: Telemetry) -> _Sensors:
    host, source = telemetry.host, telemetry.energy_src
    why = _why((telemetry.hello or {}).get("unavailable"))
    sensor = _sensor(telemetry, "the CPU", host["power_w"], telemetry.host_counter, telemetry.host_at, why=why)
    return _Sensors((sensor,), "cpu", f"CPU packages ({source})" if source else "CPU packages")


def _why(unavailable: Any) -> str | None:
    """Why hello says that there is no energy and no power: a sentence, or a code and a sentence."""
    told = unavailable if isinstance(unavailable, Mapping) else {}
    found = told.get("power_w") or told.get("energy_j")
    found = found[-1] if isinstance(found, list) and found else found
    return printable(found) if isinstance(found, str) else None


def _node(telemetry: Telemetry) -> Sensor:
    found = telemetry.courses.get("node")
    if not isinstance(found, Sensor):
        watts = telemetry.host["node_power_w"]
        found = _sensor(telemetry, "the node's sensor", watts, None, telemetry.host_at)
        telemetry.courses["node"] = found
    return found


def reporting(telemetry: Telemetry) -> list[int]:
    """GPUs whose sensors count: a silent or zero die is left out where its package mate speaks for both."""
    import numpy as np

    packages = telemetry.packages()
    live = {i for i, c in telemetry.devices.items() if np.nanmax(np.append(c["power_w"], 0.0)) > 0}
    spoken = {packages[i] for i in live if i in packages}
    return [i for i in telemetry.devices if i in live or packages.get(i) not in spoken]


def courses(telemetry: Telemetry) -> list[Course] | None:
    """The course of every sensor that counts; None where one tells nothing."""
    found = [s.course for s in _sensors(telemetry).each]
    known = [c for c in found if c is not None]
    return known if known and len(known) == len(found) else None


def energy(telemetry: Telemetry, window: Window | None) -> Energy:
    """Energy in `window` (wall clock, seconds), or over all readings."""
    if (nothing := _nothing(telemetry)) is not None:
        return Energy(None, why=nothing)
    sensors = _sensors(telemetry)
    parts: list[Part] = []
    doubts: dict[str, float] = {}
    for sensor in sensors.each:
        part = _part(sensor, window, telemetry.period)
        if isinstance(part, str):
            return Energy(None, why=part)
        parts.append(part)
        assert sensor.course is not None
        for what, seconds in sensor.course.doubted.items():
            doubts[f"the counter of {sensor.name} {what}"] = seconds
        ratio = sensor.course.ratio
        if math.isfinite(ratio) and abs(ratio - 1) > _APART:
            doubts[f"the counter of {sensor.name} gives {ratio:.2f} times the integral of power"] = 0.0
    return Energy(
        joules=math.fsum(p.joules for p in parts),
        scope=sensors.scope,
        words=sensors.words,
        counted=math.fsum(p.counted for p in parts),
        error_j=math.fsum(p.error_j for p in parts),
        doubts=tuple(_doubts(doubts)),
    )


def _nothing(telemetry: Telemetry) -> str | None:
    """Why there is nothing to say: a GPU server whose GPUs nobody sampled has no energy by its CPUs' sensors."""
    if not len(telemetry):
        return "no telemetry"
    blind = not telemetry.devices and (telemetry.hello or {}).get("vendor") in ("nvidia", "amd")
    return "no GPU telemetry" if blind else None


def _doubts(found: Mapping[str, float], most: int = 3) -> list[str]:
    """The doubts in words, the longest first."""
    ranked = sorted(found.items(), key=lambda one: -one[1])
    said = [f"{what} for {seconds:.0f} s and was not believed there" if seconds else what for what, seconds in ranked]
    return said[:most] + ([f"and {len(said) - most} more doubts"] if len(said) > most else [])


def _part(sensor: Sensor, window: Window | None, period: float) -> Part | str:
    """One sensor's energy, or why it is not known."""
    found = sensor.course
    if found is None or found.t.size < 2:
        return f"{sensor.name} reports neither energy nor power{f': {sensor.why}' if sensor.why else ''}"
    low, high = window or (float(found.t[0]), float(found.t[-1]))
    if window is not None and not _covered(found.t, window, max(period, sensor.power.period)):
        return f"the energy readings of {sensor.name} do not cover this part of the run"
    part = found.part(low, high)
    if part.unknown_s > 1e-6:
        which = "its counter was not believed over it" if found.doubted else "no counter carries over it"
        return f"the power of {sensor.name} is not known for {part.unknown_s:.0f} s, and {which}"
    return part


def _covered(t: Floats, window: Window, period: float) -> bool:
    edge = max(EDGE * (window[1] - window[0]), 2.5 * period if math.isfinite(period) else 0.0)
    edge = min(EDGE_S, edge)
    return bool(t.size and t[0] <= window[0] + edge and t[-1] >= window[1] - edge)


def energy_j(telemetry: Telemetry, window: Window | None) -> Reading:
    """Energy (J) in `window` (wall clock, seconds), or over all readings; the note says scope and source."""
    return energy(telemetry, window).reading()


def power_w(telemetry: Telemetry, window: Window | None) -> Reading:
    """Mean power (W) in `window`, summed over the run's GPUs, else of the CPU packages."""
    if (nothing := _nothing(telemetry)) is not None:
        return Reading(None, nothing)
    sensors = _sensors(telemetry)
    means: list[float] = []
    for sensor in sensors.each:
        mean = _mean(sensor.power, window)
        if mean is None:
            return _power_by_energy(telemetry, window, sensor.name)
        means.append(mean)
    known = min((_known(s.power, window) for s in sensors.each), default=1.0)
    partly = f", known for {100 * known:.0f} % of the time" if known < _MOSTLY else ""
    return Reading(math.fsum(means), f"scope: {sensors.words}{partly}")


def _known(power: Power, window: Window | None) -> float:
    """The share of a window for which there are samples of power; of None, between the first and the last."""
    if window is None:
        window = (float(power.t[0]), float(power.t[-1]))
    lasted = window[1] - window[0]
    return min(1.0, float(power.weights()[_inside(power, window)].sum()) / lasted) if lasted > 0 else 1.0


def _inside(power: Power, window: Window | None) -> Any:
    """Which samples lie in a window."""
    import numpy as np

    if window is None:
        return np.ones(power.t.size, dtype=bool)
    return (power.t >= window[0]) & (power.t <= window[1])


def _mean(power: Power, window: Window | None) -> float | None:
    """Mean of the samples in a window, each weighted with the time it speaks for; None where there is none."""
    import numpy as np

    chosen = _inside(power, window)
    weights = power.weights()[chosen]
    if not weights.size:
        return None
    watts = power.watts[chosen]
    return float(np.average(watts, weights=weights)) if weights.sum() > 0 else float(watts.mean())


def _power_by_energy(telemetry: Telemetry, window: Window | None, name: str) -> Reading:
    span = window or (float(telemetry.t[0]), float(telemetry.t[-1]))
    found = energy_j(telemetry, span)
    if found.value is None or span[1] <= span[0]:
        return Reading(None, f"{name} reports no power")
    return Reading(found.value / (span[1] - span[0]), f"{found.note}, energy over time")


def idle_w(telemetry: Telemetry, began: float | None, run: str | None) -> Reading:
    """Mean power (W) of the later half of the time before `began`, when the run's first process lived.

    The earlier half is left out: an H200 keeps its highest clock and 1.6 times its idle power for two seconds after a
    program has left it, so that all runs but a queue's first would seem to idle higher. Refused where another program
    was on the run's GPUs: what is drawn then is not what idling takes.
    """
    if (nothing := _nothing(telemetry)) is not None:
        return Reading(None, nothing)
    if began is None:
        return Reading(None, "when the run began is not known")
    end = math.nextafter(began, -math.inf)  # a sample at that very moment is the run's
    before = telemetry.inside((-math.inf, end))
    sensors = _sensors(telemetry)
    lasted = float(telemetry.clock[before][-1] - telemetry.clock[0]) if before.any() else 0.0
    if lasted < _IDLE_S:
        return Reading(None, "no telemetry of the time before the run began")
    own = began - telemetry.moved_s  # by the clock of the machine that saw them
    others = telemetry.sightings.strangers(run, (-math.inf, own))
    if others:
        seen = others[0][0]
        return Reading(None, f"process {seen.pid} ({seen.name or 'name not known'}) was on the GPUs before the run")
    later = max(_IDLE_S, lasted / 2)
    means = [_mean(s.power, (end - later, end)) for s in sensors.each]
    known = [m for m in means if m is not None]
    if not known or len(known) < len(means):
        silent = sensors.each[means.index(None)].name if means else "the node"
        return Reading(None, f"{silent} reports no power before the run")
    told = f"scope: {sensors.words}, the last {later:.1f} s before the run"
    asked = telemetry.sightings.first_asked
    unasked = bool(telemetry.devices) and (asked is None or asked > own)
    return Reading(math.fsum(known), told + ("; who else was on the GPUs is not known" if unasked else ""))


def node_power_w(telemetry: Telemetry, window: Window | None) -> Reading:
    """Mean power (W) of the whole node by its own sensor."""
    if not len(telemetry):
        return Reading(None, "no telemetry")
    found = _mean(_node(telemetry).power, window)
    return Reading(found, "no sensor of the node is read" if found is None else "scope: the whole node, its sensor")


def node_energy_j(telemetry: Telemetry, window: Window | None) -> Reading:
    """Energy (J) of the whole node, integrated from its sensor."""
    if not len(telemetry):
        return Reading(None, "no telemetry")
    sensor = _node(telemetry)
    if not sensor.power.t.size:
        return Reading(None, "no sensor of the node is read")
    part = _part(sensor, window, telemetry.period)
    if isinstance(part, str):
        return Reading(None, part)
    return Reading(part.joules, "scope: the whole node, its sensor, integrated power")
