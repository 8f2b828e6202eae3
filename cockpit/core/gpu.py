"""What is known of a machine's sensors at this moment, reduced from `ekvi.gpu/1` lines: the last value of each field,
with its age.

Slow fields stand in a line only when they were read, so a value stays until the next one comes; a null takes it away.
What a server sends is not trusted: a line that is not of the schema changes nothing, and how much is kept is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

MOST_DEVICES = 1024
_MOST_FIELDS = 64
_MOST_ERRORS = 100
_DEEPEST = 8  # of values within values; a line of the schema has five
_MOST = 1e18  # of any unit: one server's nonsense must not push the columns of all off the screen
# What stands in a sample and is no value of it; the last ones only where it is a mean over several.
_APART = frozenset({"index", "stale_s", "energy_at", "min", "max", "num", "first"})


@dataclass(frozen=True, slots=True)
class Known:
    """A value and when it was read, by the server's monotonic clock (ns). `value` None: asked, and not known."""

    value: Any
    at_ns: int


@dataclass(slots=True)
class DeviceNow:
    """One GPU. `identity` is the hello line's, `unavailable` says why a field is None: field -> (code, text)."""

    index: int
    identity: Mapping[str, Any] = field(default_factory=dict)
    unavailable: dict[str, tuple[str, str]] = field(default_factory=dict)
    values: dict[str, Known] = field(default_factory=dict)
    stale_s: float | None = None

    def get(self, name: str) -> Any:
        """The last value of a field, or None."""
        known = self.values.get(name)
        return None if known is None else known.value

    def number(self, name: str) -> float | None:
        """The last value of a field where it is a finite number."""
        return number(self.get(name))


class MachineNow:
    """One machine. `taken` is the caller's clock (s) when the last tick came, `missing` how many ticks did not."""

    def __init__(self) -> None:
        self.hello: Mapping[str, Any] | None = None
        self.devices: dict[int, DeviceNow] = {}
        self.host: dict[str, Known] = {}
        self.errors: deque[Mapping[str, Any]] = deque(maxlen=_MOST_ERRORS)
        self.missing = 0
        self.gap: str | None = None
        self.offset_s: float | None = None
        self.error_s: float | None = None
        self.at_ns: int | None = None
        self.wall_ns: int | None = None
        self.taken: float | None = None

    def take(self, line: Mapping[str, Any], now: float) -> str | None:
        """Take one line in at `now`; its type where it was understood, else None."""
        kind = line.get("type")
        act = _ACTS.get(kind) if isinstance(kind, str) else None
        return kind if act is not None and not _deeper(line, _DEEPEST) and act(self, line, now) else None

    def age_s(self, known: Known, now: float) -> float:
        """How old a value is at the caller's `now`: by the server's clock to its last tick, by the caller's since."""
        since = max(0.0, now - self.taken) if self.taken is not None else 0.0
        return max(0, (self.at_ns or known.at_ns) - known.at_ns) / 1e9 + since

    def each(self) -> Iterator[DeviceNow]:
        """The GPUs by index."""
        for index in sorted(self.devices):
            yield self.devices[index]

    def _hello(self, line: Mapping[str, Any], _now: float) -> bool:
        self.hello = line
        self.devices = {}
        self.gap = None
        listed = line.get("devices")
        for about in listed if isinstance(listed, list) else ():
            device = self._device(about)
            if device is not None:
                device.identity = about
                device.unavailable = _reasons(about.get("unavailable"))
        return True

    def _tick(self, line: Mapping[str, Any], now: float) -> bool:
        at, wall = line.get("t_mono_ns"), line.get("t_wall_ns")
        if not (_whole(at) and _whole(wall)):
            return False
        self.at_ns, self.wall_ns, self.taken, self.gap = at, wall, now, None
        host = line.get("host")
        if isinstance(host, Mapping):
            _merge(self.host, host, at)
        listed = line.get("devices")
        for sample in listed if isinstance(listed, list) else ():
            device = self._device(sample)
            if device is not None:
                device.stale_s = number(sample.get("stale_s"))
                _merge(device.values, sample, at)
        return True

    def _device(self, about: Any) -> DeviceNow | None:
        index = about.get("index") if isinstance(about, Mapping) else None
        if not _whole(index) or (index not in self.devices and len(self.devices) >= MOST_DEVICES):
            return None
        return self.devices.setdefault(index, DeviceNow(index))

    def _gap(self, line: Mapping[str, Any], _now: float) -> bool:
        first, last = line.get("from_seq"), line.get("to_seq")
        if _whole(first) and _whole(last) and last >= first:
            self.missing += last - first + 1
        self.gap = str(line.get("reason") or "samples are missing")
        return True

    def _err(self, line: Mapping[str, Any], _now: float) -> bool:
        self.errors.append(line)
        index = line.get("index")
        device = self.devices.get(index) if _whole(index) else None
        name, code, text = (line.get(key) for key in ("field", "code", "text"))
        if device is not None and isinstance(name, str) and len(device.unavailable) < _MOST_FIELDS:
            device.unavailable[name] = (str(code), str(text))
        return True

    def _clock(self, line: Mapping[str, Any], _now: float) -> bool:
        offset, error = number(line.get("offset_s")), number(line.get("error_s"))
        if offset is None or error is None:
            return False
        self.offset_s, self.error_s = offset, error
        return True


_ACTS = {
    "hello": MachineNow._hello,
    "tick": MachineNow._tick,
    "gap": MachineNow._gap,
    "err": MachineNow._err,
    "clock": MachineNow._clock,
}


def number(value: Any) -> float | None:
    """A number that a sensor or a clock can have as float; None for everything else, bool among it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_MOST < value < _MOST else None


def _deeper(value: Mapping[str, Any] | list[Any], most: int) -> bool:
    """Whether it nests more than `most` deep: whoever prints or copies such a thing breaks off."""
    inner = value.values() if isinstance(value, Mapping) else value
    return most == 0 or any(isinstance(one, (dict, list)) and _deeper(one, most - 1) for one in inner)


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _merge(values: dict[str, Known], sample: Mapping[str, Any], at: int) -> None:
    for name, value in sample.items():
        if name in _APART or (name not in values and len(values) >= _MOST_FIELDS):
            continue
        own = sample.get("energy_at") if name == "energy_j" else None
        values[name] = Known(value, own if _whole(own) else at)


def _reasons(said: Any) -> dict[str, tuple[str, str]]:
    """field -> (code, text) of a device in the hello line; whatever else stands there is left out."""
    found = {}
    for name, why in list(said.items())[:_MOST_FIELDS] if isinstance(said, Mapping) else ():
        if isinstance(name, str) and isinstance(why, list) and len(why) == 2:
            found[name] = (str(why[0]), str(why[1]))
    return found


_NEWS = {"blocked": "warning", "recovered": "info", "ended": "warning", "gone": "warning", "event": "warning"}
_NEWS_CHARS = 300


def news(line: Mapping[str, Any]) -> tuple[str, str] | None:
    """(level, words behind a server's name) of an err line; None where it only says why a field is unknown."""
    code = line.get("code")
    level = _NEWS.get(code) if isinstance(code, str) else None
    if level is None:
        return None
    gpu = f" GPU {line['index']}" if isinstance(line.get("index"), int) else ""
    text = " ".join(str(line.get("text") or line.get("event") or code).split())[:_NEWS_CHARS]
    return "error" if line.get("event") == "xid" else level, f"{gpu}: {text}"
