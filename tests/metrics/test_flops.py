"""FLOP conventions and published peaks."""

from __future__ import annotations

import pytest

from cockpit.metrics.flops import Shape, flops_per_token, padded_vocab
from cockpit.metrics.specs import gpu_spec, published

LLAMA3_8B = Shape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA3_70B = Shape(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)


@pytest.mark.parametrize(("convention", "gflop"), [("A", 45.03), ("B", 51.47), ("C", 57.91)])
def test_llama3_8b_at_8192_costs_what_is_published(convention: str, gflop: float) -> None:
    assert flops_per_token(LLAMA3_8B, 8192)[convention] / 1e9 == pytest.approx(gflop, abs=0.005)


@pytest.mark.parametrize(("convention", "gflop"), [("A", 417.02), ("B", 449.23), ("C", 481.44)])
def test_llama3_70b_at_8192_costs_what_is_published(convention: str, gflop: float) -> None:
    assert flops_per_token(LLAMA3_70B, 8192)[convention] / 1e9 == pytest.approx(gflop, abs=0.02)


def test_grouped_queries_shrink_the_projections_and_not_the_attention_core() -> None:
    full = Shape(layers=32, hidden=4096, heads=32, kv_heads=32, ffn=14336, vocab=128256)
    grouped, whole = flops_per_token(LLAMA3_8B, 8192), flops_per_token(full, 8192)
    assert whole["A"] - grouped["A"] == 6 * 32 * 2 * 4096 * (4096 - 1024)
    assert whole["C"] - whole["A"] == grouped["C"] - grouped["A"]


@pytest.mark.parametrize(
    ("vocab", "multiple", "tensor", "padded"), [(1024, 64, 1, 1024), (1000, 64, 2, 1024), (1, 64, 1, 64)]
)
def test_the_vocabulary_is_padded_up(vocab: int, multiple: int, tensor: int, padded: int) -> None:
    assert padded_vocab(vocab, multiple, tensor) == padded


@pytest.mark.parametrize(
    ("model", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI355X OAM", 2516.6),
        ("AMD Instinct MI250X", 191.5),  # software sees one of its two dies
    ],
)
def test_a_known_card_has_its_dense_peak(model: str, peak: float) -> None:
    spec = gpu_spec(model)
    assert spec is not None
    assert spec.peak_tflops("bf16") == peak
    assert spec.source


@pytest.mark.parametrize(
    "model",
    [None, "", "Tesla T4", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100",
     "AMD INSTINCT MI250 (MCM) OAM AC MBA", "AMD Instinct MI300A"],
)  # fmt: skip
def test_a_card_that_is_not_surely_in_the_table_has_none(model: str | None) -> None:
    assert gpu_spec(model) is None


def test_fp32_has_no_peak_because_tf32_is_a_setting() -> None:
    spec = gpu_spec("NVIDIA H200")
    assert spec is not None
    assert spec.peak_tflops("fp32") is None


def test_published_speeds_are_of_the_same_model_card_and_length() -> None:
    found = published("llama31_8b", "NVIDIA H200", 8192)
    assert found
    for row in found:
        assert row["model"].startswith(("Llama-3-8B", "Llama-3.1-8B"))
        assert "H200" in row["gpu"]
        assert "NVL" not in row["gpu"]
        assert row["sequence_length"] == 8192
        assert row["tokens_per_s_gpu"] > 0
        assert row["source"]
    assert published("llama31_8b", "NVIDIA H200", 4) == []
    assert published("tiny", "NVIDIA H200", 8192) == []
    assert published("llama31_8b", None, 8192) == []
