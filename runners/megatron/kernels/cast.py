"""A matrix in fp8 and, in the same pass, its transpose: such products want both factors laid along their sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 64


@triton.jit
def _both(x, scale, straight, across, rows, columns, limit, TILE: tl.constexpr):
    row = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    column = (tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE))[None, :]
    mask = (row < rows) & (column < columns)
    value = tl.load(x + row * columns + column, mask=mask, other=0.0).to(tl.float32) * tl.load(scale)
    value = tl.minimum(tl.maximum(value, -limit), limit).to(straight.dtype.element_ty)
    tl.store(straight + row * columns + column, value, mask=mask)
    tl.store(across + column * rows + row, value, mask=mask)


def both(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [m, n] times `scale` (fp32 scalar) in `dtype`, held within its range: [m, n] and [n, m]."""
    rows, columns = x.shape
    straight = torch.empty(rows, columns, dtype=dtype, device=x.device)
    across = torch.empty(columns, rows, dtype=dtype, device=x.device)
    grid = (triton.cdiv(rows, _TILE), triton.cdiv(columns, _TILE))
    _both[grid](x.contiguous(), scale, straight, across, rows, columns, torch.finfo(dtype).max, TILE=_TILE)
    return straight, across


def plain(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch."""
    limit = torch.finfo(dtype).max
    straight = (x.float() * scale).clamp_(-limit, limit).to(dtype)
    return straight, straight.t().contiguous()
