"""What somebody should be told at once of a machine's sensors: heat, memory errors, what the driver reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cockpit.core.gpu import DeviceNow, MachineNow

_TEXT_BY = 1000
_COOLED_C = 3.0  # an alarm of heat ends this far below its limit, or it would flicker
HEAT = {"temp_hot_c": "hotspot", "temp_mem_c": "memory", "temp_edge_c": "edge"}


@dataclass(frozen=True, slots=True)
class Alarm:
    """`kind` heat, throttle, ecc or xid; `over` says that it ended. `t` is the server's wall clock (s) or None."""

    index: int | None
    kind: str
    text: str
    t: float | None
    over: bool = False


@dataclass(slots=True)
class _Device:
    hot: bool = False
    throttled: bool = False
    uncorrected: float | None = None


@dataclass(slots=True)
class Alarms:
    """Watches one machine. `temp_c` is the limit of every sensor in degrees Celsius; None: heat is not watched."""

    temp_c: float | None = None
    _devices: dict[int, _Device] = field(default_factory=dict)

    def look(self, now: MachineNow, line: Mapping[str, Any]) -> list[Alarm]:
        """The alarms of one line that `now` has taken in."""
        t = now.wall_ns / 1e9 if now.wall_ns is not None else None
        if line.get("type") == "err" and line.get("code") == "event":
            index = line.get("index")
            kind = "xid" if line.get("event") == "xid" else "event"
            return [
                Alarm(index if isinstance(index, int) else None, kind, str(line.get("text") or kind)[:_TEXT_BY], t)
            ]
        if line.get("type") != "tick":
            return []
        return [alarm for device in now.each() for alarm in self._device(device, t)]

    def _device(self, device: DeviceNow, t: float | None) -> Iterator[Alarm]:
        known = self._devices.setdefault(device.index, _Device())
        if device.stale_s is None:
            yield from self._heat(device, known, t)
            yield from self._throttle(device, known, t)
        errors = device.number("ecc_uncorr")
        if errors is not None:
            if known.uncorrected is not None and errors > known.uncorrected:
                more = errors - known.uncorrected
                yield Alarm(device.index, "ecc", f"{more:.0f} more uncorrected memory errors, {errors:.0f} in all", t)
            known.uncorrected = errors

    def _heat(self, device: DeviceNow, known: _Device, t: float | None) -> Iterator[Alarm]:
        found = [(value, name) for name in HEAT if (value := device.number(name)) is not None]
        if self.temp_c is None or not found:
            return
        value, name = max(found)
        if not known.hot and value >= self.temp_c:
            known.hot = True
            yield Alarm(
                device.index, "heat", f"{HEAT[name]} sensor at {value:.0f} °C, the limit is {self.temp_c:g}", t
            )
        elif known.hot and value < self.temp_c - _COOLED_C:
            known.hot = False
            yield Alarm(device.index, "heat", f"cooled to {value:.0f} °C", t, over=True)

    def _throttle(self, device: DeviceNow, known: _Device, t: float | None) -> Iterator[Alarm]:
        reasons = device.get("throttle")
        if not isinstance(reasons, list):
            return
        why = sorted({"thermal", "hw"}.intersection(r for r in reasons if isinstance(r, str)))
        if bool(why) != known.throttled:
            known.throttled = bool(why)
            text = f"slowed down by {' and '.join(why)}" if why else "not slowed down any more"
            yield Alarm(device.index, "throttle", text, t, over=not why)
