"""Trainings that are saved, stopped, killed and gone on with: the curve is that of the training left alone."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runners import series
from tests.runners.series import Item
from tests.runners.support import Result

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

ITERATIONS = 6
MODEL = {"layers": 4, "hidden": 64, "ffn": 176}
INTERLEAVED = {"pipeline": 2, "virtual_pipeline": 2}


def config(checkpoint: dict[str, Any], *, parallel: dict[str, int] | None = None, **training: Any) -> dict[str, Any]:
    settings = {"train_iters": ITERATIONS, "micro_batch": 2, "warmup_steps": 2, "parallel": parallel or {}}
    return {"model": MODEL, "training": settings | training | {"checkpoint": checkpoint}}


def curve(result: Result) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in result.wires("iteration")}


def of_model(change: dict[str, Any], checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The same with a model that differs."""
    return config(checkpoint) | {"model": MODEL | change}


EXPORT = config({"export_hf": True}) | {"data": {"train_split": 0.8}}


def wild(checkpoint: dict[str, Any], rate: float = 1e20, **more: Any) -> dict[str, Any]:
    """A training whose first update throws the weights out of all bounds: the loss after it is no number. At the
    default rate they are finite themselves, as far as they go.
    """
    return config(checkpoint, train_iters=ITERATIONS + 3, learning_rate=rate, warmup_steps=0, clip_grad=0.0, **more)


def steps_in(shelf: Path) -> list[str]:
    """All names there, hidden ones too."""
    return sorted(path.name for path in shelf.iterdir())


@dataclass(frozen=True)
class Played:
    """What all trainings of this file said, and where those of one process wrote."""

    folder: Path
    said: dict[str, Result]

    def shelf(self, name: str) -> Path:
        return self.folder / name / "out" / "checkpoints"


@pytest.fixture(scope="module")
def played(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Two processes and one, each through a list of trainings; the one goes on with what the two have saved."""
    assert prepared.rc == 0, prepared.err
    root = tmp_path_factory.mktemp("checkpoints")
    cut = root / "two/tensor/out/checkpoints/step-3"
    items = [
        Item("tensor", config({"save_every": 3}, parallel={"tensor": 2})),
        Item("interleaved", config({"resume": str(cut), "save_every": 5}, parallel=INTERLEAVED)),
        Item("nan_staged", wild({"save_every": 2}, parallel={"pipeline": 2})),
    ]
    said = series.play(root / "two", cache, items, processes=2)
    whole, torn = root / "one/whole/out", root / "torn/step-3"
    shutil.copytree(cut, torn)
    largest = max(torn.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])
    woven = root / "two/interleaved/out/checkpoints/step-5"
    items = [
        Item("killed", config({"save_every": 1}), killed_at="checkpoints/.step-3.part"),
        Item("whole", config({"save_every": 2})),
        Item("resumed", config({"resume": str(whole / "checkpoints/step-4")})),
        Item("from_tensor", config({"resume": str(cut)})),
        Item("from_interleaved", config({"resume": str(woven)})),
        Item("from_killed", config({"save_every": 1, "keep": 3}), like=str(root / "one/killed/out")),
        Item("export", EXPORT, like=str(whole), then="tests.runners.exported"),
        Item("nan", wild({"save_every": 1, "keep": 1}), like=str(whole)),
        Item("infinite", wild({"save_every": 1}, rate=1e38)),
        Item("padded", of_model({"vocab_multiple": 192}, {"resume": str(cut)})),
        Item("other_model", of_model({"ffn": 192}, {"resume": str(cut)})),
        Item("torn", config({"resume": str(torn)})),
    ]
    return Played(root / "one", said | series.play(root / "one", cache, items))


def test_a_training_says_what_it_saves_and_keeps_the_newest(played: Played) -> None:
    result = played.said["whole"]
    assert result.rc == 0, result.err
    assert steps_in(played.shelf("whole")) == ["latest", "step-4", "step-6"]
    assert (played.shelf("whole") / "latest").read_text() == "step-6\n"
    saved = [line["data"] for line in result.wires("diagnostic") if line["code"] == "checkpoint"]
    assert [data["step"] for data in saved] == [2, 4, 6]
    last = played.shelf("whole") / "step-6"
    assert saved[-1]["path"] == str(last)
    assert saved[-1]["bytes"] == sum(path.stat().st_size for path in last.iterdir())
    parameters = result.diagnostic("model")["data"]["parameters"]
    assert 12 * parameters < saved[-1]["bytes"] < 14 * parameters


def test_the_time_of_saving_is_no_time_of_a_step(played: Played) -> None:
    lines = played.said["whole"].wires("iteration")
    paused = {line["step"]: line["extra"].get("checkpoint_s") for line in lines}
    assert [step for step, seconds in paused.items() if seconds is not None] == [2, 4, 6]
    for before, line in itertools.pairwise(lines):
        between = line["mono"] - before["mono"]
        assert line["step_s"] + (paused[line["step"]] or 0.0) == pytest.approx(between, abs=0.05)


def test_going_on_gives_the_same_curve_to_the_last_bit(played: Played) -> None:
    whole, resumed = curve(played.said["whole"]), curve(played.said["resumed"])
    assert list(whole) == [1, 2, 3, 4, 5, 6]
    assert resumed == {step: whole[step] for step in (5, 6)}
    assert played.said["resumed"].diagnostic("resumed")["data"]["step"] == 4
    told = [played.said[name].diagnostic("result")["data"] for name in ("whole", "resumed")]
    assert [data["resumed_from_step"] for data in told] == [None, 4]
    assert [data["samples"] for data in told] == [6 * 8, 2 * 8]
    assert told[1]["tokens"] * 3 == told[0]["tokens"]


@pytest.mark.parametrize(("name", "first"), [("from_tensor", 4), ("interleaved", 4), ("from_interleaved", 6)])
def test_other_parallel_sizes_go_on_with_the_same_curve(played: Played, name: str, first: int) -> None:
    assert played.said[name].rc == 0, played.said[name].err
    whole = curve(played.said["whole"])
    assert curve(played.said["tensor"]) == pytest.approx(whole, abs=1e-6)
    rest = {step: loss for step, loss in whole.items() if step >= first}
    assert curve(played.said[name]) == pytest.approx(rest, abs=1e-6)


def test_a_vocabulary_with_another_padding_is_read_as_far_as_both_go(played: Played) -> None:
    assert played.said["padded"].rc == 0, played.said["padded"].err
    whole = curve(played.said["whole"])
    assert curve(played.said["padded"])[4] == pytest.approx(whole[4], abs=0.15), "128 rows more take their share"
    padding = played.said["padded"].diagnostic("resume_padding")
    assert "the loss counts the padding" in padding["message"]
    assert padding["data"]["saved"] < padding["data"]["now"]


def test_another_model_and_a_torn_file_are_named(played: Played) -> None:
    other, torn = played.said["other_model"], played.said["torn"]
    assert (other.rc, torn.rc) == (2, 1)
    assert "has model.ffn=176, this run has model.ffn=192." in other.err
    assert f"the checkpoint {played.folder.parent}/torn/step-3 cannot be read: " in torn.err
    assert len(other.err.splitlines()) == len(torn.err.splitlines()) == 1


def test_a_killed_save_leaves_the_one_before_and_no_rubbish(played: Played) -> None:
    assert played.said["killed"].rc == -signal.SIGKILL
    assert {".step-3.part", "latest", "step-1", "step-2"} <= set(steps_in(played.shelf("killed")))
    again, whole = played.said["from_killed"], curve(played.said["whole"])
    assert again.rc == 0, again.err
    assert curve(again) == {step: whole[step] for step in (3, 4, 5, 6)}
    assert steps_in(played.shelf("from_killed")) == ["latest", "step-4", "step-5", "step-6"]


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(played: Played) -> None:
    result, shelf = played.said["nan"], played.shelf("nan")
    assert result.rc == 1
    (line,) = result.err.strip().splitlines()
    assert "the loss of iteration 8 is not a finite number, so the training stopped" in line
    assert f"the last good checkpoint is kept: {shelf}/step-6." in line
    assert steps_in(shelf) == ["latest", "step-4", "step-6"]
    assert (shelf / "latest").read_text() == "step-6\n"
    assert [entry["loss"] is None for entry in result.wires("iteration")] == [False, True]
    drift = result.diagnostic("resume_differs")["data"]["keys"]
    assert drift == ["training.train_iters (6, now 9)"]


def test_stages_that_do_not_know_the_loss_stop_with_the_others(played: Played) -> None:
    result = played.said["nan_staged"]
    assert result.rc == 1
    (line,) = result.err.strip().splitlines()
    assert "the loss of iteration 2 is not a finite number" in line
    assert "no good checkpoint was saved" in line


def test_weights_that_are_no_numbers_are_never_saved(played: Played) -> None:
    result = played.said["infinite"]
    assert result.rc == 1
    assert "the weights or the optimizer's moments after iteration 1 are not finite" in result.err
    assert not list((played.folder / "infinite").rglob("step-*"))


def test_what_is_exported_is_the_same_model_to_transformers(played: Played) -> None:
    result = played.said["export"]
    assert result.rc == 0, result.err
    assert not result.wires("iteration"), "all steps were made"
    assert result.diagnostic("export")["data"]["step"] == ITERATIONS
    ours = json.loads((played.folder / "export/out/train.json").read_text())["validation_loss"]
    assert float((played.folder / "export/loss").read_text()) == pytest.approx(ours, abs=2e-6)
