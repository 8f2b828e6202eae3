"""Learning rate, weight-decay groups and clipping; the update itself is the backend's AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared

from runners.schema import Training


def learning_rate(training: Training, step: int) -> float:
    """The rate of iteration `step`, counted from 1: linear warm-up, then cosine down to the minimum, or constant."""
    warmup, total = training.warmup_steps, training.train_iters
    if step <= warmup:
        return training.learning_rate * step / warmup
    if training.schedule == "constant":
        return training.learning_rate
    done = min(1.0, (step - warmup) / (total - warmup))
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
