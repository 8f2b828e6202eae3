"""Parameters and FLOP conventions, against published figures and against what the cockpit counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from cockpit.metrics.flops import token_cost
from runners import sizes
from runners.schema import Model

PROFILES = Path(__file__).parents[2] / "profiles" / "model"
LLAMA_3_8B = Model(
    name="llama3_8b", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, rope_base=500000
)


def profile(name: str) -> Model:
    return Model.model_validate(OmegaConf.to_container(OmegaConf.load(PROFILES / f"{name}.yaml")))


@pytest.mark.parametrize(("convention", "gflop"), [("A", 45.03), ("B", 51.47), ("C", 57.91)])
def test_llama_3_8b_at_8192_costs_what_is_published(convention: str, gflop: float) -> None:
    assert round(sizes.per_token(LLAMA_3_8B, 128256, 8192)[convention] / 1e9, 2) == gflop


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama31_8b", 8_030_261_248),
        ("llama32_1b", 1_235_814_400),
        ("llama32_3b", 3_212_749_824),
        ("llama2_70b", 68_976_648_192),
        ("qwen2_5_7b", 7_615_616_512),
        ("qwen2_5vl_7b", 7_615_616_512),
    ],
)
def test_a_model_has_its_published_number_of_parameters(name: str, count: int) -> None:
    model = profile(name)
    assert model.name == name
    assert model.vocab is not None
    assert sizes.padded_vocab(model.vocab, model.vocab_multiple) == model.vocab  # one GPU pads none of them
    assert sizes.parameters(model, model.vocab) == count


@pytest.mark.parametrize(
    ("size", "billions"),
    [
        ("1_7b", 1.7),
        ("3_6b", 3.6),
        ("7_5b", 7.5),
        ("18_4b", 18.4),
        ("39_1b", 39.1),
        ("76_1b", 76.1),
        ("145_6b", 145.6),
        ("310_1b", 310.1),
    ],
)
def test_the_gpt_3_table_has_its_paper_s_parameters(size: str, billions: float) -> None:
    model = profile(f"gpt3_{size}")
    assert model.vocab == 50257
    vocab = sizes.padded_vocab(50257, model.vocab_multiple, 8)
    assert vocab == 51200
    layers, hidden, sequence = model.layers, model.hidden, 2048
    paper = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocab + sequence) / (12 * layers * hidden))
    counted = sizes.parameters(model, vocab)
    assert counted == round(paper) + 2 * hidden  # the paper leaves out the final norm
    assert round(counted / 1e9, 1) == billions


def test_the_alias_of_the_seed_says_what_it_is() -> None:
    alias, model = profile("qwen2_5vl_7b"), profile("qwen2_5_7b")
    assert "Qwen2.5 7B" in alias.description
    apart = {"name", "description"}
    assert alias.model_dump(exclude=apart) == model.model_dump(exclude=apart)


def test_every_model_profile_is_valid_and_described() -> None:
    for path in PROFILES.glob("*.yaml"):
        model = profile(path.stem)
        assert (model.name, bool(model.description)) == (path.stem, True)


def test_tied_embeddings_save_the_table_but_no_work() -> None:
    tied = LLAMA_3_8B.model_copy(update={"tied_embeddings": True})
    assert sizes.parameters(LLAMA_3_8B, 128256) - sizes.parameters(tied, 128256) == 128256 * 4096
    assert sizes.per_token(tied, 128256, 8192) == sizes.per_token(LLAMA_3_8B, 128256, 8192)


@given(st.integers(1, 300_000), st.integers(1, 512), st.sampled_from([1, 2, 4, 8]))
def test_a_padded_vocabulary_is_the_smallest_that_every_rank_shares_evenly(v: int, m: int, tensor: int) -> None:
    padded = sizes.padded_vocab(v, m, tensor)
    assert padded % (m * tensor) == 0
    assert v <= padded < v + m * tensor


@given(
    architecture=st.sampled_from(["llama", "gpt"]),
    groups=st.integers(1, 8),
    share=st.integers(1, 4),
    head=st.integers(1, 128),
    layers=st.integers(1, 100),
    ffn=st.integers(1, 30_000),
    vocab=st.integers(1, 200_000),
    sequence=st.integers(1, 10_000),
    tensor=st.sampled_from([1, 2, 8]),
)
def test_the_cockpit_counts_what_a_run_counts(
    groups: int, share: int, head: int, vocab: int, sequence: int, tensor: int, **shape: Any
) -> None:
    heads = groups * share
    model = Model(heads=heads, kv_heads=groups, hidden=heads * head, vocab=vocab, max_sequence=20_000, **shape)
    config = {
        "model": model.model_dump(mode="json"),
        "training": {"sequence_length": sequence, "parallel": {"tensor": tensor}},
        "runner": {"name": "megatron"},
    }
    padded = sizes.padded_vocab(vocab, model.vocab_multiple, tensor)
    assert token_cost(config, {}) == sizes.per_token(model, padded, sequence)[sizes.CONVENTION]
