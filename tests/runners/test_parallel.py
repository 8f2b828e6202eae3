"""Real trainings in other layouts: sequences in parts, activations computed again, four processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runners.support import Place, Result

pytestmark = pytest.mark.train

ITERATIONS = 10


def config(**training: Any) -> dict[str, Any]:
    return {"training": {"train_iters": ITERATIONS, "micro_batch": 2, "warmup_steps": 2, **training}}


def curve(result: Result, key: str = "loss") -> list[float]:
    return [line[key] for line in result.wires("iteration")]


@pytest.fixture(scope="module")
def one(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One process that keeps all activations."""
    assert prepared.rc == 0, prepared.err
    return Place(tmp_path_factory.mktemp("one"), cache).run(config())


@pytest.mark.parametrize(
    "parallel",
    [
        {"context": 2},
        pytest.param({"pipeline": 2, "context": 2}),
        pytest.param({"data": 2, "context": 2}),
        pytest.param({"tensor": 2, "context": 2}, marks=pytest.mark.soak),
        pytest.param({"tensor": 2, "pipeline": 2}, marks=pytest.mark.soak),
        pytest.param({"tensor": 2, "pipeline": 2, "virtual_pipeline": 2}, marks=pytest.mark.soak),
    ],
    ids="+".join,
)
def test_a_layout_gives_the_one_process_curve(
    one: Result, cache: Path, tmp_path: Path, parallel: dict[str, int]
) -> None:
    processes = 2 if len(parallel) == 1 else 4
    result = Place(tmp_path, cache).run(config(parallel=parallel), processes=processes)
    assert result.rc == 0, result.err
    assert len(curve(result)) == ITERATIONS
    assert curve(result) == pytest.approx(curve(one), abs=1e-5)
    assert curve(result, "grad_norm") == pytest.approx(curve(one, "grad_norm"), abs=1e-4)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_change_no_bit(one: Result, cache: Path, tmp_path: Path, recompute: str) -> None:
    result = Place(tmp_path, cache).run(config(recompute=recompute))
    assert result.rc == 0, result.err
    assert curve(result) == curve(one)
    assert curve(result, "grad_norm") == curve(one, "grad_norm")
