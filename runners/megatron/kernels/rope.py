"""Splits a fused query-key-value projection and turns queries and keys by their positions, in one pass each way.

Source: Su et al., RoFormer (2021), in the half-split form of Llama: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).
The projection is megatron-core's: for each key-value group its query heads, its key, its value.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable


@triton.jit
def _turn(
    mixed, query, key, value, cosine, sine, batch,
    GROUPS: tl.constexpr, PER_GROUP: tl.constexpr, HALF: tl.constexpr,
    HEADS_BLOCK: tl.constexpr, GROUPS_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
    BACK: tl.constexpr,
):  # fmt: skip
    """One token. Forward: mixed -> query, key, value. Back: their gradients -> mixed, turned the other way."""
    token = tl.program_id(0).to(tl.int64)
    position = token // batch
    size: tl.constexpr = 2 * HALF
    row = mixed + token * (GROUPS * (PER_GROUP + 2) * size)
    at = tl.arange(0, HALF_BLOCK)[None, :]
    inside = at < HALF
    cos = tl.load(cosine + position * HALF + at, mask=inside, other=0.0)
    sin = tl.load(sine + position * HALF + at, mask=inside, other=0.0)
    if BACK:
        sin = -sin

    head = tl.arange(0, HEADS_BLOCK)[:, None]
    mask = (head < GROUPS * PER_GROUP) & inside
    there = row + ((head // PER_GROUP) * (PER_GROUP + 2) + head % PER_GROUP) * size + at
    own = query + (token * (GROUPS * PER_GROUP) + head) * size + at
    source = own if BACK else there
    target = there if BACK else own
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (low * cos - high * sin).to(target.dtype.element_ty), mask=mask)
    tl.store(target + HALF, (high * cos + low * sin).to(target.dtype.element_ty), mask=mask)

    group = tl.arange(0, GROUPS_BLOCK)[:, None]
    mask = (group < GROUPS) & inside
    there = row + (group * (PER_GROUP + 2) + PER_GROUP) * size + at
    own = key + (token * GROUPS + group) * size + at
    source = own if BACK else there
    target = there if BACK else own
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (low * cos - high * sin).to(target.dtype.element_ty), mask=mask)
    tl.store(target + HALF, (high * cos + low * sin).to(target.dtype.element_ty), mask=mask)

    there = there + size
    own = value + (token * GROUPS + group) * size + at
    source = own if BACK else there
    target = there if BACK else own
    tl.store(target, tl.load(source, mask=mask, other=0.0), mask=mask)
    tl.store(target + HALF, tl.load(source + HALF, mask=mask, other=0.0), mask=mask)


def _launch(mixed: Any, query: Any, key: Any, value: Any, cosine: Any, sine: Any, *, back: bool) -> None:
    length, batch, heads, size = query.shape
    groups = key.shape[2]
    _turn[(length * batch,)](
        mixed, query, key, value, cosine, sine, batch,
        GROUPS=groups, PER_GROUP=heads // groups, HALF=size // 2,
        HEADS_BLOCK=triton.next_power_of_2(heads), GROUPS_BLOCK=triton.next_power_of_2(groups),
        HALF_BLOCK=triton.next_power_of_2(size // 2), BACK=back,
    )  # fmt: skip


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed: Any, cosine: Any, sine: Any, groups: int, per_group: int) -> Any:
        length, batch, width = mixed.shape
        size = width // (groups * (per_group + 2))
        query = mixed.new_empty(length, batch, groups * per_group, size)
        key, value = (mixed.new_empty(length, batch, groups, size) for _ in range(2))
        _launch(mixed.contiguous(), query, key, value, cosine, sine, back=False)
        ctx.save_for_backward(cosine, sine)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dquery: Any, dkey: Any, dvalue: Any) -> Any:
        cosine, sine = ctx.saved_tensors
        length, batch, heads, size = dquery.shape
        mixed = dquery.new_empty(length, batch, (heads + 2 * dkey.shape[2]) * size)
        _launch(mixed, dquery.contiguous(), dkey.contiguous(), dvalue.contiguous(), cosine, sine, back=True)
        return mixed, None, None, None, None


def tables(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, fp32 [sequence, size / 2], of megatron-core's angles [sequence, 1, 1, size], halves alike."""
    half = angles[:, 0, 0, : angles.shape[-1] // 2].float()
    return half.cos().contiguous(), half.sin().contiguous()


def split(
    mixed: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, groups: int, per_group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """mixed [s, b, groups x (per_group + 2) x size] -> query [s, b, heads, size], key and value [s, b, groups, size].

    `cosine` and `sine` are fp32 [s, size / 2].
    """
    query, key, value = _Split.apply(mixed, cosine, sine, groups, per_group)
    return query, key, value


def plain(
    mixed: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, groups: int, per_group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in torch."""
    length, batch, _ = mixed.shape
    parts = mixed.view(length, batch, groups, per_group + 2, -1)
    query = parts[..., :per_group, :].reshape(length, batch, groups * per_group, -1)
    cos, sin = (table[:, None, None, :] for table in (cosine, sine))

    def turned(x: torch.Tensor) -> torch.Tensor:
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)

    return turned(query), turned(parts[..., per_group, :]), parts[..., per_group + 1, :]
