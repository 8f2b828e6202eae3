"""The first random weights: by a parameter's name in the whole model, whoever holds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from megatron.core import parallel_state
from torch import nn

from runners.megatron import model
from runners.schema import RunConfig


class Stage(nn.Module):
    """What a pipeline stage without layers holds, at megatron-core's names."""

    def __init__(self, place: str, *, shared: bool) -> None:
        super().__init__()
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList()
        at: nn.Module = self
        *parents, last = place.split(".")
        for parent in parents:
            at.add_module(parent, nn.Module())
            at = at.get_submodule(parent)
        weight = nn.Parameter(torch.zeros(64, 8))
        weight.tensor_model_parallel = True
        weight.partition_dim = 0
        weight.shared = shared
        at.register_parameter(last, weight)


@pytest.fixture
def alone() -> Iterator[None]:
    """A single tensor rank."""
    parallel_state.set_tensor_model_parallel_rank(0)
    yield
    parallel_state.set_tensor_model_parallel_rank(None)


def drawn(place: str, *, shared: bool) -> torch.Tensor:
    """The weight that `initialise` gives a stage."""
    stage = Stage(place, shared=shared)
    model.initialise(stage, RunConfig())
    return next(stage.parameters()).detach()


@pytest.mark.usefixtures("alone")
def test_both_copies_of_tied_embeddings_begin_alike() -> None:
    first = drawn("embedding.word_embeddings.weight", shared=False)
    last = drawn("output_layer.weight", shared=True)
    assert first.std() > 0
    assert torch.equal(first, last)


@pytest.mark.usefixtures("alone")
def test_untied_embeddings_begin_apart() -> None:
    first = drawn("embedding.word_embeddings.weight", shared=False)
    last = drawn("output_layer.weight", shared=False)
    assert not torch.equal(first, last)
