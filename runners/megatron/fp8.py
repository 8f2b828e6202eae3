"""Linears whose three products run in fp8: values and weights with a mantissa of 3 bits (e4m3), gradients 2 (e5m2).

Source: Micikevicius et al., FP8 Formats for Deep Learning (2022), with one scale a tensor, taken anew each time from
its greatest value. Weights, their gradients' sums, norms, attention, logits and loss stay as in bf16. OCP's formats
(fn) and those of AMD's MI300 (fnuz) have different ranges: which one ran is in the `kernels` line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from torch.autograd.function import once_differentiable

Cast = Callable[[torch.Tensor, torch.Tensor, torch.dtype], tuple[torch.Tensor, torch.Tensor]]
FORMATS = {
    "e4m3fn": (torch.float8_e4m3fn, torch.float8_e5m2),
    "e4m3fnuz": (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
}
STEP = 16  # what the sizes of a product must divide by


@dataclass(frozen=True)
class Format:
    """The types of values and of gradients, and what casts them."""

    values: torch.dtype
    gradients: torch.dtype
    cast: Cast


@dataclass(frozen=True)
class Held:
    """A matrix [m, n] in fp8, its transpose [n, m], and what one of their steps is worth (fp32 scalar)."""

    straight: torch.Tensor
    across: torch.Tensor
    worth: torch.Tensor


def held(x: torch.Tensor, dtype: torch.dtype, cast: Cast) -> Held:
    """x [m, n] in fp8, its greatest value at the format's greatest."""
    most = torch.linalg.vector_norm(x, float("inf"), dtype=torch.float32).clamp_(min=1e-12)
    scale = torch.finfo(dtype).max / most
    straight, across = cast(x, scale, dtype)
    return Held(straight, across, scale.reciprocal())


def product(
    left: torch.Tensor, left_worth: torch.Tensor, right: torch.Tensor, right_worth: torch.Tensor, **options: Any
) -> torch.Tensor:
    """left [m, k] times right [n, k] transposed -> [m, n]."""
    result: torch.Tensor = torch._scaled_mm(left, right.t(), scale_a=left_worth, scale_b=right_worth, **options)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, kind: Format) -> torch.Tensor:
        values, factors = (held(m, kind.values, kind.cast) for m in (x.flatten(0, -2), weight))
        y = product(
            values.straight, values.worth, factors.straight, factors.worth, out_dtype=x.dtype, use_fast_accum=True
        )
        ctx.save_for_backward(values.across, values.worth, factors.across, factors.worth)
        ctx.weight = weight  # itself: what recomputing hands back in its place has no buffer for the gradient
        ctx.kind = kind
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x_across, x_worth, weight_across, weight_worth = ctx.saved_tensors
        kind: Format = ctx.kind
        weight = ctx.weight
        gradient = held(dy.flatten(0, -2), kind.gradients, kind.cast)
        dx = product(gradient.straight, gradient.worth, weight_across, weight_worth, out_dtype=dy.dtype)
        total = getattr(weight, "main_grad", None)
        dtype = dy.dtype if total is None else total.dtype
        dweight = product(gradient.across, gradient.worth, x_across, x_worth, out_dtype=dtype)
        if total is not None:
            if weight.grad_added_to_main_grad:
                total.add_(dweight)
            else:
                total.copy_(dweight)
                weight.grad_added_to_main_grad = True
            dweight = weight.new_empty(weight.shape)  # only calls the hook that counts this gradient as ready
        return dx.view(*dy.shape[:-1], -1), dweight, None


def adopt(module: Any, kind: Format) -> None:
    """Have megatron-core's parallel linear `module` compute in fp8."""

    def forward(
        *,
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor,
        bias: Any,
        allreduce_dgrad: bool = False,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        **_options: Any,
    ) -> torch.Tensor:
        if sequence_parallel:
            input = gather_from_sequence_parallel_region(input, group=tp_group)  # noqa: A001
        elif allreduce_dgrad:
            input = copy_to_tensor_model_parallel_region(input, group=tp_group)  # noqa: A001
        result: torch.Tensor = _Linear.apply(input, weight, kind)
        return result if bias is None else result + bias

    module._forward_impl = forward
