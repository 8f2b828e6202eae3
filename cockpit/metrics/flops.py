"""Floating-point operations a trained token costs, by three conventions that published figures use.

`runners.sizes` has the arithmetic, the same that a run of ours counts with; here is what a record says of its shape.
B (6 P + 6 L h s, causal attention counts half) is the convention of every TFLOP/s here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners import sizes
from runners.sizes import CONVENTION, padded_vocab

__all__ = ["CONVENTION", "Shape", "flops_per_token", "padded_vocab", "token_cost"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer; `vocab` as the logits have it, padding included."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    architecture: str = "llama"


def flops_per_token(shape: Shape, sequence_length: int) -> dict[str, float]:
    """FLOP a token of training at `sequence_length` tokens a sequence, by convention A, B and C."""
    counted = sizes.per_token(shape, shape.vocab, sequence_length)
    return {convention: float(flop) for convention, flop in counted.items()}


def token_cost(config: Mapping[str, Any], model: Mapping[str, Any]) -> float | None:
    """FLOP a token by convention B: as the runner's `model` diagnostic says, else from the configuration."""
    listed = model.get("flops_per_token")
    told = listed.get(CONVENTION) if isinstance(listed, Mapping) else None  # a program of somebody's may say anything
    if isinstance(told, (int, float)) and told > 0:
        return float(told)
    shape, training = config.get("model") or {}, config.get("training") or {}
    length = _sequence_length(config)
    if not length:
        return None
    vocab = model.get("padded_vocab")
    vocab = vocab if isinstance(vocab, int) else None
    if vocab is None and shape.get("vocab"):
        tensor = (training.get("parallel") or {}).get("tensor", 1)
        vocab = padded_vocab(shape["vocab"], shape.get("vocab_multiple", 1), tensor)
    if vocab is None:
        return None
    known = {key: shape[key] for key in ("layers", "hidden", "heads", "kv_heads", "ffn") if key in shape}
    if len(known) < 5:
        return None
    architecture = shape.get("architecture") or "llama"  # what runs recorded before there was a choice
    return flops_per_token(Shape(**known, vocab=vocab, architecture=architecture), length)[CONVENTION]


def _sequence_length(config: Mapping[str, Any]) -> int | None:
    """Tokens a sequence where the configuration's model is what was trained, else None.

    A command trains what it likes: its profile must declare the length, and a model by the name of the profile's.
    """
    runner, model = config.get("runner") or {}, config.get("model") or {}
    if runner.get("name") == "megatron":
        return (config.get("training") or {}).get("sequence_length")
    declares = runner.get("declares") or {}
    if runner.get("name") != "command" or not model.get("name") or declares.get("model") != model["name"]:
        return None
    return declares.get("sequence_length")
