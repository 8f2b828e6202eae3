"""Runs made up for tests: columns, telemetry, run.json, and whole RunFacts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cockpit.core.events import Diagnostic
from cockpit.metrics.sides import RunFacts, Side
from cockpit.metrics.summary import summarise

START = 1.7e9
CONFIG: dict[str, Any] = {
    "model": {
        "name": "tiny",
        "layers": 4,
        "hidden": 128,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 352,
        "vocab": 1000,
        "vocab_multiple": 64,
    },
    "data": {"name": "pydoc", "source": "pydoc"},
    "training": {
        "name": "cpu",
        "backend": "cpu",
        "sequence_length": 128,
        "micro_batch": 4,
        "global_batch": 8,
        "learning_rate": 1e-3,
        "precision": "bf16",
        "seed": 1234,
        "threads": 1,
        "parallel": {"tensor": 1, "pipeline": 1, "data": 1},
    },
    "runner": {"name": "megatron"},
}
PROVENANCE: dict[str, Any] = {
    "cockpit": "0.1.0",
    "code_sha256": "ab" * 32,
    "host": {"host_id": "h1", "hostname": "box", "kernel": "Linux 6.1", "governor": "performance"},
    "runner": {
        "run": "of each run its own",
        "python": "3.11.2",
        "torch": {"version": "2.13.0+cpu", "git": "c0", "cuda": None, "hip": None, "blas": "open", "mkl": False},
        "megatron_core": "0.16.1",
        "packages": {"torch": "2.13.0", "numpy": "2.4.6", "megatron-core": "0.16.1"},
        "threads": 1,
        "world": 1,
        "backend": "cpu",
        "env": {"OMP_NUM_THREADS": "1"},
    },
    "data": {"sha256": "c0ffee", "tokens": 100_000},
}


def columns(step_s: Sequence[float] | np.ndarray[Any, Any], tokens: float | None = 1024.0) -> dict[str, Any]:
    """Columns of a run whose steps took `step_s` seconds, its loss falling as 2 + 5/sqrt(step)."""
    took = np.asarray(step_s, dtype=np.float64)
    step = np.arange(1.0, took.size + 1)
    return {
        "step": step,
        "loss": 2 + 5 / np.sqrt(step),
        "step_s": took,
        "tokens": np.full(took.size, np.nan if tokens is None else tokens),
        "samples": np.full(took.size, 8.0),
        "t": START + np.nancumsum(took),
    }


def meta(run: str = "g.left.r1", server: str = "left", **more: Any) -> dict[str, Any]:
    """A run.json."""
    base: dict[str, Any] = {
        "id": run,
        "group": "g",
        "server": server,
        "vendor": "cpu",
        "state": "SUCCEEDED",
        "sweep": {},
        "config": CONFIG,
        "plan": {"launcher": "process", "stages": [{"stage": "train", "env": {"OMP_NUM_THREADS": "1"}}]},
        "provenance": PROVENANCE,
    }
    return copy.deepcopy({**base, **more})


def hello(*devices: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A hello line."""
    return {"type": "hello", "schema": "ekvi.gpu/1", "devices": list(devices), **more}


def tick(t: float, *devices: Mapping[str, Any], host: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A tick `t` seconds after START."""
    return {"type": "tick", "t_wall_ns": round((START + t) * 1e9), "devices": list(devices), "host": dict(host or {})}


def told(code: str, **data: Any) -> Diagnostic:
    """A diagnostic."""
    return Diagnostic(level="info", code=code, message="", data=data)


def run(speed: float, name: str = "g.left.r1", server: str = "left", **more: Any) -> RunFacts:
    """A run of 20 equal steps at `speed` token/s, summarised by the product."""
    table = columns(np.full(20, 1024.0 / speed))
    about = meta(name, server, **more)
    return RunFacts(name, summarise(about, table), about, loss=table)


def side(name: str, speeds: Sequence[float], **more: Any) -> Side:
    """A side with one run for each speed."""
    return Side(name, [run(v, f"g.{name}.r{i + 1}", name, **more) for i, v in enumerate(speeds)])
