"""A decoder as megatron-core's GPTModel, with attention by torch's own kernel.

The initial weights depend on the seed and on a parameter's global name only, so that every parallel layout starts
from the same model.
"""

from __future__ import annotations

import math
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from runners.megatron import architecture, attention, layout, recompute, weights
from runners.megatron.backend import Backend
from runners.megatron.layer import Decoder, FusedLayer
from runners.megatron.norms import Norm
from runners.schema import RunConfig

_DRAWERS = 16  # threads; each holds one whole parameter in fp32 meanwhile


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
        layernorm_epsilon=model.norm_eps,
        **architecture.transformer_options(model),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method=_keep,
        output_layer_init_method=_keep,
        embedding_init_method=_keep,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline,
        context_parallel_size=parallel.context,
        sequence_parallel=parallel.sequence,
        deallocate_pipeline_outputs=True,
        finalize_model_grads_func=finalize_model_grads,
        **backend.transformer_options(training),
    )


def build(config: RunConfig, backend: Backend, padded_vocab: int) -> list[Any]:
    """This rank's chunks of the model, first to last: one, or one for each virtual pipeline stage."""
    chunks = []
    source = weights.source(config, padded_vocab)
    kernels = backend.kernels(config)
    for index in range(config.training.parallel.virtual_pipeline or 1):
        stage = index if config.training.parallel.virtual_pipeline else None
        shape = transformer_config(config, backend)
        layers = [layer_spec(config, kernels["layer"])] * get_num_layers_to_build(shape, stage)
        chunk = Decoder(
            shape,
            TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm),
            padded_vocab,
            config.model.max_sequence or config.training.sequence_length,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage),
            **architecture.model_options(config.model),
            share_embeddings_and_output_weights=config.model.tied_embeddings,
            vp_stage=stage,
        )
        if kernels["loss"] == "fused":
            chunk.loss = {"chunk": config.training.kernels.loss_chunk, "rows": backend.row_loss()}
        backend.adapt(chunk, config)
        architecture.adapt(chunk, config.model)
        fill(chunk, config, source)
        chunks.append(chunk.to(backend.device))
    return chunks


def layer_spec(config: RunConfig, layer: str) -> ModuleSpec:
    """megatron-core's own modules with our core attention, in its own layer (`layer` plain) or in ours (fused)."""
    spec = get_gpt_layer_local_spec(normalization=architecture.normalization(config.model))
    if layer == "fused":
        spec.module = FusedLayer
    spec.module = recompute.layer(spec.module, config.training.recompute)
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    spec.submodules.self_attention.submodules.core_attention = attention.core(config)
    return spec


def fill(chunk: Any, config: RunConfig, source: weights.Source | None) -> None:
    """Give the chunk its first weights: those of model.weights, else random ones."""
    if source is None:
        initialise(chunk, config)
    else:
        weights.load(chunk, source, parallel_state.get_tensor_model_parallel_rank(), config.training.parallel.tensor)


@torch.no_grad()
def initialise(chunk: Any, config: RunConfig) -> None:
    """Draw the chunk's matrices from generators seeded by global parameter names; norms stay 1, biases 0.

    Drawn on the host, so that every vendor's GPU starts from the same weights, by several threads: each parameter has
    a generator of its own. Both copies of tied embeddings, on the first and last pipeline stage, go by one name.
    """
    wanted = [(name, parameter) for name, parameter in layout.named(chunk) if parameter.dim() > 1]
    threads = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    with ThreadPoolExecutor(min(threads, _DRAWERS)) as pool:
        for _ in pool.map(lambda named: _draw(*named, config), wanted):
            pass


@torch.no_grad()
def _draw(name: str, parameter: torch.Tensor, config: RunConfig) -> None:
    deviation = config.training.init_std
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        deviation /= math.sqrt(2 * config.model.layers)  # what adds to the residual stream, as in Megatron
    draw = torch.Generator().manual_seed(zlib.crc32(f"{config.training.seed}:{name}".encode()))
    whole = not getattr(parameter, "tensor_model_parallel", False)  # a table of positions has no such mark
    tensor = 1 if whole else config.training.parallel.tensor
    shape = list(parameter.shape)
    if tensor > 1:
        shape[parameter.partition_dim] *= tensor
    full = torch.empty(shape).normal_(0.0, deviation, generator=draw)
    rank = parallel_state.get_tensor_model_parallel_rank()
    gated = "linear_fc1" in name and config.model.architecture == "llama"
    parameter.copy_(full if whole else shard(full, parameter.partition_dim, tensor, rank, gated=gated))


def shard(full: torch.Tensor, dim: int, size: int, rank: int, *, gated: bool) -> torch.Tensor:
    """Rank `rank`'s part of a matrix cut into `size` along `dim`; of a gated one the part of gate and of up."""
    if size == 1:
        return full
    if gated:
        return torch.cat([half.chunk(size, dim)[rank] for half in full.chunk(2, dim)], dim)
    return full.chunk(size, dim)[rank]


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    """megatron-core's initialiser, which leaves the drawing to `initialise`."""
    return tensor
