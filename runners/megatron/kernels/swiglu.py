"""SwiGLU: `silu(gate) * up` of one projection that holds both. Source: Shazeer, GLU Variants (2020)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

_BLOCK = 1024


@triton.jit
def _forward(both, y, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    gate = tl.load(both + row * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * width + at, (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _backward(both, dy, dboth, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    here = row * 2 * width + at
    gate = tl.load(both + here, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + here + width, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(dy + row * width + at, mask=mask, other=0.0).to(tl.float32)
    soft = tl.sigmoid(gate)
    silu = gate * soft
    dgate = gradient * up * (soft + silu * (1.0 - soft))
    tl.store(dboth + here, dgate.to(dboth.dtype.element_ty), mask=mask)
    tl.store(dboth + here + width, (gradient * silu).to(dboth.dtype.element_ty), mask=mask)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: torch.Tensor) -> torch.Tensor:
        both = both.contiguous()
        width = both.shape[-1] // 2
        y = both.new_empty(*both.shape[:-1], width)
        _forward[(y.numel() // width, triton.cdiv(width, _BLOCK))](both, y, width, BLOCK=_BLOCK)
        ctx.save_for_backward(both)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        (both,) = ctx.saved_tensors
        width = dy.shape[-1]
        dboth = torch.empty_like(both)
        grid = (dy.numel() // width, triton.cdiv(width, _BLOCK))
        _backward[grid](both, dy.contiguous(), dboth, width, BLOCK=_BLOCK)
        return dboth


def swiglu(both: torch.Tensor) -> torch.Tensor:
    """both [..., 2 x width], gate first -> [..., width]."""
    y: torch.Tensor = _Swiglu.apply(both)
    return y


def plain(both: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    gate, up = both.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(both.dtype)
