"""The task in small: the profile's own hyper-parameters on a tiny model and tiny data, to the task's own target.

What differs from the profile is listed in `SMALL`: no check of the compliance checker looks at any of it. Its rule
files are the package's own; its reference convergence points, which have a checker of their own, need the real model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cockpit.core.events import Diagnostic, Iteration
from cockpit.metrics.summary import summarise
from cockpit.parse.stream import StreamParser
from tests.metrics.made import meta
from tests.mlperf import made
from tests.runners.support import ROOT, Place, Result

pytestmark = pytest.mark.train
SEQUENCE = 32
PROFILE: dict[str, Any] = yaml.safe_load((ROOT / "profiles" / "mlperf-llama2-70b-lora.yaml").read_text())
SMALL: dict[str, Any] = {
    "revision": None,
    "seq_len": SEQUENCE,
    "batch": 4,  # of two processes in place of eight: the global batch stays
    "processes": 2,
    "epochs": 100,  # of 96 sequences
    "log_level": "WARNING",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    at = tmp_path_factory.mktemp("mlperf")
    made.folder(at / "scrolls", made.rows(96, SEQUENCE, seed=1), made.rows(12, SEQUENCE, seed=2), shards=2)
    made.fuse(made.model(at / "plain", SEQUENCE), at / "model")
    return Place(at, at / "cache")


def train(place: Place, *words: str, **more: Any) -> Result:
    own = {"name": "lora", "model": str(place.folder / "model"), "data": str(place.folder / "scrolls")}
    runner = {**PROFILE["runner"], **SMALL, **own, **more}
    runner = {key: float(value) if key in ("lr", "weight_decay") else value for key, value in runner.items()}
    return place.run({"runner": runner, "training": {"name": "cpu"}}, *words, processes=runner["processes"])


@pytest.fixture(scope="module")
def reached(place: Place) -> Result:
    """Data and training, spread over two processes, until the target."""
    return train(place, "stage=all")


@pytest.fixture(scope="module")
def missed(place: Place, reached: Result) -> Result:
    """A training that ends before its target, with the data that is there already."""
    return train(
        place, "stage=train", max_steps=24, eval_every=100, eval_from=0, batch=8, processes=1, strategy="ddp"
    )


def events(result: Result) -> list[dict[str, Any]]:
    found = (line.partition(":::MLLOG ")[2] for line in result.out.splitlines())
    return [json.loads(body) for body in found if body]


def one(result: Result, key: str) -> dict[str, Any]:
    (found,) = [event for event in events(result) if event["key"] == key]
    return found


def checked(result: Result, folder: Path, ruleset: str) -> subprocess.CompletedProcess[str]:
    """The compliance checker's own command on the run's whole output; warnings are errors."""
    (folder / "result_0.txt").write_text(result.out)
    options = ["--usage", "training", "--ruleset", ruleset, "--werror", "--log_output", str(folder / "checker.log")]
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", *options, str(folder / "result_0.txt")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("ruleset", ["5.0.0", "5.1.0", "6.0.0", "6.1.0"])
def test_the_log_passes_the_compliance_checker(reached: Result, tmp_path: Path, ruleset: str) -> None:
    assert reached.rc == 0, reached.err
    said = checked(reached, tmp_path, ruleset)
    assert said.returncode == 0, said.stderr
    assert "SUCCESS" in said.stderr


def test_the_checker_refuses_a_run_that_missed_its_target(missed: Result, tmp_path: Path) -> None:
    said = checked(missed, tmp_path, "5.1.0")
    assert said.returncode == 1
    assert "Failed checks for eval_accuracy" in said.stderr
    assert said.stderr.count("CHECK for") == 0  # nothing else is wrong with its log


def test_the_clock_runs_from_the_first_step_to_the_validation_that_reached_the_target(reached: Result) -> None:
    stop = one(reached, "run_stop")
    assert stop["metadata"]["status"] == "success"
    minutes = (stop["time_ms"] - one(reached, "run_start")["time_ms"]) / 60000
    said = reached.diagnostic("target")["data"]
    assert said["reached"] is True
    assert said["seconds"] / 60 == pytest.approx(minutes, abs=0.1 / 60)
    assert said["samples"] == stop["metadata"]["samples_count"] >= 1536
    losses = [event["value"] for event in events(reached) if event["key"] == "eval_accuracy"]
    assert [loss <= 0.925 for loss in losses] == [False] * (len(losses) - 1) + [True]


def test_validations_stand_where_the_rules_put_them(reached: Result) -> None:
    at = [event["metadata"]["samples_count"] for event in events(reached) if event["key"] == "eval_accuracy"]
    assert at == list(range(1536, at[-1] + 1, 384))


def test_blocks_and_validations_follow_each_other_and_never_overlap(reached: Result) -> None:
    order = [e["key"] for e in events(reached) if e["event_type"] != "POINT_IN_TIME" or e["key"] == "eval_accuracy"]
    assert order[:4] == ["init_start", "init_stop", "run_start", "block_start"]
    assert order[-1] == "run_stop"
    inner = order[3:-1]
    cycle = ["block_start", "block_stop", "eval_start", "eval_accuracy", "eval_stop"]
    assert inner == cycle * (len(inner) // 5)
    times = [event["time_ms"] for event in events(reached)]
    assert times == sorted(times)


def test_the_cockpit_reads_the_run_by_its_wire_lines_once(reached: Result) -> None:
    parser = StreamParser()
    log = reached.out.encode()
    found = [*parser.feed(log, 0), *parser.finish()]
    steps = [event.step for event in found if isinstance(event, Iteration)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) * 8 == reached.diagnostic("target")["data"]["samples"]
    summary = summarise(meta(), {}, diagnostics=[event for event in found if isinstance(event, Diagnostic)])
    taken = summary["metrics"]["time_to_target_min"]
    assert taken["value"] == pytest.approx(reached.diagnostic("target")["data"]["seconds"] / 60)
    assert "loss 0.925" in taken["note"]


def test_a_missed_target_aborts_the_run_and_has_no_time(missed: Result) -> None:
    assert missed.rc == 0
    assert one(missed, "run_stop")["metadata"]["status"] == "aborted"
    said = missed.diagnostic("target")
    assert said["data"]["reached"] is False
    assert said["level"] == "warning"
    assert "not reached" in said["message"]


def test_the_profile_s_values_are_the_reference_s() -> None:
    """As mlcommons/training's llama2_70b_lora has them at a global batch of 8."""
    runner = PROFILE["runner"]
    wanted = {
        "seq_len": 8192,
        "max_steps": 1024,
        "lr": "4e-4",
        "schedule": "cosine",
        "warmup_steps": 0,
        "weight_decay": "1e-4",
        "clip_grad": 0.3,
        "r": 16,
        "alpha": 32,
        "dropout": 0.1,
        "target_modules": ["qkv_proj", "o_proj"],
        "seed": 1234,
        "target_loss": 0.925,
        "eval_every": 48 * 8,
        "eval_from": (int(0.125 * 8 + 2) + 1) * 48 * 8,
    }
    assert {key: str(runner[key]) for key in wanted} == {key: str(value) for key, value in wanted.items()}
    assert runner["batch"] * runner["grad_accum"] * runner["processes"] == 8
