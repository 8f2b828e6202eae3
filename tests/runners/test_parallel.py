"""Real trainings in other layouts: sequences in parts, activations computed again, four processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runners.series import Item, play
from tests.runners.support import Place, Result

pytestmark = pytest.mark.train

ITERATIONS = 10
TWO: list[dict[str, Any]] = [
    {"parallel": {"context": 2}},
    {"parallel": {"tensor": 2}, "recompute": "selective"},
    {"parallel": {"tensor": 2, "sequence": True}, "recompute": "selective"},
]
FOUR = [{"pipeline": 2, "context": 2}, {"data": 2, "context": 2}]
MORE = [{"tensor": 2, "context": 2}, {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2}, {"tensor": 2, "data": 2}]


def config(**training: Any) -> dict[str, Any]:
    return {"training": {"train_iters": ITERATIONS, "micro_batch": 2, "warmup_steps": 2, **training}}


def curve(result: Result, key: str = "loss") -> list[float]:
    return [line[key] for line in result.wires("iteration")]


def named(parallel: dict[str, Any]) -> str:
    return "+".join(parallel)


@pytest.fixture(scope="module")
def alone(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """One process: all activations kept, some, none."""
    assert prepared.rc == 0, prepared.err
    items = [Item(recompute, config(recompute=recompute)) for recompute in ("none", "selective", "full")]
    return play(tmp_path_factory.mktemp("alone") / "series", cache, items)


@pytest.fixture(scope="module")
def two(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Two processes."""
    assert prepared.rc == 0, prepared.err
    items = [Item(named(training["parallel"]), config(**training)) for training in TWO]
    return play(tmp_path_factory.mktemp("two") / "series", cache, items, 2, module="tests.runners.ranks")


@pytest.fixture(scope="module")
def four(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Four processes."""
    assert prepared.rc == 0, prepared.err
    return of_four(FOUR, tmp_path_factory.mktemp("four"), cache)


def of_four(layouts: list[dict[str, int]], folder: Path, cache: Path) -> dict[str, Result]:
    items = [Item(named(parallel), config(parallel=parallel)) for parallel in layouts]
    return play(folder / "series", cache, items, 4)


def same(result: Result, one: Result) -> None:
    assert result.rc == 0, result.err
    assert len(curve(result)) == ITERATIONS
    assert curve(result) == pytest.approx(curve(one), abs=1e-5)
    assert curve(result, "grad_norm") == pytest.approx(curve(one, "grad_norm"), abs=1e-4)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_change_no_bit(alone: dict[str, Result], recompute: str) -> None:
    assert alone[recompute].rc == 0, alone[recompute].err
    assert len(curve(alone["none"])) == ITERATIONS
    for key in ("loss", "grad_norm"):
        assert curve(alone[recompute], key) == curve(alone["none"], key)


@pytest.mark.parametrize("name", [named(training["parallel"]) for training in TWO])
def test_two_processes_give_the_curve_of_one(alone: dict[str, Result], two: dict[str, Result], name: str) -> None:
    same(two[name], alone["none"])


@pytest.mark.parametrize("name", [*map(named, FOUR)])
def test_four_processes_give_the_curve_of_one(alone: dict[str, Result], four: dict[str, Result], name: str) -> None:
    same(four[name], alone["none"])


@pytest.mark.soak
def test_more_layouts_of_four_processes(alone: dict[str, Result], cache: Path, tmp_path: Path) -> None:
    for result in of_four(MORE, tmp_path, cache).values():
        same(result, alone["none"])


def test_a_run_says_its_layout_and_its_kernels(two: dict[str, Result]) -> None:
    result = two["tensor+sequence"]
    for argument, value in (("sequence_parallel", True), ("recompute_granularity", "selective")):
        assert any(
            line.split() == [argument, line.split()[1], str(value)]
            for line in result.out.splitlines()
            if argument in line
        )
    used = result.diagnostic("kernels")["data"]
    assert used == result.diagnostic("provenance")["data"]["kernels"]
    assert (used["attention"], used["layer"]) == ("flash", "plain")


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"parallel": {"context": 3}, "global_batch": 12}, "128 does not divide by 2 x training.parallel.context 3"),
        ({"parallel": {"sequence": True}}, "training.parallel.sequence needs training.parallel.tensor of 2 or more"),
        ({"parallel": {"tensor": 4, "context": 2, "sequence": True}, "sequence_length": 12}, "does not divide by"),
    ],
    ids=["context", "one-tensor", "remainder"],
)
def test_what_cannot_be_laid_out_says_why(place: Place, training: dict[str, Any], told: str) -> None:
    result = place.run({"training": training})
    assert result.rc == 2
    (line,) = result.err.strip().splitlines()
    assert told in line
