"""A training from Energon's shards: learns, validates on the way, and is the same in another layout."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.runners.support import Place, Result

pytestmark = pytest.mark.train
pytest.importorskip("megatron.energon")

CONFIG: dict[str, Any] = {
    "data": {"name": "small", "source": "synthetic", "samples": 80, "format": "energon", "train_split": 0.8},
    "training": {
        "train_samples": 64,
        "warmup_samples": 16,
        "micro_batch": 2,
        "sequence_length": 64,
        "evaluate": True,
        "eval_interval": 3,
        "eval_iters": 2,
    },
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Result]:
    place = Place(tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("cache"))
    return place, place.run(CONFIG, "stage=all")


def validations(result: Result) -> list[tuple[int, float]]:
    pattern = r"^ validation loss at iteration (\d+) \| lm loss value: (\S+) \|"
    return [(int(step), float(loss)) for step, loss in re.findall(pattern, result.out, re.MULTILINE)]


def test_it_trains_for_its_samples_and_learns(one: tuple[Place, Result]) -> None:
    _place, result = one
    assert result.rc == 0, result.err
    curve = [line["loss"] for line in result.wires("iteration")]
    assert len(curve) == 8
    assert curve[-1] < curve[0] - 0.1
    told = [line["data"] for line in result.wires("diagnostic") if line["code"] == "data"]
    assert {(d["format"], d["documents"], d["sha256"]) for d in told} == {("energon", 80, told[0]["sha256"])}
    assert re.search(r"train_samples \.+ 64\n", result.out)
    assert re.search(r"lr_warmup_samples \.+ 16\n", result.out)
    assert re.search(r"eval_interval \.+ 3\n", result.out)


def test_it_validates_on_the_way_and_no_step_pays_for_it(one: tuple[Place, Result]) -> None:
    _place, result = one
    assert [step for step, _loss in validations(result)] == [3, 6, 8]
    losses = [loss for _step, loss in validations(result)]
    assert losses == sorted(losses, reverse=True)
    steps = result.wires("iteration")
    between = [after["mono"] - before["mono"] for before, after in itertools.pairwise(steps)]
    paused = between[2] - steps[3]["step_s"]  # the fourth step comes after the first validation
    assert paused > 0.2 * steps[3]["step_s"]
    assert abs(between[0] - steps[1]["step_s"]) < paused


def test_two_replicas_read_the_same(one: tuple[Place, Result], tmp_path: Path) -> None:
    place, alone = one
    training = CONFIG["training"] | {"parallel": {"data": 2}}
    result = Place(tmp_path, place.cache).run({**CONFIG, "training": training}, processes=2)
    assert result.rc == 0, result.err
    curves = [[line["loss"] for line in r.wires("iteration")] for r in (result, alone)]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
    for here, there in zip(validations(result), validations(alone), strict=True):
        assert here == pytest.approx(there, abs=1e-5)
