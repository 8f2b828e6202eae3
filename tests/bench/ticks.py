"""Telemetry read back: twelve minutes of eight GPUs at 10 Hz, and joined to 1,000,000 iterations."""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.metrics import nodes
from cockpit.metrics.joined import join
from cockpit.metrics.summary import summarise
from cockpit.store.rundir import RunDir

TICKS = 7_200
START = 1.7e9
ITERATIONS = 1_000_000


def _lines() -> list[dict[str, Any]]:
    """What an agent writes of eight busy GPUs, every field of `ekvi.gpu/1` in its turn."""
    rng = random.Random(1)
    devices = [{"index": i, "model": "NVIDIA H200", "power_scope": "gpu"} for i in range(8)]
    hello = {"type": "hello", "boot_id": "b", "agent_id": "a", "backend": "nvml", "hz": 10.0, "devices": devices}
    return [hello, *(_tick(k, rng) for k in range(TICKS))]


def _tick(k: int, rng: random.Random) -> dict[str, Any]:
    mono = 10**12 + k * 10**8
    found = []
    for i in range(8):
        device: dict[str, Any] = {"index": i, "util": 0.99, "mem_busy": 0.4, "mem_used": 120 << 30}
        device |= {"power_w": round(rng.uniform(500, 700), 3), "temp_edge_c": 61.0, "temp_hot_c": None}
        device |= {"temp_mem_c": 74.0, "clk_sm_mhz": 1905, "clk_min_mhz": None, "clk_max_mhz": None}
        device |= {"clk_mem_mhz": 3201, "throttle": ["power"] if rng.random() < 0.1 else []}
        if k % 10 == i:
            slow = ("sm_active", "sm_occ", "tensor", "dram_bw", "thr_power", "thr_thermal")
            device |= {name: rng.random() for name in slow}
            device |= {name: 1e9 * rng.random() for name in ("pcie_tx_bps", "pcie_rx_bps", "link_tx_bps")}
            device |= {"energy_j": 60.0 * k, "energy_at": mono - 30_000_000}
        found.append(device)
    wall = round(START * 1e9) + k * 10**8
    return {"type": "tick", "seq": k, "t_mono_ns": mono, "t_wall_ns": wall, "devices": found}


def measure() -> list[tuple[str, float, str, str, str]]:
    """(name, value, unit, budget, note): ticks a CPU second, and CPU seconds of the summary's part and of joining."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "telemetry.jsonl")
        file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _lines()))
        began = time.process_time()
        ticks = nodes.read([RunDir(Path(folder)).ticks()], {})
        read = time.process_time() - began
    step_s = TICKS / 10 / ITERATIONS
    columns = {"step": np.arange(1.0, ITERATIONS + 1), "step_s": np.full(ITERATIONS, step_s)}
    columns["t"] = START + step_s * columns["step"]
    began = time.process_time()
    summarise({"vendor": "nvidia"}, columns, ticks)
    summary = time.process_time() - began
    began = time.process_time()
    join(columns, ticks)
    joined = time.process_time() - began
    of = "8 GPUs at 10 Hz for 12 minutes"
    return [
        ("telemetry read back", TICKS / read, "ticks/s", "-", f"CPU time of one core, {of}"),
        ("summary of a run with telemetry", summary, "s", "-", f"CPU time, {of}, 1,000,000 iterations"),
        ("telemetry joined to 1,000,000 iterations", joined, "s", "-", f"CPU time, {of}"),
    ]
