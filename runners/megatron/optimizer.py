"""Learning rate, weight-decay groups, clipping, and the update on the host; that on GPUs is in mixed.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared

from runners.schema import Training


def learning_rate(training: Training, step: int) -> float:
    """The rate of iteration `step`, counted from 1: linear warm-up, then cosine down to the minimum, or constant."""
    warmup, total = training.warmup, training.decay
    if step <= warmup:
        return training.learning_rate * step / warmup
    if training.schedule == "constant":
        return training.learning_rate
    if step >= total:
        return training.min_learning_rate
    done = (step - warmup) / (total - warmup)
    span = training.learning_rate - training.min_learning_rate
    return training.min_learning_rate + 0.5 * span * (1 + math.cos(math.pi * done))


def groups(parameters: Iterable[Any], weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's groups: matrices decay, vectors (norms, biases) do not; a group without parameters is left out."""
    everything = list(parameters)
    split = (
        {"params": [p for p in everything if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in everything if p.dim() <= 1], "weight_decay": 0.0},
    )
    return [group for group in split if group["params"]]


class Updates(Protocol):
    """What updates the parameters of this rank once the gradients are there."""

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before the backward: above 1 for fp16 only."""

    def step(self, rate: float) -> tuple[float, bool]:
        """Update with learning rate `rate`; returns the whole gradient's norm before clipping, and whether the update
        was skipped because it is not finite, on all ranks alike.
        """


class HostUpdates:
    """fp32 on the host: torch's AdamW with its fused CPU kernel, one pass over the state."""

    loss_scale = 1.0

    def __init__(self, chunks: list[Any], training: Training, process_groups: Any) -> None:
        self.chunks, self.training, self.groups = chunks, training, process_groups
        self.parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
        self.adam = torch.optim.AdamW(
            groups(self.parameters, training.weight_decay),
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_eps,
            fused=True,
        )

    def step(self, rate: float) -> tuple[float, bool]:
        """As Updates says."""
        norm = gradient_norm(self.parameters, self.groups.tp, self.groups.mp)
        if not math.isfinite(norm):
            return norm, True
        factor = clip_factor(norm, self.training.clip_grad)
        if factor != 1.0:
            for chunk in self.chunks:
                chunk.scale_gradients(factor)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        return norm, False


def gradient_norm(parameters: Iterable[Any], tensor_group: Any, model_group: Any) -> float:
    """The 2-norm of the whole model's gradient, the same number on all ranks of `model_group` (tensor x pipeline).

    A parameter that several ranks hold alike counts once.
    """
    own = [
        parameter.grad
        for parameter in parameters
        if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter, tensor_group)
    ]
    square = torch.nn.utils.get_total_norm(own).double().square()
    if model_group.size() > 1:
        dist.all_reduce(square, group=model_group)
    return float(square.sqrt())


def clip_factor(norm: float, limit: float) -> float:
    """What gradients are multiplied by so that their norm is at most `limit`; 1 where it is, or `limit` is 0."""
    return limit / (norm + 1e-6) if limit and norm > limit else 1.0
