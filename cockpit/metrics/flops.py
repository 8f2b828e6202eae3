"""Floating-point operations a trained token costs, by three conventions that published figures use.

P counts the parameters of matrix multiplications: attention, SwiGLU (three matrices) and the logits, not the input
embedding; grouped queries shrink the key and value projections but not the attention core. h = heads x head size, L
layers, s sequence length; forward and backward together:

A  6 P                    no attention core (nanoGPT style)
B  6 P + 6 L h s          causal attention counts half (Megatron-LM); the convention of every TFLOP/s here
C  6 P + 12 L h s         the full square (PaLM appendix B)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONVENTION = "B"


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer in Llama's shape; `vocab` as the logits have it, padding included."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    @property
    def matmul_parameters(self) -> int:
        """P: parameters that take part in a matrix multiplication for every token."""
        head = self.hidden // self.heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * head
        return self.layers * (attention + 3 * self.hidden * self.ffn) + self.hidden * self.vocab


def flops_per_token(shape: Shape, sequence_length: int) -> dict[str, float]:
    """FLOP a token of training at `sequence_length` tokens a sequence, by convention A, B and C."""
    base = 6.0 * shape.matmul_parameters
    core = 6.0 * shape.layers * shape.hidden * sequence_length
    return {"A": base, "B": base + core, "C": base + 2 * core}


def padded_vocab(vocab: int, multiple: int, tensor: int = 1) -> int:
    """`vocab` rounded up to a multiple of `multiple` times the tensor parallel size."""
    unit = multiple * tensor
    return math.ceil(vocab / unit) * unit


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
    sizes = {key: shape[key] for key in ("layers", "hidden", "heads", "kv_heads", "ffn") if key in shape}
    if len(sizes) < 5:
        return None
    return flops_per_token(Shape(**sizes, vocab=vocab), length)[CONVENTION]


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
