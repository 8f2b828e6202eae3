"""The cross entropy of rows of logits in torch's own operations, and the reductions over tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def plain_(logits: torch.Tensor, labels: torch.Tensor, group: Any = None, *, gradient: bool = True) -> torch.Tensor:
    """Cross entropy, fp32 [n], of logits [n, width] and labels int64 [n]; 0 where a label is negative.

    With `gradient` the logits are overwritten by the gradient of the losses' sum. `group`: the tensor-parallel ranks
    that hold `width` columns each, in the order of their ranks.
    """
    width = logits.shape[1]
    first = 0 if group is None else group.rank() * width
    value = logits.float()
    greatest = value.amax(1)
    total = (value - greatest[:, None]).exp().sum(1)
    mine = (labels >= first) & (labels < first + width)
    local = torch.where(mine, labels - first, 0)
    target = torch.where(mine, value.gather(1, local[:, None])[:, 0], 0.0)
    loss, most = joined(greatest, total, target, labels, group)
    if gradient:
        value.sub_(most[:, None]).exp_().div_(total[:, None])
        value.scatter_add_(1, local[:, None], -mine.float()[:, None])
        logits.copy_(value.mul_((labels >= 0).float()[:, None]))
    return loss


def joined(
    greatest: torch.Tensor, total: torch.Tensor, target: torch.Tensor, labels: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses and the greatest over all ranks; `total` becomes the sum over all ranks, seen from that greatest."""
    most = greatest
    if group is not None and group.size() > 1:
        most = greatest.clone()
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        total.mul_((greatest - most).exp_())
        both = torch.stack([total, target])
        dist.all_reduce(both, group=group)
        total.copy_(both[0])
        target = both[1]
    return torch.where(labels >= 0, total.log() + most - target, 0.0), most
