"""`python -m runners --multirun`: points one after another, each with a folder and a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from runners.compose import ComposeError, compose_run
from runners.schema import RunConfig
from runners.sweep import Point, points
from tests.runners.support import Place, Result

TINY = [
    "data=synthetic",
    "data.samples=16",
    "model.layers=1",
    "training.train_iters=2",
    "training.sequence_length=16",
    "training.global_batch=2",
    "training.micro_batch=2",
]


def _run(place: Place, *words: str) -> Result:
    place.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "runners", "--multirun", *words]
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=110, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_the_seed_s_words_compose() -> None:
    config = compose_run(["training=rocm", "model=llama31_8b", "training.learning_rate=1e-3", "data.samples=64"])
    assert (config.training.backend, config.training.precision) == ("rocm", "bf16")
    assert (config.model.name, config.model.hidden) == ("llama31_8b", 4096)
    assert (config.training.learning_rate, config.data.samples) == (1e-3, 64)


def test_each_combination_is_a_point_with_its_own_words() -> None:
    found = points(["training.learning_rate=2e-3,3e-3", "training.seed=range(1,3)"])
    assert [(p.config.training.learning_rate, p.config.training.seed) for p in found] == [
        (2e-3, 1),
        (2e-3, 2),
        (3e-3, 1),
        (3e-3, 2),
    ]
    assert found[0].name == "training.learning_rate=0.002,training.seed=1"
    assert [p.sweep for p in points([])] == [{}]


def test_several_values_without_multirun_name_the_option() -> None:
    with pytest.raises(ComposeError, match=r"several values are a sweep\. Add --multirun"):
        compose_run(["training.learning_rate=1e-4,3e-4"])


def test_one_point_that_does_not_fit_starts_none() -> None:
    with pytest.raises(ComposeError, match="train_iters must be at least 1"):
        points(["training.train_iters=2,0"])


@pytest.mark.parametrize("value", ["org/model", "a b", "../x", "x" * 400])
def test_a_value_gives_a_name_that_one_folder_can_have(value: str) -> None:
    name = Point(RunConfig(), {"model.weights": value}).name
    assert "/" not in name
    assert " " not in name
    assert Path(name).name == name
    assert len(name) < 250


@pytest.mark.train
def test_all_stages_of_two_points_end_in_folders_of_their_own(place: Place) -> None:
    result = _run(place, "stage=all", *TINY, "training.learning_rate=2e-3,3e-3")
    assert result.rc == 0, result.err
    told = [line for line in result.wires("diagnostic") if line["code"] == "point"]
    assert [line["data"]["sweep"] for line in told] == [
        {"training.learning_rate": "0.002"},
        {"training.learning_rate": "0.003"},
    ]
    done = [stage for stage, status in result.stages if status == "done"]
    assert done == ["data", "train", "wrap", "train", "wrap"]  # the second finds the data of the first
    losses = [line["loss"] for line in result.wires("iteration")]
    assert len(losses) == 4
    assert losses[0] == losses[2]
    for rate in ("0.002", "0.003"):
        folder = place.out / f"training.learning_rate={rate}"
        config = json.loads((folder / "config.json").read_text())
        assert config["training"]["learning_rate"] == float(rate)
        assert "config.json" in zipfile.ZipFile(folder / "output.zip").namelist()


@pytest.mark.train
def test_a_point_that_fails_costs_none_after_it_and_is_named(place: Place) -> None:
    result = _run(place, "stage=train", *TINY, "runner=smoke", "runner.processes=1", "training.seed=1,2",
                  "runner.lr=1e-30")  # fmt: skip
    assert result.rc == 1
    assert "2 of 2 points failed: training.seed=1 (exit code 1), training.seed=2 (exit code 1)" in result.err
    assert result.stages.count(("train", "failed")) == 2


@pytest.mark.train
def test_purge_empties_what_the_points_left(place: Place) -> None:
    place.cache.mkdir(parents=True)
    (place.cache / "x").write_text("x")
    folder = place.out / "training.seed=1"
    folder.mkdir(parents=True)
    (folder / "old").write_text("x")
    result = _run(place, "stage=purge", "training.seed=1,2")
    assert result.rc == 0, result.err
    assert not list(place.cache.iterdir())
    assert not (folder / "old").exists()
