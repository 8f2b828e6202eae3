"""Budget: a comparison of two runs of 1,000,000 iterations within 3 s, summaries included, columns given."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from cockpit.metrics.compare import compare
from cockpit.metrics.sides import RunFacts, Side
from cockpit.metrics.summary import summarise

ITERATIONS = 1_000_000


def columns(seed: int, n: int = ITERATIONS) -> Mapping[str, Any]:
    """Columns of one made-up run: step times with a warm-up and a spread of 2 %, a falling loss."""
    rng = np.random.default_rng(seed)
    step = np.arange(1.0, n + 1)
    step_s = 0.25 * np.exp(0.02 * rng.standard_normal(n)) + 0.1 * np.exp(-step / (n / 100))
    loss = 2 + 8 / np.sqrt(step) + 0.01 * rng.standard_normal(n)
    return {
        "step": step,
        "loss": loss,
        "step_s": step_s,
        "tokens": np.full(n, 1024.0),
        "samples": np.full(n, 8.0),
        "t": 1.7e9 + np.cumsum(step_s),
    }


def _facts(run: str, table: Mapping[str, Any]) -> RunFacts:
    meta = {"id": run, "server": run, "vendor": "cpu", "state": "SUCCEEDED", "config": {}}
    return RunFacts(run, summarise(meta, table), meta, loss=table)


def measure() -> list[tuple[str, float, str, str, str]]:
    """(name, value, unit, budget, note): CPU seconds of the two summaries and the comparison."""
    tables = [columns(1), columns(2)]
    began = time.process_time()
    compare([Side(name, [_facts(name, t)]) for name, t in zip(("left", "right"), tables, strict=True)])
    took = time.process_time() - began
    return [
        ("compare two runs of 1,000,000 iterations", took, "s", "3 s", "CPU time; columns given, summaries included")
    ]
