"""A GPU whose energy is known: a curve of power, and the telemetry that sensors of it would give."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.metrics.made import START

HZ = 10.0


class Curve:
    """Power in steps: `parts` are (watts, seconds) one after another."""

    def __init__(self, parts: Sequence[tuple[float, float]]) -> None:
        self.t = np.concatenate(([0.0], np.cumsum([s for _, s in parts])))
        self.watts = np.array([w for w, _ in parts])
        self._joules = np.concatenate(([0.0], np.cumsum([w * s for w, s in parts])))
        self.seconds = float(self.t[-1])

    def power(self, t: float) -> float:
        """Watts at `t` seconds."""
        return float(self.watts[min(int(np.searchsorted(self.t, t, side="right")) - 1, self.watts.size - 1)])

    def joules(self, low: float, high: float) -> float:
        """The true energy of a stretch."""
        return float(np.interp(high, self.t, self._joules) - np.interp(low, self.t, self._joules))


def telemetry(
    curve: Curve,
    *,
    resolution: float = 0.0,
    lag: float = 0.0,
    jitter: float = 0.0,
    gaps: Sequence[tuple[float, float]] = (),
    counter: Callable[[float, float], float | None] | None = None,
    power: bool = True,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Lines of one GPU: power at 10 Hz, the counter once a second with `energy_at` of its own.

    `counter(t, joules)` may falsify a reading. Nothing is taken in `gaps` (from, to).
    """
    rng = random.Random(seed)
    lines: list[dict[str, Any]] = [
        {"type": "hello", "boot_id": "b", "agent_id": "a", "backend": "nvml", "hz": HZ, "devices": [{"index": 0}]}
    ]
    for k in range(int(curve.seconds * HZ) + 1):
        t = max(0.0, k / HZ + rng.uniform(-jitter, jitter))
        if any(low < t < high for low, high in gaps):
            continue
        device: dict[str, Any] = {"index": 0, "power_w": curve.power(t) if power else None}
        if k % 10 == 0:
            read = max(0.0, t - 0.03)
            true = curve.joules(0.0, max(0.0, read - lag))
            told = np.floor(true / resolution) * resolution if resolution else true
            device["energy_j"] = 5000.0 + told if counter is None else counter(read, 5000.0 + told)
            device["energy_at"] = mono(read)
        lines.append({"type": "tick", "seq": k, "t_mono_ns": mono(t), "t_wall_ns": wall(t), "devices": [device]})
    return lines


def mono(t: float) -> int:
    """The monotonic clock `t` seconds after START, ns."""
    return round((1000.0 + t) * 1e9)


def wall(t: float) -> int:
    """The wall clock, ns."""
    return round((START + t) * 1e9)
