"""The comparison of two ways to train: what it makes of keys, losses and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import curves


def test_a_key_is_set_in_a_copy() -> None:
    base = {"training": {"micro_batch": 4}}
    words = ("training.micro_batch=1", "training.kernels.layer=fused", "training.evaluate=true", "data.seed=null")
    assert curves.changed(base, words) == {
        "training": {"micro_batch": 1, "kernels": {"layer": "fused"}, "evaluate": True},
        "data": {"seed": None},
    }
    assert base == {"training": {"micro_batch": 4}}


def test_a_word_that_is_no_key_and_value_is_named() -> None:
    with pytest.raises(SystemExit, match="'fused' is no KEY=VALUE"):
        curves.changed({}, ("fused",))


def test_curves_are_compared_where_both_have_a_loss() -> None:
    first = curves.Side((), {}, losses=[4.0, 3.0, None, 1.0], seconds=[0.1] * 4)
    other = curves.Side(("a.b=1",), {}, losses=[4.0, 3.5, 2.0, 0.75], seconds=[0.2, 0.2, 0.2, 9.0])
    figures = curves.compared(other, first)
    assert (figures["steps with a loss"], figures["largest gap"], figures["mean gap"]) == (3, 0.5, 0.25)
    assert figures["mean signed gap"] == pytest.approx(0.25 / 3)
    assert figures["step, median ms"] == 200
    assert other.name == "b=1"


def test_gradients_are_compared_by_part_and_in_total(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = {
        "layers.0.linear_qkv.weight": torch.tensor([3.0, 4.0]),
        "final_layernorm.weight": torch.tensor([12.0]),
    }
    ours = {"layers.0.linear_qkv.weight": torch.tensor([3.0, 4.5]), "final_layernorm.weight": torch.tensor([12.0])}
    for name, gradients in (("reference", expected), ("ours", ours)):
        torch.save(gradients, tmp_path / name)
    figures, worst = curves.apart(tmp_path / "ours", tmp_path / "reference")
    assert figures == pytest.approx({"linear_qkv": 0.1, "norm": 0.0, "worst parameter": 0.1, "total": 0.5 / 13})
    assert worst == "layers.0.linear_qkv.weight"
    torch.save({name: gradient * 0 for name, gradient in expected.items()}, tmp_path / "reference")
    with pytest.raises(SystemExit, match="no gradients"):
        curves.apart(tmp_path / "ours", tmp_path / "reference")
