"""Context parallelism: each rank of the group holds a part of every sequence.

A sequence is cut into 2 x size chunks and rank r holds chunks r and 2 x size - 1 - r, as megatron-core does it: early
chunks see few keys, late ones many, so that all ranks work alike on causal attention. Keys and values are gathered
over the group before attention; on the way back their gradients are summed and scattered.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

# torch renamed them in 2.13 and warns of the old names; both do the same on whole tensors.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def chunks(rank: int, size: int) -> tuple[int, int]:
    """The two chunks, of 2 x `size`, that `rank` holds, in the order in which it holds them."""
    return rank, 2 * size - 1 - rank


def cut(whole: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """This rank's part of a tensor along its sequence dimension, whose length must divide by 2 x the group's size."""
    size = group.size() if group is not None else 1
    if size == 1:
        return whole
    parts = whole.chunk(2 * size, dim)
    return torch.cat([parts[chunk] for chunk in chunks(group.rank(), size)], dim)


def whole(part: torch.Tensor, group: Any) -> torch.Tensor:
    """The whole tensor, in order, of the ranks' parts along the first dimension; differentiable."""
    gathered: torch.Tensor = _Whole.apply(part, group)
    return gathered


class _Whole(torch.autograd.Function):
    """Gather forward, sum and scatter backward."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        """part [s, ...] -> [s x size, ...]."""
        ctx.group, size = group, group.size()
        gathered = part.new_empty(size * part.shape[0], *part.shape[1:])
        _gather(gathered, part.contiguous(), group=group)
        held = [chunk for rank in range(size) for chunk in chunks(rank, size)]
        pieces = gathered.chunk(2 * size)
        return torch.cat([pieces[held.index(chunk)] for chunk in range(2 * size)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient of the whole, which each rank has its own share of, -> the gradient of the part."""
        (gradient,), size = gradients, ctx.group.size()
        pieces = gradient.chunk(2 * size)
        held = [chunk for rank in range(size) for chunk in chunks(rank, size)]
        part = gradient.new_empty(gradient.shape[0] // size, *gradient.shape[1:])
        _scatter(part, torch.cat([pieces[chunk] for chunk in held]), group=ctx.group)
        return part, None
