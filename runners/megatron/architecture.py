"""The two architectures in megatron-core's words: Llama's and GPT's."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional

from runners.megatron.context import cut
from runners.schema import Model, RopeScaling

LEARNED = "learned_absolute"


def transformer_options(model: Model) -> dict[str, Any]:
    """What the TransformerConfig gets for norms, activation and biases."""
    if model.architecture == "gpt":
        return {
            "normalization": "LayerNorm",
            "gated_linear_unit": False,
            "activation_func": functools.partial(functional.gelu, approximate="tanh"),  # GPT's own
            "add_bias_linear": True,
            "add_qkv_bias": False,  # the line above gives it one
        }
    return {
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": model.qkv_bias,
    }


def normalization(model: Model) -> str:
    """The norm's name, for megatron-core's layer specification."""
    return str(transformer_options(model)["normalization"])


def model_options(model: Model) -> dict[str, Any]:
    """What GPTModel gets for the positions."""
    if model.architecture == "gpt":
        return {"position_embedding_type": LEARNED}
    return {"position_embedding_type": "rope", "rotary_base": model.rope_base}


def adapt(chunk: Any, model: Model) -> None:
    """Fit the rotary frequencies of a fresh chunk to the model: megatron-core knows only Llama 3.1's own figures."""
    if model.architecture == "llama" and model.rope_scaling is not None:
        chunk.rotary_pos_emb.inv_freq = stretched(chunk.rotary_pos_emb.inv_freq, model.rope_scaling)


def stretched(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Rotary frequencies, fp32 [d / 2] in radians a token, as Llama 3 stretches them."""
    length, factor = scaling.original_sequence, scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    waves = 2 * math.pi / frequencies
    slow = torch.where(waves > length / low, frequencies / factor, frequencies)
    smooth = (length / waves - low) / (high - low)
    between = (1 - smooth) * slow / factor + smooth * slow
    return torch.where((waves >= length / high) & (waves <= length / low), between, slow)


def positions(inner: Any, tokens: torch.Tensor | None) -> torch.Tensor | None:
    """The place of each of `tokens` [b, s] in its sequence, where the model has a table of them; else None.

    With context parallelism `tokens` are this rank's part of the sequences.
    """
    if tokens is None or inner.position_embedding_type != LEARNED:
        return None
    group = inner.pg_collection.cp
    size = group.size() if group is not None else 1
    whole = torch.arange(tokens.shape[1] * size, device=tokens.device)
    return cut(whole, 0, group).expand_as(tokens)
