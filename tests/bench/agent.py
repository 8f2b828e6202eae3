"""What the agent's telemetry costs a server without a GPU, as CPU time of the whole process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_HZ = 100.0


def _sampled(seconds: float) -> tuple[float, int]:
    """CPU seconds (user and system) of `sample` for so long, and the ticks it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ticks.jsonl"
        words = ["sample", "--out", str(out), "--hz", str(_HZ), "--seconds", str(seconds)]
        process = subprocess.Popen([sys.executable, "-m", "runners.agent", *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        ticks = sum(json.loads(line)["type"] == "tick" for line in out.read_text().splitlines())
    return usage.ru_utime + usage.ru_stime, ticks


def measure() -> list[tuple[str, float, str, str, str]]:
    """CPU time of a tick: a long run less a short one, so that start-up does not count."""
    (short_s, few), (long_s, many) = _sampled(0.2), _sampled(4.2)
    tick_ms = (long_s - short_s) / (many - few) * 1e3
    note = f"{many - few} ticks at {_HZ:g} Hz"
    return [
        ("agent, a tick without GPUs", tick_ms, "ms CPU", "≤ 0.5", note),
        ("agent, share of a core at 10 Hz", tick_ms, "%", "≤ 1", "ten ticks a second of the above"),
    ]
