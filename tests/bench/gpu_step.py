"""One training step of the Megatron runner on this machine's GPU: rate, memory, and where the time goes.

    python -m tests.bench.gpu_step --config FILE.json [--steps 12] [--profile] [KEY=VALUE ...]

The resolved configuration is the runner's own (`python -m runners --config`); KEY=VALUE replaces single values, in
JSON. Runs one process, or torchrun's. Prints a line of JSON: medians over the steps after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from runners import group, sizes
from runners.data import prepare, quiet, samples
from runners.megatron import train
from runners.megatron.backend import select
from runners.megatron.optimizer import learning_rate
from runners.process import Process
from runners.schema import RunConfig
from tests.bench.curves import changed

WARM_UP = 4
# What a kernel's name says of its work, looked for in this order.
KINDS = (
    ("communication", ("nccl", "rccl")),
    ("attention backward", ("_bprop_", "bwd", "dot_do_o", "attention_backward")),
    ("attention forward", ("_fprop_", "flash_fwd", "sdpa", "fmha")),
    ("loss", ("_whole", "_parts", "_gradient")),
    ("norm and SwiGLU", ("_forward", "_backward")),
    ("optimizer", ("_update", "FusedAdam", "multi_tensor")),
    ("matmul", ("gemm", "nvjet", "cutlass", "Cijk", "sm90_xmma")),
    ("rope", ("_turn",)),
    ("copy", ("Memcpy", "Memset", "copy")),
)


def configuration(path: str, changes: list[str]) -> RunConfig:
    """The configuration in a JSON file with KEY=VALUE changes."""
    return RunConfig.model_validate(changed(json.loads(Path(path).read_text()), tuple(changes)))


def kind(name: str) -> str:
    """What sort of work a GPU kernel does, by its name."""
    return next((what for what, marks in KINDS if any(mark in name for mark in marks)), "element-wise")


def profiled(step: Any) -> dict[str, Any]:
    """Milliseconds on the GPU of one step by kind of work, the largest kernels, and the time between kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    by_kind: dict[str, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    spans = []
    for event in found.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        by_kind[kind(event.name)] += event.device_time / 1e3
        by_name[event.name[:90]] += event.device_time / 1e3
        spans.append((event.time_range.start, event.time_range.end))
    spans.sort()
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    largest = sorted(by_name.items(), key=lambda pair: -pair[1])[:28]
    return {
        "kinds_ms": {key: round(value, 2) for key, value in sorted(by_kind.items(), key=lambda pair: -pair[1])},
        "idle_ms": round((end - spans[0][0] - busy) / 1e3, 2),
        "largest_ms": {key: round(value, 2) for key, value in largest},
    }


def measure(config: RunConfig, steps: int, *, profile: bool, process: Process) -> dict[str, Any]:
    """Train `steps` steps after a warm-up; medians, and the losses."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(os.environ.get("EKVI_CACHE") or folder)
        entry, _ = prepare.ensure(config.data, cache)
        index = samples.index(config, entry, cache)
        backend = select(config.training.backend)
        backend.check(config)
        backend.start(config.training)
        with group.joined(process, backend.collective):
            vocab = train._vocab(config, entry)
            training = train.set_up(config, backend, entry, index, vocab)
            batches = training.batches(training.samples, config.training.iterations)
            seconds, losses = [], []
            number = 0

            def step() -> None:
                nonlocal number
                number += 1
                found, _norm, _skipped = train.one_step(training, batches, learning_rate(config.training, number))
                losses.append(train.mean_loss(training, found))

            backend.synchronise()
            begin = time.perf_counter()
            for _ in range(WARM_UP + steps):
                step()
                backend.synchronise()
                end = time.perf_counter()
                seconds.append(end - begin)
                begin = end
            settings = config.training
            tokens = settings.global_batch * settings.sequence_length
            step_s = statistics.median(seconds[WARM_UP:])
            cost = sizes.per_token(config.model, vocab, settings.sequence_length)["B"]
            result = {
                "model": config.model.name,
                "sequence": settings.sequence_length,
                "micro_batch": settings.micro_batch,
                "global_batch": settings.global_batch,
                "parallel": settings.parallel.model_dump(exclude_defaults=True),
                "step_ms": round(step_s * 1e3, 1),
                "least_ms": round(min(seconds[WARM_UP:]) * 1e3, 1),
                "greatest_ms": round(max(seconds[WARM_UP:]) * 1e3, 1),
                "tokens_per_s_gpu": round(tokens / step_s / process.world),
                "tflops_b": round(tokens * cost / step_s / process.world / 1e12, 1),
                "peak_gib": round(backend.peak_memory_by() / 2**30, 1),
                "losses": [loss if loss is None else round(loss, 5) for loss in losses],
            }
            if profile:
                result["profile"] = profiled(step)
            return result


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    quiet.silence()
    process = Process.from_environment(os.environ)
    steps = WARM_UP + given.steps + 1
    config = configuration(given.config, [*given.changes, f"training.train_iters={steps}"])
    try:
        result = measure(config, given.steps, profile=given.profile, process=process)
    except torch.OutOfMemoryError:
        result = {"micro_batch": config.training.micro_batch, "error": "out of memory"}
    result["asked"] = given.changes
    if process.last:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
