"""Groups whose stages train nothing: what is said of them is that they are done."""

from __future__ import annotations

import json

from cockpit.core.records import RunPlan, StagePlan
from cockpit.engine.putting import planned_total
from tests.engine.conftest import Duel


def test_a_group_that_did_not_train_is_not_compared(duel: Duel) -> None:
    done = duel.call("run", "--profile", "duel-local", "--repeats", "1", "--stage", "purge", "--yes")
    assert done.returncode == 0, done.stderr
    assert "Parity" not in done.stdout
    assert "No verdict" not in done.stdout
    assert done.stdout.count("no iteration in its log") == 2
    assert json.loads(duel.call("runs", "--groups", "--output", "json").stdout)[0]["state"] == "SUCCEEDED"


def test_only_a_stage_that_trains_has_steps_to_make() -> None:
    def run(*stages: str) -> RunPlan:
        config = {"runner": {"name": "megatron"}, "training": {"train_iters": 20}}
        plans = tuple(StagePlan(stage=s) for s in stages)
        return RunPlan(
            run="r", group="g", server="s", repeat=0, sweep={}, launcher="process", stages=plans, config=config
        )

    assert planned_total(run("data", "train", "wrap")) == 20
    assert planned_total(run("purge")) is None
    assert planned_total(run("data")) is None
