"""Checkpoints of the GPUs' optimizers, under HIP's names on the host: fp32 weights and moments, whole or shared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runners import series
from tests.runners.series import Item
from tests.runners.support import Result
from tests.runners.test_checkpoint import curve

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

PLAIN = {"layer": "plain", "loss": "plain", "optimizer": "plain", "attention": "math"}


def config(checkpoint: dict[str, Any], *, shares: bool, data: int = 1, precision: str = "bf16") -> dict[str, Any]:
    return {
        "model": {"layers": 2, "hidden": 64, "ffn": 128},
        "training": {
            "name": "rocm", "backend": "rocm", "precision": precision, "train_iters": 4, "sequence_length": 32,
            "warmup_steps": 1, "micro_batch": 2, "global_batch": 4, "distributed_optimizer": shares, "overlap": False,
            "kernels": PLAIN, "parallel": {"data": data}, "checkpoint": checkpoint,
        },
    }  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What all said, and where the checkpoints of single processes are."""

    said: dict[str, Result]
    folder: Path

    def counts(self, name: str, step: int) -> dict[str, float]:
        """What a checkpoint says of the updates and of the loss scale."""
        about = json.loads((self.folder / name / f"out/checkpoints/step-{step}/checkpoint.json").read_text())
        counts: dict[str, float] = about["counts"]
        return counts


@pytest.fixture(scope="module")
def played(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Two processes that share the optimizer's state between them, then one that goes on with what they saved."""
    assert prepared.rc == 0, prepared.err
    root = tmp_path_factory.mktemp("gpu")
    cut, scaled = root / "two/shares/out/checkpoints/step-2", root / "one/scaled/out/checkpoints/step-3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKVI_TEST_HIP", "1")
        items = [
            Item("shares", config({"save_every": 2}, shares=True, data=2)),
            Item("shares_again", config({"resume": str(cut)}, shares=True, data=2)),
        ]
        said = series.play(root / "two", cache, items, processes=2)
        items = [
            Item("whole", config({"resume": str(cut)}, shares=False)),
            Item("one_share", config({"resume": str(cut)}, shares=True)),
            Item("scaled", config({"resume": str(cut), "save_every": 1}, shares=False, precision="fp16")),
            Item("scaled_again", config({"resume": str(scaled), "save_every": 1}, shares=False, precision="fp16")),
        ]
        said |= series.play(root / "one", cache, items)
    return Played(said, root / "one")


@pytest.mark.parametrize("name", ["shares_again", "whole", "one_share"])
def test_what_ranks_shared_goes_on_shared_or_whole(played: Played, name: str) -> None:
    assert played.said[name].rc == 0, played.said[name].err
    alone = curve(played.said["shares"])
    assert list(alone) == [1, 2, 3, 4]
    assert curve(played.said[name]) == {step: alone[step] for step in (3, 4)}


def test_fp16_goes_on_with_its_loss_scale_and_from_another_precision(played: Played) -> None:
    assert played.said["scaled_again"].rc == 0, played.said["scaled_again"].err
    scaled, alone = curve(played.said["scaled"]), curve(played.said["shares"])
    assert scaled == pytest.approx({step: alone[step] for step in (3, 4)}, abs=1e-3)
    assert curve(played.said["scaled_again"]) == {4: scaled[4]}
    counts = played.counts("scaled", 4)
    assert counts == {"updates": 4.0, "scale": 65536.0, "growth_tracker": 2.0, "hysteresis_tracker": 2.0}
    assert played.counts("scaled_again", 4) == counts
