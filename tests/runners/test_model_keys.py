"""What model.* refuses, naming the keys that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from runners.schema import RunConfig

SCALING = {"factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0, "original_sequence": 8192}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"model": {"max_sequence": 4096}, "training": {"sequence_length": 4097}},
            "training.sequence_length 4097 is longer than the model takes, model.max_sequence 4096",
        ),
        ({"model": {"architecture": "gpt"}}, "model.architecture=gpt learns its positions"),
        (
            {"model": {"architecture": "gpt", "max_sequence": 2048, "rope_scaling": {}}},
            "model.rope_scaling is for rotary positions",
        ),
        (
            {"model": {"rope_scaling": SCALING}},
            "high_freq_factor 4.0 must be above model.rope_scaling.low_freq_factor",
        ),
        (
            {
                "model": {"architecture": "gpt", "max_sequence": 2048},
                "training": {"kernels": {"layer": "fused"}},
            },
            "training.kernels.layer=fused is Llama's layer",
        ),
        ({"model": {"revision": "v1"}}, "model.revision is of model.weights, which is null"),
    ],
)
def test_keys_that_do_not_fit_are_named(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        RunConfig.model_validate(config)


def test_the_longest_sequence_itself_is_taken() -> None:
    config = {"model": {"max_sequence": 4096}, "training": {"sequence_length": 4096}}
    assert RunConfig.model_validate(config).training.sequence_length == 4096
