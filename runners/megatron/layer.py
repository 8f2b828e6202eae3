"""The decoder layer in fewer passes over memory: megatron-core's linears and attention, our kernels between them.

Its parameters are those of megatron-core's own layer, by name and by place, so that weights, checkpoints and the
division over tensor ranks are the same for both.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.transformer_layer import TransformerLayer

from runners.megatron import linear
from runners.megatron.loss import linear_loss


class FusedLayer(TransformerLayer):
    """A layer of Llama's shape: RMS norm with the residual sum, split and rotary embedding, SwiGLU, a kernel each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        attention = self.self_attention
        for module in (attention.linear_qkv, attention.linear_proj, self.mlp.linear_fc1, self.mlp.linear_fc2):
            linear.adopt(module)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        context: Any = None,
        context_mask: Any = None,
        rotary_pos_emb: Any = None,
        **_options: Any,
    ) -> tuple[torch.Tensor, None]:
        """hidden_states [s, b, h] (with sequence parallelism this rank's s), angles [s, 1, 1, d] -> [s, b, h]."""
        from runners.megatron.kernels import norm, rope, swiglu

        attention, eps = self.self_attention, self.config.layernorm_epsilon
        normed, residual = norm.add_norm(hidden_states, None, self.input_layernorm.weight, eps)
        mixed, _ = attention.linear_qkv(normed)
        groups = attention.num_query_groups_per_partition
        per_group = attention.num_attention_heads_per_partition // groups
        query, key, value = rope.split(mixed, *rope.tables(rotary_pos_emb), groups, per_group)
        attended = attention.core_attention(query, key, value, attention_mask)
        projected, _ = attention.linear_proj(attended)
        normed, residual = norm.add_norm(projected, residual, self.pre_mlp_layernorm.weight, eps)
        both, _ = self.mlp.linear_fc1(normed)
        result, _ = self.mlp.linear_fc2(swiglu.swiglu(both))
        return residual + result, None


class Decoder(GPTModel):
    """megatron-core's GPT model; where `loss` was set, the last projection and the cross entropy are one."""

    loss: Any = None  # {"chunk", "rows"} of runners.megatron.loss

    def _postprocess(self, *, hidden_states: torch.Tensor, labels: Any = None, **rest: Any) -> torch.Tensor:
        """As megatron-core's, but the mean loss (a scalar) of labels [b, s] where the fused loss is on."""
        if not self.post_process or labels is None or self.loss is None:
            result: torch.Tensor = super()._postprocess(hidden_states=hidden_states, labels=labels, **rest)
            return result
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        group = self.pg_collection.tp
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(hidden_states, group=group)
        else:
            hidden_states = copy_to_tensor_model_parallel_region(hidden_states, group=group)
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        targets = labels.transpose(0, 1).reshape(-1)
        return linear_loss(flat, weight, targets, group=group, **self.loss)
