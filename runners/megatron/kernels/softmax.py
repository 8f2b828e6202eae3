"""Softmax cross entropy over rows of logits, whose gradient takes the logits' own place.

Two passes over a row of logits: greatest and sum of exponentials, then `softmax - one hot`. With the vocabulary cut
over tensor-parallel ranks the two passes are two launches with the ranks' reductions between them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from runners.megatron.rows import joined

_BLOCK = 8192
_WARPS = 16


@triton.jit
def _measure(row, width, BLOCK: tl.constexpr):
    """The greatest of a row and the sum of exp(value - greatest), both fp32."""
    greatest = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(row + at, mask=at < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(greatest, tl.max(value, axis=0))
        total = total * tl.exp(greatest - higher) + tl.sum(tl.exp(value - higher), axis=0)
        greatest = higher
    return greatest, total


@triton.jit
def _replace(row, width, label, greatest, total, BLOCK: tl.constexpr):
    """softmax - one hot in the row's place; zeros where the label is negative."""
    keep = tl.where(label >= 0, 1.0, 0.0)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < width
        value = tl.load(row + at, mask=mask, other=-float("inf")).to(tl.float32)
        value = tl.exp(value - greatest) / total - tl.where(at == label, 1.0, 0.0)
        tl.store(row + at, (value * keep).to(row.dtype.element_ty), mask=mask)


@triton.jit
def _whole(logits, labels, loss, width, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * width
    label = tl.load(labels + index)
    greatest, total = _measure(row, width, BLOCK)
    target = tl.load(row + tl.maximum(label, 0)).to(tl.float32)
    tl.store(loss + index, tl.where(label >= 0, tl.log(total) + greatest - target, 0.0))
    if GRADIENT:
        tl.debug_barrier()  # the target is read before another warp of this row writes its place
        _replace(row, width, label, greatest, total, BLOCK)


@triton.jit
def _parts(logits, labels, first, greatest, total, target, width, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * width
    most, summed = _measure(row, width, BLOCK)
    label = tl.load(labels + index) - first
    mine = (label >= 0) & (label < width)
    tl.store(greatest + index, most)
    tl.store(total + index, summed)
    tl.store(target + index, tl.load(row + tl.where(mine, label, 0), mask=mine, other=0.0).to(tl.float32))


@triton.jit
def _gradient(logits, labels, first, greatest, total, width, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + index)
    # A label of another rank's part stays valid and matches nothing here; only one below zero silences the row.
    local = tl.where(label < 0, -1, tl.where((label >= first) & (label < first + width), label - first, width))
    _replace(logits + index * width, width, local, tl.load(greatest + index), tl.load(total + index), BLOCK)


def loss_(logits: torch.Tensor, labels: torch.Tensor, group: Any = None, *, gradient: bool = True) -> torch.Tensor:
    """Cross entropy, fp32 [n], of logits [n, width] and labels int64 [n]; 0 where a label is negative.

    With `gradient` the logits are overwritten by the gradient of the losses' sum. `group`: the tensor-parallel ranks
    that hold `width` columns each, in the order of their ranks.
    """
    if not logits.is_contiguous():
        raise ValueError("logits must be contiguous: they are overwritten row by row")
    rows, width = logits.shape
    new = {"dtype": torch.float32, "device": logits.device}
    options: dict[str, Any] = {"BLOCK": _BLOCK, "num_warps": _WARPS}
    if group is None or group.size() == 1:
        loss = torch.empty(rows, **new)
        _whole[(rows,)](logits, labels, loss, width, GRADIENT=gradient, **options)
        return loss
    greatest, total, target = (torch.empty(rows, **new) for _ in range(3))
    first = group.rank() * width
    _parts[(rows,)](logits, labels, first, greatest, total, target, width, **options)
    loss, most = joined(greatest, total, target, labels, group)
    if gradient:
        _gradient[(rows,)](logits, labels, first, most, total, width, **options)
    return loss
