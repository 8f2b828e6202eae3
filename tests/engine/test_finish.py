"""What a run's end leaves in its record: the GPUs that it had, and who else was on them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cockpit
from cockpit.core.events import State
from cockpit.core.state import RunState
from cockpit.engine.finish import close_run
from cockpit.store.rundir import RunDir

DEMO = Path(cockpit.__file__).parent / "demo" / "duel.zip"
DEVICE = {"index": 0, "model": "NVIDIA H200", "driver": "580.159", "ecc": True, "power_limit_w": 700.0}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of the demo."""
    with zipfile.ZipFile(DEMO) as demo:
        demo.extractall(tmp_path)
    return RunDir(next(path for path in tmp_path.iterdir() if path.name.endswith(".left.r1")))


def telemetry(run: str, first: float, last: float) -> list[dict[str, Any]]:
    """One GPU's lines, idle for five seconds before `first`, with a stranger on it later."""
    lines: list[dict[str, Any]] = [
        {"type": "hello", "boot_id": "b", "agent_id": "a", "backend": "nvml", "hz": 10.0, "devices": [DEVICE]}
    ]
    for k in range(int((last - first + 5) * 10) + 1):
        t = first - 5 + k / 10
        device: dict[str, Any] = {"index": 0, "power_w": 70.0 if t < first else 600.0}
        if k in (0, 100):
            own = {"pid": 10, "name": "train", "mem": 1, "run": run}
            stranger = {"pid": 11, "name": "other", "mem": 2, "run": None}
            device["procs"] = [] if k == 0 else [own, stranger]
        lines.append({"type": "tick", "seq": k, "t_wall_ns": round(t * 1e9), "devices": [device]})
    return lines


def test_the_gpus_and_the_neighbours_go_into_run_json_and_the_summary(run_dir: RunDir) -> None:
    t = run_dir.columns()["t"]
    first, last = float(t[0]) - 2, float(t[-1]) + 1
    lines = telemetry(run_dir.id, first, last)
    (run_dir.path / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = run_dir.meta()["provenance"]
    close_run(run_dir.path, RunState(run_dir.id, state=State.SUCCEEDED, started_t=first, ended_t=last))
    known = run_dir.meta()["provenance"]
    assert {**before, **known} == known, "what was known before is kept"
    assert known["telemetry"][0]["devices"][0]["driver"] == "580.159"
    assert [(n["pid"], n["certain"]) for n in known["neighbours"]] == [(11, True)]
    summary = run_dir.summary()
    assert summary is not None
    assert summary["metrics"]["energy_j"]["value"] == pytest.approx(600 * (last - first), rel=0.02)
    assert summary["metrics"]["power_idle_w"]["value"] == pytest.approx(70.0, rel=0.02)
    assert summary["provenance"]["neighbours"] == known["neighbours"]


def test_a_run_without_telemetry_has_no_such_words(run_dir: RunDir) -> None:
    (run_dir.path / "telemetry.jsonl").unlink()
    close_run(run_dir.path, RunState(run_dir.id, state=State.CANCELLED))
    assert not {"telemetry", "neighbours", "gpu_events"} & set(run_dir.meta()["provenance"])
