"""What sampling costs a training: agent on and off in alternating blocks of one training on one GPU.

    python -m cockpit.telemetry agent > agent.pyz
    python -m tests.bench.telemetry_cost --agent agent.pyz --pairs 70 --block-s 3 --out FOLDER

The agent is `sample` at 10 Hz; for an off block all of its processes are stopped (SIGSTOP), for an on block they go
on. Each on block is set against the mean of the off blocks before and after it, so that a drift of clocks or heat
falls out; the slowdown is the mean of the log ratios with a t interval over the on blocks. Then it trains on with the
agent for --energy-s and sets the energy counter against the integral of instant power. Needs torch alone; a GPU of
NVIDIA's, or `--device cpu` to try the script. Prints one JSON document; FOLDER/telemetry.jsonl holds the samples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Student's t, two-sided 95 %, for the degrees of freedom that occur here (NIST handbook 1.3.6.7.2); below 30 refused.
_T975 = {30: 2.042, 40: 2.021, 60: 2.000, 80: 1.990, 100: 1.984, 120: 1.980}


def training(device: str, width: int, layers: int, tokens: int) -> Callable[[], None]:
    """A step of a small decoder-like network in bf16 with AdamW: matmuls, attention, norms, an optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    layer = nn.TransformerEncoderLayer(
        width, width // 128 or 1, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")
    batch = torch.randn(tokens // 512, 512, width, device=device, dtype=kind)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def family(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(word) for word in task.read_text().split()]
    return found


def tell(pid: int, number: signal.Signals) -> None:
    """Send a signal to the agent and its children."""
    for one in family(pid):
        os.kill(one, number)


def block(step: Callable[[], None], device: str, steps: int) -> float:
    """Seconds a step of `steps` steps."""
    synchronise(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronise(device)
    return (time.perf_counter() - begin) / steps


def train_on(step: Callable[[], None], device: str, seconds: float) -> tuple[int, int]:
    """Train for so long; the first and last moment on the monotonic clock (ns)."""
    begin = time.monotonic_ns()
    while time.monotonic_ns() - begin < seconds * 1e9:
        block(step, device, 5)
    return begin, time.monotonic_ns()


def energy(path: Path, begin: int, end: int) -> dict[str, Any]:
    """J by the counter and by the trapezoid rule over power, between the same two readings of the counter."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    backend = next((line["backend"] for line in reversed(lines) if line["type"] == "hello"), None)
    samples = [(line["t_mono_ns"], d) for line in lines if line["type"] == "tick" for d in line["devices"][:1]]
    counted = [(d["energy_at"], d["energy_j"]) for _, d in samples if d.get("energy_j") is not None]
    counted = [(at, j) for at, j in counted if begin + 10**9 <= at <= end - 10**9]
    power = [(at, d["power_w"]) for at, d in samples if d.get("power_w") is not None]
    if len(counted) < 2 or len(power) < 2:
        return {"backend": backend, "counter_j": None, "integral_j": None}
    (first, low), (last, high) = counted[0], counted[-1]
    between = [p for p in power if first < p[0] < last]
    inside = [(first, at_time(power, first)), *between, (last, at_time(power, last))]
    pairs = itertools.pairwise(inside)
    integral = sum((b[0] - a[0]) / 1e9 * (a[1] + b[1]) / 2 for a, b in pairs)
    seconds = (last - first) / 1e9
    return {
        "backend": backend,
        "seconds": seconds,
        "counter_j": high - low,
        "integral_j": integral,
        "difference": integral / (high - low) - 1,
        "ticks": len(inside) - 2,
    }


def at_time(power: list[tuple[int, float]], at: int) -> float:
    """Power at one moment, between the two samples around it."""
    after = next((i for i, p in enumerate(power) if p[0] >= at), len(power) - 1)
    (t0, w0), (t1, w1) = power[max(0, after - 1)], power[after]
    return w1 if t1 <= t0 else w0 + (w1 - w0) * min(1.0, max(0.0, (at - t0) / (t1 - t0)))


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Mean of log ratios and its 95 % interval, all as relative slowdowns."""
    mean = statistics.fmean(ratios)
    degrees = max(known for known in _T975 if known <= len(ratios) - 1)
    half = _T975[degrees] * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half)


def cpu_s(pid: int) -> float:
    """CPU seconds of the agent and its children so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in family(pid)]
    return sum(int(words[11]) + int(words[12]) for words in stats) / ticks


def main() -> int:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=60, help="on blocks; there is one off block more")
    parser.add_argument("--block-s", type=float, default=3.0)
    parser.add_argument("--warmup-s", type=float, default=20.0)
    parser.add_argument("--energy-s", type=float, default=100.0)
    parser.add_argument("--agent", type=Path, required=True, help="the packed agent")
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.pairs <= min(_T975):
        parser.error(f"--pairs: at least {min(_T975) + 1}, fewer tell too little")
    args.out.mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(args), indent=1))
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The blocks, and what comes of them."""
    step = training(args.device, args.width, args.layers, args.tokens)
    vendor = "nvidia" if args.device == "cuda" else "cpu"
    words = ["sample", "--out", str(args.out / "telemetry.jsonl"), "--hz", str(args.hz), "--vendor", vendor]
    agent = subprocess.Popen([sys.executable, str(args.agent), *words])
    try:
        begin = time.perf_counter()
        while time.perf_counter() - begin < args.warmup_s:
            per_step = block(step, args.device, 5)
        steps = max(2, round(args.block_s / per_step))
        off: list[float] = []
        on: list[float] = []
        busy_s = cpu = 0.0
        for i in range(2 * args.pairs + 1):
            sampling = i % 2 == 1
            tell(agent.pid, signal.SIGCONT if sampling else signal.SIGSTOP)
            before = cpu_s(agent.pid)
            seconds = block(step, args.device, steps)
            if agent.poll() is not None:
                raise SystemExit(f"The agent ended with code {agent.returncode}: nothing was measured.")
            if sampling:
                cpu += cpu_s(agent.pid) - before
                busy_s += seconds * steps
            (on if sampling else off).append(seconds)
        tell(agent.pid, signal.SIGCONT)
        window = train_on(step, args.device, args.energy_s)
    finally:
        if agent.poll() is None:
            tell(agent.pid, signal.SIGCONT)
            agent.terminate()
            agent.wait(30)
    ratios = [math.log(2 * each / (off[i] + off[i + 1])) for i, each in enumerate(on)]
    null = [math.log(2 * off[i] / (off[i - 1] + off[i + 1])) for i in range(1, len(off) - 1)]
    mean, low, high = interval(ratios)
    return {
        "blocks": {"on": len(on), "off": len(off), "steps": steps, "step_ms": round(statistics.fmean(off) * 1e3, 3)},
        "slowdown": {"mean": mean, "ci95": [low, high]},
        "off_against_off": dict(zip(("mean", "low", "high"), interval(null), strict=True)),
        "agent_cpu_share": cpu / busy_s,
        "spread_of_on_blocks": statistics.stdev(ratios),
        "energy": energy(args.out / "telemetry.jsonl", *window),
    }


if __name__ == "__main__":
    sys.exit(main())
