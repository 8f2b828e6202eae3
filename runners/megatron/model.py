"""A decoder in Llama's shape as megatron-core's GPTModel, with attention by torch's own kernel.

The initial weights depend on the seed and on a parameter's global name only, so that every parallel layout starts
from the same model.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from runners.megatron import attention
from runners.megatron.backend import Backend
from runners.schema import RunConfig


def transformer_config(config: RunConfig, backend: Backend) -> TransformerConfig:
    """megatron-core's configuration of the model and of the layout."""
    model, training = config.model, config.training
    parallel = training.parallel
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method=_keep,
        output_layer_init_method=_keep,
        embedding_init_method=_keep,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline,
        deallocate_pipeline_outputs=True,
        finalize_model_grads_func=finalize_model_grads,
        **backend.transformer_options(),
    )


def build(config: RunConfig, backend: Backend, padded_vocab: int) -> list[Any]:
    """This rank's chunks of the model, first to last: one, or one for each virtual pipeline stage."""
    chunks = []
    for index in range(config.training.parallel.virtual_pipeline or 1):
        stage = index if config.training.parallel.virtual_pipeline else None
        chunk = GPTModel(
            transformer_config(config, backend),
            layer_spec(config),
            padded_vocab,
            config.training.sequence_length,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage),
            position_embedding_type="rope",
            rotary_base=config.model.rope_base,
            share_embeddings_and_output_weights=config.model.tied_embeddings,
            vp_stage=stage,
        )
        backend.adapt(chunk, config.model.rope_base)
        initialise(chunk, config)
        chunks.append(chunk.to(backend.device))
    return chunks


def layer_spec(config: RunConfig) -> ModuleSpec:
    """megatron-core's own layers with our core attention."""
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = attention.core(config)
    return spec


@torch.no_grad()
def initialise(chunk: Any, config: RunConfig) -> None:
    """Draw the chunk's matrices from generators seeded by global parameter names; norms stay 1, biases 0."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    numbers = [layer.layer_number - 1 for layer in chunk.decoder.layers]  # 0-based over the whole model
    for local, parameter in chunk.named_parameters():
        if parameter.dim() < 2:
            continue
        name = _global_name(local, numbers)
        deviation = config.training.init_std
        if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
            deviation /= math.sqrt(2 * config.model.layers)  # what adds to the residual stream, as in Megatron
        draw = torch.Generator().manual_seed(zlib.crc32(f"{config.training.seed}:{name}".encode()))
        tensor = config.training.parallel.tensor if parameter.tensor_model_parallel else 1
        shape = list(parameter.shape)
        if tensor > 1:
            shape[parameter.partition_dim] *= tensor
        full = torch.empty(shape).normal_(0.0, deviation, generator=draw)
        parameter.copy_(shard(full, parameter.partition_dim, tensor, rank, gated="linear_fc1" in name))


def shard(full: torch.Tensor, dim: int, size: int, rank: int, *, gated: bool) -> torch.Tensor:
    """Rank `rank`'s part of a matrix cut into `size` along `dim`; of a gated one the part of gate and of up."""
    if size == 1:
        return full
    if gated:
        return torch.cat([half.chunk(size, dim)[rank] for half in full.chunk(2, dim)], dim)
    return full.chunk(size, dim)[rank]


def _global_name(local: str, numbers: list[int]) -> str:
    """A parameter's name with the layer's number in the whole model in place of the one in the chunk."""
    parts = local.split(".")
    if "layers" in parts:
        at = parts.index("layers") + 1
        parts[at] = str(numbers[int(parts[at])])
    return ".".join(parts)


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    """megatron-core's initialiser, which leaves the drawing to `initialise`."""
    return tensor
