"""AdamW over many tensors in one launch, which writes the low-precision weights in the same pass.

Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019). A value of 16 bits costs 30 bytes of
memory traffic a step: gradient 4, master weight 8, moments 16, weight 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BLOCK = 2048
_TILE = 1 << 16  # values a program works; a large tensor has many
_COLUMNS = (
    7  # of the table: gradient, master, first moment, second moment, weight, how many values, whether it decays
)


@triton.jit
def _update(
    table, rate, decay, beta1, beta2, eps, correction1, correction2, factor,
    GRADIENT: tl.constexpr, WEIGHT: tl.constexpr, WRITES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = table + tl.program_id(0) * 7
    gradients = tl.load(row).to(tl.pointer_type(GRADIENT))
    masters = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    firsts = tl.load(row + 2).to(tl.pointer_type(tl.float32))
    seconds = tl.load(row + 3).to(tl.pointer_type(tl.float32))
    weights = tl.load(row + 4).to(tl.pointer_type(WEIGHT))
    count = tl.load(row + 5)
    shrink = 1.0 - rate * decay * tl.load(row + 6).to(tl.float32)
    for start in range(0, TILE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < count
        gradient = tl.load(gradients + at, mask=mask, other=0.0).to(tl.float32) * factor
        first = beta1 * tl.load(firsts + at, mask=mask, other=0.0) + (1.0 - beta1) * gradient
        second = beta2 * tl.load(seconds + at, mask=mask, other=0.0) + (1.0 - beta2) * gradient * gradient
        master = tl.load(masters + at, mask=mask, other=0.0) * shrink
        master -= rate / correction1 * first / (tl.sqrt(second / correction2) + eps)
        tl.store(firsts + at, first, mask=mask)
        tl.store(seconds + at, second, mask=mask)
        tl.store(masters + at, master, mask=mask)
        if WRITES:
            tl.store(weights + at, master.to(WEIGHT), mask=mask)


@dataclass(frozen=True)
class Slot:
    """One parameter's tensors, flat and of one length; `weight` None where the master weight is the weight itself."""

    gradient: torch.Tensor
    master: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    weight: torch.Tensor | None
    decays: bool


class Table:
    """The addresses of all parameters' tensors, in tiles, on the GPU."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.kept = slots  # their memory must not move or go
        writes = {slot.weight is not None for slot in slots}
        types = (
            {slot.gradient.dtype for slot in slots},
            {slot.weight.dtype for slot in slots if slot.weight is not None},
        )
        if len(writes) != 1 or any(len(found) > 1 for found in types):
            raise ValueError("all parameters must have gradients of one type and weights of one type")
        self.writes = writes.pop()
        self.gradient = _TYPES[slots[0].gradient.dtype]
        self.weight = _TYPES[slots[0].weight.dtype] if slots[0].weight is not None else tl.float32
        rows = [row for slot in slots for row in _tiles(slot)]
        self.rows = torch.tensor(rows, dtype=torch.int64).to(slots[0].master.device)


_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _tiles(slot: Slot) -> list[list[int]]:
    tensors = [slot.gradient, slot.master, slot.first, slot.second]
    weight = slot.weight
    rows = []
    for start in range(0, slot.master.numel(), _TILE):
        row = [tensor.data_ptr() + start * tensor.element_size() for tensor in tensors]
        row.append(0 if weight is None else weight.data_ptr() + start * weight.element_size())
        rows.append([*row, min(_TILE, slot.master.numel() - start), int(slot.decays)])
    return rows


def update(
    table: Table, *, rate: float, decay: float, betas: tuple[float, float], eps: float, step: int, factor: float
) -> None:
    """One step, counted from 1; gradients are multiplied by `factor` first (clipping, loss scale)."""
    _update[(len(table.rows),)](
        table.rows, rate, decay, betas[0], betas[1], eps, 1.0 - betas[0] ** step, 1.0 - betas[1] ** step, factor,
        GRADIENT=table.gradient, WEIGHT=table.weight, WRITES=table.writes, TILE=_TILE, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip


def plain(
    slots: Sequence[Slot],
    *,
    rate: float,
    decay: float,
    betas: tuple[float, float],
    eps: float,
    step: int,
    factor: float,
) -> None:
    """The same in torch."""
    for slot in slots:
        gradient = slot.gradient.float() * factor
        slot.first.lerp_(gradient, 1.0 - betas[0])
        slot.second.mul_(betas[1]).addcmul_(gradient, gradient, value=1.0 - betas[1])
        slot.master.mul_(1.0 - rate * decay * slot.decays)
        denominator = (slot.second / (1.0 - betas[1] ** step)).sqrt_().add_(eps)
        slot.master.addcdiv_(slot.first, denominator, value=-rate / (1.0 - betas[0] ** step))
        if slot.weight is not None:
            slot.weight.copy_(slot.master)
