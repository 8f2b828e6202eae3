"""The update on GPUs: megatron-core's optimizers with master weights in fp32, around an AdamW in one launch."""

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
        adam = (FusedAdam if fused else torch.optim.AdamW)(
            [
                {**part, "wd_mult": float(part["weight_decay"] > 0), "lr_mult": 1.0, "is_expert_parallel": False}
                for part in optimizer.groups(parameters, training.weight_decay)
            ],
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_eps,
            foreach=True,
        )
        self.inner = _inner(adam, chunks, training, groups)
        self.inner.tp_group = groups.tp
        self.found: dict[torch.Tensor, torch.Tensor] = {}
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
        adam = self.inner.optimizer
        if isinstance(adam, FusedAdam):
            adam.factor, adam.weights = factor, self._weights()
        elif factor != 1.0:
            grads = [p.grad for group in self.inner.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(grads, factor)
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step_with_ready_grads()
        return norm, False

    def _weights(self) -> dict[torch.Tensor, torch.Tensor]:
        """The low-precision weight of each master weight, in the slice that this rank updates."""
        if not self.found:
            for masters, models in self.inner.pairs():
                for master, model in zip(masters, models, strict=True):
                    self.found[master] = self.inner.slice_of(model)
        return self.found


class FusedAdam(torch.optim.AdamW):
    """torch's AdamW by name, state and arithmetic, with an update of one launch a group (kernels/adam.py)."""

    factor = 1.0  # what gradients are multiplied by
    weights: dict[torch.Tensor, torch.Tensor]  # master weight -> where its low-precision copy is written

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights = {}
        self.tables: dict[int, tuple[list[int], Any]] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """As torch's, without a closure."""
        from runners.megatron.kernels import adam

        for index, group in enumerate(self.param_groups):
            held = [p for p in group["params"] if p.grad is not None]
            if not held:
                continue
            steps = self._steps(held)
            table = self._table(index, held, decays=group["weight_decay"] > 0)
            adam.update(
                table,
                rate=group["lr"],
                decay=group["weight_decay"],
                betas=group["betas"],
                eps=group["eps"],
                step=steps,
                factor=self.factor,
            )

    def _steps(self, held: list[torch.Tensor]) -> int:
        """Count this step in the state of each parameter, made where there is none; torch's own names."""
        for parameter in held:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] = state["step"] + 1 if "step" in state else torch.tensor(1.0)
        return int(self.state[held[0]]["step"])

    def _table(self, index: int, held: list[torch.Tensor], *, decays: bool) -> Any:
        """The group's table, made anew where a tensor of its was replaced, as by loading a checkpoint."""
        from runners.megatron.kernels import adam

        slots = [
            adam.Slot(p.grad, p, self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"], self.weights.get(p), decays)
            for p in held
        ]
        places = [tensor.data_ptr() for s in slots for tensor in (s.gradient, s.master, s.first, s.second)]
        if self.tables.get(index, ([], None))[0] != places:
            self.tables[index] = (places, adam.Table(slots))
        return self.tables[index][1]


class _Written:
    """An optimizer of megatron-core's whose AdamW writes the low-precision weights itself."""

    optimizer: Any
    writing = False

    def step_with_ready_grads(self) -> Any:
        """As megatron-core's; the copy after the update is left out where it is there already."""
        self.writing = isinstance(self.optimizer, FusedAdam)
        try:
            return super().step_with_ready_grads()  # type: ignore[misc]
        finally:
            self.writing = False

    def _copy_main_params_to_model_params(self) -> None:
        if not self.writing:
            super()._copy_main_params_to_model_params()  # type: ignore[misc]


class Distributed(_Written, DistributedOptimizer):
    """megatron-core's distributed optimizer."""

    def pairs(self) -> list[tuple[list[Any], list[Any]]]:
        """Master weights and the parameters that they belong to, group by group."""
        return list(zip(self.shard_fp32_from_float16_groups, self.model_float16_groups, strict=True))

    def slice_of(self, parameter: Any) -> torch.Tensor:
        """The part of `parameter`, flat, that this rank updates."""
        own = self._get_model_param_range_map(parameter)["gbuf_world_in_bucket"]
        buffer, _, bucket = self.model_param_gbuf_map[parameter]
        flat: torch.Tensor = self.buffers[buffer].buckets[bucket].param_data.view(-1)[own.start : own.end]
        return flat


class Whole(_Written, Float16OptimizerWithFloat16Params):
    """megatron-core's optimizer of low-precision weights, whole on each rank."""

    def pairs(self) -> list[tuple[list[Any], list[Any]]]:
        """Master weights and the parameters that they belong to, group by group."""
        return list(zip(self.fp32_from_float16_groups, self.float16_groups, strict=True))

    def slice_of(self, parameter: Any) -> torch.Tensor:
        """All of `parameter`, flat."""
        flat: torch.Tensor = parameter.data.view(-1)
        return flat


class Single(FP32Optimizer):
    """megatron-core's optimizer of fp32 weights, which are their own master weights."""

    def pairs(self) -> list[tuple[list[Any], list[Any]]]:
        """None."""
        return []


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
        return Distributed(
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
    inner = Whole(adam, config, scaler, _states) if low else Single(adam, config, _states)
    inner.grad_stats_parallel_group = groups.mp
    return inner


def _states(adam: Any, _config: Any = None) -> None:
    """megatron-core's hook: the moments of parameters that have none yet."""
    for group in adam.param_groups:
        for parameter in group["params"]:
            if not adam.state[parameter]:
                adam.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                adam.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
