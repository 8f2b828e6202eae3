"""Whole trainings with the fused layer, its kernels interpreted on the host, against megatron-core's own layer."""

from __future__ import annotations

from typing import Any

import pytest

from runners.compose import compose_run
from tests.runners import series
from tests.runners.series import Item
from tests.runners.support import Result

pytestmark = pytest.mark.train

SIZES = (
    *("training=cpu", "model=tiny", "data=synthetic", "data.samples=40", "data.tokenizer_vocab=300"),
    *("model.layers=2", "model.hidden=32", "model.heads=4", "model.kv_heads=2", "model.ffn=48"),
    *("training.sequence_length=8", "training.micro_batch=1", "training.global_batch=1", "training.train_iters=3"),
    "training.warmup_steps=0",
)
SIDES = {
    "plain": (),
    "fused": ("training.kernels.layer=fused", "training.kernels.loss=fused"),
    "selective": ("training.kernels.layer=fused", "training.recompute=selective"),
    "tied": ("training.kernels.layer=fused", "training.kernels.loss=fused", "model.tied_embeddings=true"),
    "tied_plain": ("model.tied_embeddings=true",),
    "bias": ("training.kernels.layer=fused", "model.qkv_bias=true"),
    "bias_plain": ("model.qkv_bias=true",),
}


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, float]]]:
    """Loss and gradient norm of each step, by side."""
    root = tmp_path_factory.mktemp("fused")
    items = [Item(name, _config(*words), ("stage=all",)) for name, words in SIDES.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        said = series.play(root / "runs", root / "cache", items)
    return {name: _curve(result) for name, result in said.items()}


def _config(*words: str) -> dict[str, Any]:
    return compose_run([*SIZES, *words]).model_dump(mode="json")


def _curve(result: Result) -> list[tuple[float, float]]:
    assert result.rc == 0, result.err
    return [(line["loss"], line["grad_norm"]) for line in result.wires("iteration")]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("fused", "plain"), ("selective", "plain"), ("tied", "tied_plain"), ("bias", "bias_plain")]
)
def test_the_fused_layer_trains_as_the_plain_one(
    curves: dict[str, list[tuple[float, float]]], ours: str, theirs: str
) -> None:
    assert len(curves[ours]) == 3
    for step, other in zip(curves[ours], curves[theirs], strict=True):
        assert step == pytest.approx(other, rel=2e-6)
