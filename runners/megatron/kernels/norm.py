"""RMS norm of a sum: `y = (x + added) / rms(x + added) * weight`, and the sum itself for the residual stream.

Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

_PROGRAMS = 1024  # of the backward: each sums the weight's gradient over its rows, so the partial sums stay small


@triton.jit
def _forward(x, added, weight, y, total, rstd, columns, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    value = tl.load(x + row * columns + at, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(added + row * columns + at, mask=mask, other=0.0).to(tl.float32)
        stored = value.to(total.dtype.element_ty)
        tl.store(total + row * columns + at, stored, mask=mask)
        value = stored.to(tl.float32)  # what is normed is what the next layers see
    factor = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(rstd + row, factor)
    scale = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * columns + at, (value * factor * scale).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _backward(dy, dtotal, total, weight, rstd, dx, partial, rows, columns, per_program, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    scale = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    summed = tl.zeros([BLOCK], dtype=tl.float32)
    first = program * per_program
    for row in range(first, tl.minimum(first + per_program, rows)):
        value = tl.load(total + row * columns + at, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(dy + row * columns + at, mask=mask, other=0.0).to(tl.float32)
        residual = tl.load(dtotal + row * columns + at, mask=mask, other=0.0).to(tl.float32)
        factor = tl.load(rstd + row)
        unit = value * factor
        weighted = gradient * scale
        inner = tl.sum(unit * weighted, axis=0) / columns
        result = (weighted - unit * inner) * factor + residual
        tl.store(dx + row * columns + at, result.to(dx.dtype.element_ty), mask=mask)
        summed += gradient * unit
    tl.store(partial + program * columns + at, summed, mask=mask)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> Any:
        columns = x.shape[-1]
        rows = x.numel() // columns
        x = x.contiguous()
        y, rstd = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        other = x if added is None else added.contiguous()
        total = x if added is None else torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        _forward[(rows,)](x, other, weight, y, total, rstd, columns, eps, ADD=added is not None, BLOCK=block)
        ctx.save_for_backward(total, weight, rstd)
        ctx.added = added is not None
        ctx.set_materialize_grads(True)
        return y, total.view_as(total) if added is None else total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor, dtotal: torch.Tensor) -> Any:
        total, weight, rstd = ctx.saved_tensors
        columns = total.shape[-1]
        rows = rstd.numel()
        programs = min(_PROGRAMS, rows)
        per_program = -(-rows // programs)
        dx = torch.empty_like(total)
        partial = torch.empty(programs, columns, dtype=torch.float32, device=total.device)
        _backward[(programs,)](
            dy.contiguous(),
            dtotal.contiguous(),
            total,
            weight,
            rstd,
            dx,
            partial,
            rows,
            columns,
            per_program,
            BLOCK=triton.next_power_of_2(columns),
        )
        return dx, dx if ctx.added else None, partial.sum(0).to(weight.dtype), None


def add_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, total): total is x + added ([..., columns] both; `added` None: x itself), normed its RMS norm times
    `weight` [columns]. Use `total` as the residual from then on: its gradient joins in the same pass.
    """
    normed, total = _AddNorm.apply(x, added, weight, eps)
    return normed, total


def plain(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch."""
    total = x if added is None else x + added
    value = total.float()
    factor = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    return (value * factor * weight.float()).to(x.dtype), total
