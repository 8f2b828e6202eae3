"""The last projection and the cross entropy as one, a chunk of tokens at a time.

All logits of a micro batch (tokens x vocabulary, in fp32 several times over) are the largest thing that a training
would hold. Here a chunk's logits live only until their gradient has gone into the two products that need it, both
made in the forward pass; the backward pass only multiplies by the loss's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

RowLoss = Callable[..., torch.Tensor]  # kernels.softmax.loss_ or its plain twin


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        chunk: int,
        group: Any,
        rows: RowLoss,
        learns: bool,
    ) -> torch.Tensor:
        backward = learns and any(ctx.needs_input_grad[:2])
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        count = (labels >= 0).sum().clamp_(min=1)
        dhidden = torch.empty_like(hidden) if backward else None
        dweight: torch.Tensor | None = None
        for start in range(0, len(labels), chunk):
            part = slice(start, start + chunk)
            logits = hidden[part] @ weight.t()
            total += rows(logits, labels[part], group, gradient=backward).sum()
            if dhidden is not None:
                torch.mm(logits, weight, out=dhidden[part])
                dweight = _added(dweight, logits, hidden[part])
        if backward:
            ctx.save_for_backward(dhidden, dweight, count)
            ctx.dtype = weight.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: torch.Tensor) -> Any:
        dhidden, dweight, count = ctx.saved_tensors
        scale = dloss / count
        result = torch.empty_like(dweight, dtype=ctx.dtype)
        return dhidden.mul_(scale), torch.mul(dweight, scale, out=result), None, None, None, None, None


def _added(so_far: torch.Tensor | None, gradient: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The weight's gradient in fp32 over chunks: [n, vocabulary] and [n, hidden] -> [vocabulary, hidden]."""
    if gradient.dtype == torch.float32:
        part = gradient.t() @ hidden
        return part if so_far is None else so_far.add_(part)
    if gradient.is_cuda:  # the product itself is written, or added, in fp32
        if so_far is None:
            return torch.mm(gradient.t(), hidden, out_dtype=torch.float32)
        return torch.addmm(so_far, gradient.t(), hidden, out_dtype=torch.float32, out=so_far)
    part = (gradient.t() @ hidden).float()
    return part if so_far is None else so_far.add_(part)


def linear_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    chunk: int,
    rows: RowLoss,
    group: Any = None,
) -> torch.Tensor:
    """Mean cross entropy (fp32 scalar) of `hidden @ weight.T` over the labels that are not negative.

    hidden [n, h]; weight [width, h], this rank's rows of the vocabulary; labels int64 [n]. The gradient of `hidden`
    is this rank's part: `group`'s ranks have to sum theirs.
    """
    learns = (
        torch.is_grad_enabled()
    )  # asked here: within a Function's forward it never is, and a validation needs none
    loss: torch.Tensor = _LinearLoss.apply(hidden, weight, labels, chunk, group, rows, learns)
    return loss
