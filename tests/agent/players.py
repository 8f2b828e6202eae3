"""Sources that a test plays through `--source tests.agent.players:CLASS`: well, slow, rude and dying.

What a class does is chosen by files in the folder $EKVI_PLAY, so that a test turns it while the process runs.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

from runners.agent.gpu.source import DEVICE_KEYS, HOT, NOT_SUPPORTED, Gone, Reading, Reasons, Source, SourceError

sys.stdout.write("players were imported\n")  # as some bindings do: it must reach no stream of ours
sys.stdout.flush()


def _asked(name: str) -> bool:
    return (Path(os.environ.get("EKVI_PLAY", "/nonexistent")) / name).exists()


class Well(Source):
    """Two GPUs that answer at once, unless a file asks for something else."""

    name = "well"
    vendor = "nvidia"
    most_hz = 100.0
    count = 2

    def open(self) -> None:
        if _asked("closed"):
            raise SourceError("no_permission", "it is closed", "open it")
        self.version = "1.0"
        self.devices = [
            {**dict.fromkeys(DEVICE_KEYS), "index": i, "uuid": f"GPU-{i}", "model": "A GPU"}
            for i in range(self.count)
        ]
        self.reasons = [Reasons() for _ in self.devices]
        self._begun = time.monotonic()
        for reasons in self.reasons:
            reasons.none("temp_mem_c", NOT_SUPPORTED, "it has no such sensor")

    def hot(self) -> list[Reading]:
        if _asked("gone"):
            raise Gone("failed", "the GPU fell off the bus")
        if _asked("segfault"):
            ctypes.string_at(0)
        while _asked("block"):
            time.sleep(0.005)
        return [{"util": 0.5, "power_w": 100.0 + i, "temp_mem_c": None} for i in range(self.count)]

    def slow(self) -> list[Reading]:
        return [{"sm_active": 0.25} for _ in self.devices]

    def energy(self) -> list[Reading]:
        return [{"energy_j": (time.monotonic() - self._begun) * 100} for _ in self.devices]

    def static(self) -> list[Reading]:
        return [{"mem_total": 1 << 30, "procs": [{"pid": os.getpid(), "mem": 5}]} for _ in self.devices]


class Eight(Well):
    """Eight GPUs whose fields all have values, for what a tick costs."""

    count = 8
    energy_apart = True

    def hot(self) -> list[Reading]:
        return [{**dict.fromkeys(HOT, 123.456), "throttle": ["power"]} for _ in self.devices]


class Broken(Well):
    """A module's class that does not open."""

    def open(self) -> None:
        raise AttributeError("undefined symbol: amdsmi_get_gpu_vram_info")


class Dies(Well):
    """Crashes as soon as it is read."""

    def hot(self) -> list[Reading]:
        ctypes.string_at(0)
        return []


class Floods(Well):
    """Prints a lot, and has something new to say at each tick."""

    def hot(self) -> list[Reading]:
        os.write(1, b"x" * 200 + b"\n" + b"y" * 60000)
        return super().hot()

    def events(self) -> list[dict[str, Any]]:
        now = time.monotonic_ns()
        return [{"index": 0, "event": "xid", "value": now + i, "text": f"Xid {now + i}"} for i in range(100)]


class LateEnergy(Well):
    """A counter that takes its time, in its own thread."""

    energy_apart = True

    def energy(self) -> list[Reading]:
        time.sleep(0.3)
        return super().energy()


class Slow(Well):
    """A tool that may be asked twice a second."""

    most_hz = 2.0


class Fast(Eight):
    """The same, a thousand times a second: a day's ticks in a quarter of an hour."""

    most_hz = 1000.0
