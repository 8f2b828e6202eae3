"""Llama with its query, key and value in one matrix `qkv_proj`: the checkpoint that MLPerf's task starts from.

Such a folder says `model_type: custom_llama` and brings code of its own for it. That code is not run: these classes
read the same weights, and one adapter stands beside the whole matrix, as in the task's reference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaForCausalLM,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

KIND = "custom_llama"


class FusedLlamaConfig(LlamaConfig):
    """Llama's configuration under the folder's name."""

    model_type = KIND


class FusedAttention(LlamaAttention):
    """Llama's attention with one projection: rows of all queries, then of all keys, then of all values."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        self.parts = [count * self.head_dim for count in heads]
        del self.q_proj, self.k_proj, self.v_proj
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.parts), bias=config.attention_bias)

    def forward(  # type: ignore[override]  # of the words of TransformersKwargs none is named here
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend; [batch, sequence, hidden] in and out."""
        batch = hidden_states.shape[:-1]
        split = self.qkv_proj(hidden_states).split(self.parts, dim=-1)
        query, key, value = (part.view(*batch, -1, self.head_dim).transpose(1, 2) for part in split)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.attention_dropout if self.training else 0.0
        out, weights = attend(self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **more)
        return self.o_proj(out.reshape(*batch, -1).contiguous()), weights


class FusedLlamaForCausalLM(LlamaForCausalLM):
    """Llama with that attention in every layer."""

    config_class = FusedLlamaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = FusedAttention(config, index)
        self.post_init()


def register(folder: Path) -> bool:
    """Let transformers take these classes where `folder` holds such a model; whether it does."""
    try:
        found = bool(json.loads((folder / "config.json").read_bytes()).get("model_type") == KIND)
    except (OSError, ValueError, AttributeError):
        return False
    if found:
        AutoConfig.register(KIND, FusedLlamaConfig, exist_ok=True)
        AutoModelForCausalLM.register(FusedLlamaConfig, FusedLlamaForCausalLM, exist_ok=True)
    return found
