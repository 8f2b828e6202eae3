"""The live screen on a pseudo-terminal: start, idle, memory, and what two streaming servers cost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.tui.terminal import Terminal

if TYPE_CHECKING:
    import psutil

_SIZE = (200, 60)
_IDLE_S = 5.0
_KEYS = 40
_TITLES = ("left", "right", "all servers")  # what the log's title says after each press of `l`


def measure() -> list[tuple[str, float, str, str, str]]:
    """Rows of (name, value, unit, budget, note)."""
    return [*_start(), *_waiting(), *_streaming(2_000), *_streaming(20_000)]


def _start() -> list[tuple[str, float, str, str, str]]:
    """The welcome, from exec to an answered key; then left alone."""
    with Terminal("cockpit.cli", size=_SIZE) as terminal:
        painted = terminal.until("watch the demo")
        terminal.keys("?")
        usable = terminal.until("This list")
        terminal.keys("?")
        terminal.watch(1.0)
        process = _process(terminal)
        idle = _share(terminal, process, _IDLE_S)
        return [
            ("TUI: exec to first paint", painted, "s", "0.7", "welcome, 200x60"),
            ("TUI: exec to usable", usable, "s", "0.7", "until a key is answered"),
            ("TUI: idle, welcome", idle, "% of a core", "1", f"over {_IDLE_S:g} s"),
            ("TUI: memory, welcome", process.memory_info().rss / 1e6, "MB", "80", "resident"),
        ]


def _waiting() -> list[tuple[str, float, str, str, str]]:
    """A live group that waits: telemetry comes at 2 Hz, and nothing else."""
    with Terminal("tests.tui.play", ["rate=0.001", "together"], size=_SIZE) as terminal:
        terminal.until("duel-local")
        terminal.watch(2.0)
        share = _share(terminal, _process(terminal), _IDLE_S)
        return [("TUI: idle, live group", share, "% of a core", "1", "two servers, telemetry at 2 Hz painted")]


def _streaming(lines: int) -> list[tuple[str, float, str, str, str]]:
    """Two servers of 8 GPUs at 10 Hz, 20 iterations/s each, `lines` lines/s in all; keys pressed meanwhile."""
    args = ["rate=20", f"lines={lines // 2}", "gpus=8", "hz=10", "total=4000", "repeats=1", "together"]
    with Terminal("tests.tui.play", args, size=_SIZE) as terminal:
        terminal.until("duel-local")
        terminal.watch(3.0)
        process = _process(terminal)
        share = _share(terminal, process, _IDLE_S)
        waits = _latencies(terminal)
        note = "2x8 GPUs at 10 Hz, 2x20 iterations/s, two charts; making the load included"
        name = f"TUI, {lines:,} lines/s"
        return [
            (f"{name}: CPU", share, "% of a core", "15" if lines <= 2_000 else "-", note),
            (f"{name}: key p50", waits[len(waits) // 2] * 1e3, "ms", "-", f"n={len(waits)}, key to screen"),
            (f"{name}: key p99", waits[-1] * 1e3, "ms", "50" if lines <= 2_000 else "-", "the slowest of them"),
            (f"{name}: memory", process.memory_info().rss / 1e6, "MB", "80", "resident"),
        ]


def _latencies(terminal: Terminal) -> list[float]:
    """Seconds from a key to its effect on the screen, sorted."""
    import time

    rng, waits = random.Random(1), []
    for number in range(_KEYS):
        terminal.watch(rng.uniform(0.05, 0.2))
        since, pressed = len(terminal.output), time.perf_counter()
        terminal.keys("l")
        wanted = f"log · {_TITLES[number % len(_TITLES)]}"
        while wanted.encode() not in terminal.output[since:]:
            terminal.pump(0.002)
            if time.perf_counter() - pressed > 10:
                raise AssertionError(f"{wanted!r} never came")
        waits.append(time.perf_counter() - pressed)
    return sorted(waits)


def _process(terminal: Terminal) -> psutil.Process:
    import psutil

    return psutil.Process(terminal.process.pid)


def _share(terminal: Terminal, process: psutil.Process, seconds: float) -> float:
    """CPU time over wall time, in percent of one core."""
    before = process.cpu_times()
    terminal.watch(seconds)
    after = process.cpu_times()
    return 100 * float(after.user + after.system - before.user - before.system) / seconds
