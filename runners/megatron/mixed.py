"""The update on GPUs: megatron-core's optimizers with master weights in fp32, around torch's fused AdamW."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.grad_scaler import DynamicGradScaler
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer

from runners.megatron import optimizer
from runners.schema import Training


class MixedUpdates:
    """One step of AdamW over `chunks`, wrapped by megatron-core's data parallelism."""

    def __init__(self, chunks: list[Any], training: Training, groups: Any) -> None:
        self.training = training
        fused = training.kernels.optimizer != "plain"
        parameters = [p for chunk in chunks for p in chunk.parameters() if p.requires_grad]
        adam = torch.optim.AdamW(
            [
                {**part, "wd_mult": float(part["weight_decay"] > 0), "lr_mult": 1.0, "is_expert_parallel": False}
                for part in optimizer.groups(parameters, training.weight_decay)
            ],
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_eps,
            fused=fused,
            foreach=None if fused else True,
        )
        self.inner = _inner(adam, chunks, training, groups)
        self.inner.tp_group = groups.tp
        if training.precision == "fp16":
            for chunk in chunks:
                chunk.config.grad_scale_func = self.inner.scale_loss

    @property
    def loss_scale(self) -> float:
        """fp16's factor on the loss; 1 for other precisions."""
        return float(self.inner.get_loss_scale())

    @torch.no_grad()
    def step(self, rate: float) -> tuple[float, bool]:
        """Update with learning rate `rate`; returns the gradient's norm and whether the update was skipped because
        it is not finite.
        """
        overflow = self.inner.prepare_grads()
        norm = math.inf if overflow else float(self.inner.get_grad_norm())
        if not math.isfinite(norm):
            return norm, True
        factor = optimizer.clip_factor(norm, self.training.clip_grad)
        if factor != 1.0:
            grads = [p.grad for group in self.inner.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(grads, factor)
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step_with_ready_grads()
        return norm, False


def _inner(adam: torch.optim.AdamW, chunks: list[Any], training: Training, groups: Any) -> Any:
    """megatron-core's optimizer around `adam`."""
    low = training.precision in ("bf16", "fp16", "fp8")
    config = OptimizerConfig(
        optimizer="adam",
        lr=training.learning_rate,
        min_lr=training.min_learning_rate,
        weight_decay=training.weight_decay,
        fp16=training.precision == "fp16",
        bf16=training.precision in ("bf16", "fp8"),
        params_dtype=next(chunks[0].parameters()).dtype,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        adam_eps=training.adam_eps,
        clip_grad=training.clip_grad,
        use_distributed_optimizer=training.distributed_optimizer,
    )
    scaler = None
    if training.precision == "fp16":
        scale = training.loss_scale
        scaler = DynamicGradScaler(scale.initial, scale.least, 2.0, 0.5, scale.window, hysteresis=2)
    if training.distributed_optimizer:
        return DistributedOptimizer(
            adam,
            config,
            scaler,
            _states,
            model_chunks=chunks,
            per_model_buffers={index: chunk.buffers for index, chunk in enumerate(chunks)},
            data_parallel_group=groups.dp_cp,
            data_parallel_group_gloo=None,
            data_parallel_group_idx=groups.mp.rank(),
            distributed_optimizer_instance_id=0,
        )
    kind = Float16OptimizerWithFloat16Params if low else FP32Optimizer
    inner = kind(adam, config, scaler, _states) if low else kind(adam, config, _states)
    inner.grad_stats_parallel_group = groups.mp
    return inner


def _states(adam: Any, _config: Any = None) -> None:
    """megatron-core's hook: the moments of parameters that have none yet."""
    for group in adam.param_groups:
        for parameter in group["params"]:
            if not adam.state[parameter]:
                adam.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                adam.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
