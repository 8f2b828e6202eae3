"""Each GPU kernel against its formula in torch: the greatest relative difference of its values and gradients.

    python -m tests.bench.kernels

On this machine's GPU; without one TRITON_INTERPRET=1 has the kernels interpreted on the host, in fp32 alone. Prints a
line of JSON, a number for each case and type.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from runners.megatron import rows
from runners.megatron.kernels import adam, cast, norm, rope, softmax, swiglu
from runners.megatron.loss import linear_loss

VOCAB = 9000  # wider than a block of the softmax


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative difference of two tensors, by their norms."""
    a, b = a.detach().float(), b.detach().float()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def compared(ours: Callable[..., Any], plain: Callable[..., Any], *tensors: torch.Tensor) -> float:
    """The greatest difference of all values and gradients of two functions of `tensors`."""
    sides = [[tensor.clone().requires_grad_() for tensor in tensors] for _ in range(2)]
    found = [function(*side) for function, side in zip((ours, plain), sides, strict=True)]
    values = [one if isinstance(one, tuple) else (one,) for one in found]
    towards = [torch.randn_like(value) for value in values[1]]
    for one in values:
        torch.autograd.backward(one, towards)
    grads = [[tensor.grad for tensor in side] for side in sides]
    pairs = [*zip(*values, strict=True), *zip(*grads, strict=True)]
    return max(gap(a, b) for a, b in pairs if a is not None and b is not None)


def layer(dtype: torch.dtype) -> dict[str, float]:
    """The layer's kernels, at sizes that fill no block, so that their masks count."""
    x, y, w = torch.randn(3, 5, 48).to(dtype), torch.randn(3, 5, 48).to(dtype), torch.rand(48).to(dtype)
    angles = torch.rand(6, 1, 1, 12) * 6
    cos, sin = rope.tables(torch.cat([angles, angles], -1))
    mixed = torch.randn(6, 2, 3 * (2 + 2) * 24).to(dtype)
    return {
        "norm": compared(
            lambda x, y, w: norm.add_norm(x, y, w, 1e-5), lambda x, y, w: norm.plain(x, y, w, 1e-5), x, y, w
        ),
        "norm_alone": compared(
            lambda x, w: norm.add_norm(x, None, w, 1e-5), lambda x, w: norm.plain(x, None, w, 1e-5), x, w
        ),
        "swiglu": compared(swiglu.swiglu, swiglu.plain, torch.randn(2, 3, 2 * 1100).to(dtype)),
        "rope": compared(lambda m: rope.split(m, cos, sin, 3, 2), lambda m: rope.plain(m, cos, sin, 3, 2), mixed),
    }


def loss(dtype: torch.dtype) -> dict[str, float]:
    """The fused loss, with and without labels to leave out, against torch's cross entropy in fp32."""
    hidden, table = torch.randn(20, 16).to(dtype), torch.randn(VOCAB, 16).to(dtype)
    labels = torch.randint(0, VOCAB, (20,))
    ignored = labels.clone()
    ignored[3] = -100

    def ours(wanted: torch.Tensor, how: Any) -> Callable[..., Any]:
        return lambda h, w: linear_loss(h, w, wanted, chunk=8, rows=how)

    def reference(wanted: torch.Tensor) -> Callable[..., Any]:
        return lambda h, w: functional.cross_entropy(h.float() @ w.float().t(), wanted)

    return {
        "loss": compared(ours(labels, softmax.loss_), reference(labels), hidden, table),
        "ignored": compared(ours(ignored, softmax.loss_), reference(ignored), hidden, table),
        "rows": compared(ours(ignored, rows.plain_), reference(ignored), hidden, table),
    }


def optimizer(dtype: torch.dtype | None) -> dict[str, float]:
    """AdamW with a low-precision weight of `dtype` beside its master weight; None has none."""
    slots = []
    for count in (5, 3000, 70000):
        master = torch.randn(count)
        weight = master.to(dtype) if dtype is not None else None
        slots.append(adam.Slot(torch.randn(count), master, torch.rand(count), torch.rand(count), weight, count > 5))
    twin = copy.deepcopy(slots)
    how: dict[str, Any] = {"rate": 1e-2, "decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "step": 3, "factor": 0.5}
    adam.update(adam.Table(slots), **how)
    adam.plain(twin, **how)
    kept = ("master", "first", "second")
    name = "adam" if dtype is not None else "adam_fp32"
    found = {name: max(gap(getattr(a, k), getattr(b, k)) for a, b in zip(slots, twin, strict=True) for k in kept)}
    pairs = [(a.weight, b.weight) for a, b in zip(slots, twin, strict=True)]
    if dtype is not None:
        found["adam_weight"] = max(gap(a, b) for a, b in pairs if a is not None and b is not None)
    return found


def casts() -> dict[str, float]:
    """The cast to fp8 and its transpose."""
    matrix, scale = torch.randn(70, 100), torch.tensor(30.0)
    ours, plain = (function(matrix, scale, torch.float8_e5m2) for function in (cast.both, cast.plain))
    return {
        "cast": max(gap(a, b) for a, b in zip(ours, plain, strict=True)),
        "cast_across": gap(ours[1].float(), ours[0].float().t()),
    }


def measure() -> dict[str, float]:
    """All cases on this machine."""
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    torch.set_default_device("cuda" if gpu else "cpu")
    found = {**layer(torch.float32), **loss(torch.float32), **optimizer(torch.bfloat16), **optimizer(None), **casts()}
    if gpu:
        low = {**layer(torch.bfloat16), **loss(torch.bfloat16)}
        found |= {f"{name}_bf16": value for name, value in low.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(measure()))
