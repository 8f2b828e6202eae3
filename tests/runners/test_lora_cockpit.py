"""The shipped profile, as a user runs it without a network: two processes, through the cockpit and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


def cockpit(folder: Path, *words: str) -> list[dict[str, Any]]:
    """A command's JSON lines; its servers' folder is `folder` too."""
    env = os.environ | {"EKVI_RUNS_DIR": str(folder / "runs"), "EKVI_WORKDIR": str(folder / "work")}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    command = [sys.executable, "-m", "cockpit.cli", *words, "--output", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if words[0] == "run" else [json.loads(done.stdout)]


def test_lora_local_runs_and_is_summarised(tmp_path: Path) -> None:
    said = cockpit(tmp_path, "run", "--profile", "lora-local", "runner.processes=2", "runner.epochs=1")
    iterations = [line for line in said if line["type"] == "iteration"]
    assert [line["step"] for line in iterations] == list(range(1, 16))
    assert iterations[-1]["loss"] < iterations[0]["loss"]
    assert said[-1]["state"] == "SUCCEEDED"
    (run,) = said[-1]["runs"]
    (summary,) = cockpit(tmp_path, "show", run)
    tokens = sum(line["tokens"] for line in iterations)
    report = json.loads((tmp_path / "runs" / run / "artifacts" / "report.json").read_text())
    assert (report["world_size"], report["tokens"]) == (2, tokens)
    assert summary["metrics"]["tokens_per_s"]["note"] == "padding is not counted"
    assert summary["metrics"]["tflops_gpu"]["value"] is None
    assert summary["provenance"]["model"]["lora"]["r"] == 16
    (states,) = (tmp_path / "work" / "groups").glob(
        "**/epoch-1/state"
    )  # to go on from: it stays until it is asked for
    assert not list((tmp_path / "runs" / run).glob("**/state"))
    assert states.is_dir()
    cockpit(tmp_path, "fetch", said[-1]["id"], "--pattern", "**")
    assert (tmp_path / "runs" / run / "artifacts" / "epoch-1" / "state" / "progress.json").is_file()
    assert not list((tmp_path / "work" / "groups").glob("*"))
