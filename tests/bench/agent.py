"""What the agent's telemetry costs a server, as CPU time of the agent and of the process that asks the GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_HZ = 100.0
_GPUS_HZ = 10.0
_EIGHT = ("--vendor", "nvidia", "--source", "tests.agent.players:Eight")  # all fields of eight GPUs, without a driver


def _sampled(seconds: float, hz: float, *more: str) -> tuple[float, int]:
    """CPU seconds (user and system) of `sample` for so long, and the ticks it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ticks.jsonl"
        words = ["sample", "--out", str(out), "--hz", str(hz), "--seconds", str(seconds), *more]
        process = subprocess.Popen([sys.executable, "-m", "runners.agent", *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        ticks = sum(json.loads(line)["type"] == "tick" for line in out.read_text().splitlines())
    return usage.ru_utime + usage.ru_stime, ticks


def measure() -> list[tuple[str, float, str, str, str]]:
    """CPU time of a tick: a long run less a short one, so that start-up does not count."""
    tick_ms, ticks = _tick_ms(_HZ, 0.2, 4.2, "--vendor", "cpu")
    note = f"{ticks} ticks at {_HZ:g} Hz"
    gpus_ms, gpu_ticks = _tick_ms(_GPUS_HZ, 2.0, 22.0, *_EIGHT)
    gpus_note = f"{gpu_ticks} ticks at {_GPUS_HZ:g} Hz of a source that answers at once; agent and child together"
    return [
        ("agent, a tick without GPUs", tick_ms, "ms CPU", "≤ 0.5", note),
        ("agent, share of a core at 10 Hz", tick_ms, "%", "≤ 1", "ten ticks a second of the above"),
        ("agent, a tick of 8 GPUs", gpus_ms, "ms CPU", "≤ 0.5", gpus_note),
        ("agent, 8 GPUs at 10 Hz, share of a core", gpus_ms, "%", "≤ 1", "ten ticks a second of the above"),
    ]


def _tick_ms(hz: float, short_s: float, long_s: float, *more: str) -> tuple[float, int]:
    """Milliseconds of CPU a tick, and of how many ticks that is."""
    (little_s, few), (much_s, many) = _sampled(short_s, hz, *more), _sampled(long_s, hz, *more)
    return (much_s - little_s) / (many - few) * 1e3, many - few
