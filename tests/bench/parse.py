"""What the parsers cost: lines a second of one core, by CPU time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from cockpit.parse.stream import StreamParser

BLOCK_BY = 1 << 18
ITERATIONS = 60_000
OTHERS = 1_000_000

Figure = tuple[str, float, str, str, str]


def wire_log(count: int) -> bytes:
    """Lines as the runners print them."""
    lines = (
        "@ekvi "
        + json.dumps(
            {
                "type": "iteration",
                "t": 1767225600.25 + i,
                "mono": 1000.5 + i,
                "step": i,
                "total": count,
                "loss": 10.0 - i / count,
                "step_s": 0.25 + i % 7 / 1e3,
                "tokens": 8192,
                "samples": 8,
                "lr": 1e-3,
                "grad_norm": 1.5,
                "extra": {"loss_scale": 1.0, "tflops_gpu": 401.25},
            },
            separators=(",", ":"),
        )
        for i in range(1, count + 1)
    )
    return ("\n".join(lines) + "\n").encode()


def megatron_log(count: int) -> bytes:
    """Megatron-LM's lines as they are in 2025."""
    end = "loss scale: 1.0 | grad norm: 1.253 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    lines = (
        f" [2025-07-01 09:{i // 60 % 60:02}:{i % 60:02}] iteration {i:8d}/{count:8d} | consumed samples: {i * 8:12d} "
        f"| elapsed time per iteration (ms): {1354.9 + i % 7:.1f} | throughput per GPU (TFLOP/s/GPU): 401.2 "
        f"| learning rate: 1.000000E-04 | global batch size:     8 | lm loss: {10 - i / count:.6E} | {end}"
        for i in range(1, count + 1)
    )
    return ("\n".join(lines) + "\n").encode()


def other_log(count: int) -> bytes:
    """Lines that mean nothing to us, with numbers, brackets and the words of a loader."""
    lines = (
        f"[2025-07-01 09:30:{i % 60:02},{i % 1000:03}][INFO] loader {i % 8}: shard {i:07d} read in {i % 13} ms"
        for i in range(count)
    )
    return ("\n".join(lines) + "\n").encode()


def _blocks(data: bytes) -> Iterator[tuple[bytes, int]]:
    for at in range(0, len(data), BLOCK_BY):
        yield data[at : at + BLOCK_BY], at


def _lines_per_s(data: bytes, count: int, events: int) -> float:
    parser, found = StreamParser(), 0
    began = time.process_time()
    for block, at in _blocks(data):
        found += len(parser.feed(block, at))
    spent = time.process_time() - began
    assert found == events, f"{found} events instead of {events}"
    return count / spent


def measure() -> list[Figure]:
    """(name, value, unit, budget, note) a figure."""
    note = f"CPU time of one core, {BLOCK_BY >> 10} KiB blocks"
    wire, megatron = wire_log(ITERATIONS), megatron_log(ITERATIONS)
    return [
        ("parse, wire iterations", _lines_per_s(wire, ITERATIONS, ITERATIONS), "lines/s", "≥ 60,000", note),
        ("parse, Megatron iterations", _lines_per_s(megatron, ITERATIONS, ITERATIONS), "lines/s", "≥ 60,000", note),
        ("parse, other lines", _lines_per_s(other_log(OTHERS), OTHERS, 0), "lines/s", "≥ 1,000,000", note),
    ]
