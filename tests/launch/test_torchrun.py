"""What torchrun makes of the planned argv: every process, and the module's own arguments untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.core.records import RunPlan, ServerSpec, StagePlan
from cockpit.launch.process import plan

LIMIT_S = 60
PROBE = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
sys.stdout.write(json.dumps({"argv": sys.argv[1:], **{n: os.environ[n] for n in names}}) + chr(10))
"""
# Arguments that a launcher could take for its own.
OWN = ("--config", "/a b/config.json", "--stage", "train", "-m", "x", "--standalone", "--nproc-per-node", "9")


@pytest.mark.train
def test_torchrun_starts_every_process_with_the_modules_arguments(tmp_path: Path) -> None:
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "__init__.py").touch()
    (tmp_path / "runners" / "__main__.py").write_text(PROBE)
    run = RunPlan(
        run="g.x.r1",
        group="g",
        server="x",
        repeat=0,
        sweep={},
        launcher="process",
        stages=(StagePlan(stage="train", module_args=("-m", "runners", *OWN), processes=2),),
        config={},
    )
    argv = plan(run, ServerSpec(name="x", python=sys.executable))["stages"][0]["argv"]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    said = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda s: s["RANK"])
    assert [(s["RANK"], s["LOCAL_RANK"], s["WORLD_SIZE"]) for s in said] == [("0", "0", "2"), ("1", "1", "2")]
    assert all(s["argv"] == list(OWN) and s["MASTER_ADDR"] in ("127.0.0.1", "localhost") for s in said)
