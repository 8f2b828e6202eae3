"""FLOP conventions, against the published figures of Llama-3-8B."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.megatron import flops
from runners.schema import Model

LLAMA_3_8B = Model(
    name="llama3_8b", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, rope_base=500000
)


@pytest.mark.parametrize(("convention", "gflop"), [("A", 45.03), ("B", 51.47), ("C", 57.91)])
def test_llama_3_8b_at_8192_costs_what_is_published(convention: str, gflop: float) -> None:
    assert round(flops.per_token(LLAMA_3_8B, 128256, 8192)[convention] / 1e9, 2) == gflop


def test_llama_3_8b_has_its_published_number_of_parameters() -> None:
    assert flops.parameters(LLAMA_3_8B, 128256) == 8_030_261_248


def test_tied_embeddings_save_the_table_but_no_work() -> None:
    tied = LLAMA_3_8B.model_copy(update={"tied_embeddings": True})
    assert flops.parameters(LLAMA_3_8B, 128256) - flops.parameters(tied, 128256) == 128256 * 4096
    assert flops.per_token(tied, 128256, 8192) == flops.per_token(LLAMA_3_8B, 128256, 8192)


@given(st.integers(1, 300_000), st.integers(1, 512), st.sampled_from([1, 2, 4, 8]))
def test_a_padded_vocabulary_is_the_smallest_that_every_rank_shares_evenly(v: int, m: int, tensor: int) -> None:
    padded = flops.padded_vocab(v, m, tensor)
    assert padded % (m * tensor) == 0
    assert v <= padded < v + m * tensor
