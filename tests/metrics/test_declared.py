"""What a command declares: the cost of a token, and what its comparison calls a difference."""

from __future__ import annotations

from typing import Any

import pytest

from cockpit.metrics.flops import token_cost
from cockpit.metrics.parity import _rule

LLAMA: dict[str, Any] = {
    "name": "llama31_8b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256,
}  # fmt: skip


def _config(**declares: Any) -> dict[str, Any]:
    training = {"sequence_length": 128, "precision": "fp32"}
    return {"model": LLAMA, "training": training, "runner": {"name": "command", "argv": ["x"], "declares": declares}}


def test_a_declared_model_costs_what_its_shape_says_at_the_declared_length() -> None:
    cost = token_cost(_config(model="llama31_8b", sequence_length=8192), {})
    assert cost is not None
    assert cost / 1e9 == pytest.approx(51.47, abs=0.01)


@pytest.mark.parametrize(
    "declares", [{}, {"model": "llama31_8b"}, {"sequence_length": 8192}, {"model": "other", "sequence_length": 8192}]
)
def test_a_command_that_does_not_say_what_it_trains_has_no_cost(declares: dict[str, Any]) -> None:
    assert token_cost(_config(**declares), {}) is None


def test_declarations_that_differ_block_and_the_log_s_format_says_nothing() -> None:
    assert _rule("runner.declares.sequence_length")[0] == "blocking"
    assert _rule("runner.log_format")[0] is None
    assert _rule("runner.env.HIP_X")[0] == "warning"
    assert _rule("runner.argv")[0] == "blocking"


def test_a_model_s_description_is_no_difference_and_where_its_weights_lie_does_not_block() -> None:
    assert _rule("model.description")[0] is None
    assert _rule("model.weights")[0] == "warning"
    assert _rule("model.architecture")[0] == "blocking"
