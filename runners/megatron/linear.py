"""A linear whose weight's gradient is written, or added, where megatron-core's data parallelism keeps it.

megatron-core's own makes the gradient in the weight's type and adds it to the fp32 buffer afterwards: three passes
over memory that a matrix product can do while it writes its result. It has that too, by Apex's or TransformerEngine's
CUDA extension; torch's products with a result in fp32 do it on both vendors.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import linear_with_grad_accumulation_and_async_allreduce
from torch.autograd.function import once_differentiable


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight  # itself: what recomputing hands back in its place has no buffer for the gradient
        return x @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        (x,), weight = ctx.saved_tensors, ctx.weight
        dx = dy @ weight
        add_product(weight, dy.flatten(0, -2), x.flatten(0, -2))
        # What is returned only calls the hook that counts this gradient as ready; nobody reads its values.
        return dx, weight.new_empty(weight.shape)


def add_product(weight: torch.Tensor, dy: torch.Tensor, x: torch.Tensor) -> None:
    """weight.main_grad [out, in] (+)= dy.T @ x of dy [n, out] and x [n, in]: a step's first product overwrites."""
    total = weight.main_grad
    kind = {} if total.dtype == dy.dtype else {"out_dtype": total.dtype}
    if weight.grad_added_to_main_grad:
        torch.addmm(total, dy.t(), x, **kind, out=total)
    else:
        torch.mm(dy.t(), x, **kind, out=total)
        weight.grad_added_to_main_grad = True


def forward(*, input: torch.Tensor, weight: torch.Tensor, bias: Any, **options: Any) -> torch.Tensor:  # noqa: A002
    """megatron-core's linear over x [s, b, in]; ours where no tensor rank takes part and a buffer waits."""
    alone = not options.get("allreduce_dgrad") and not options.get("sequence_parallel")
    if alone and bias is None and weight.requires_grad and hasattr(weight, "main_grad"):
        result: torch.Tensor = _Linear.apply(input, weight)
    else:
        result = linear_with_grad_accumulation_and_async_allreduce(input=input, weight=weight, bias=bias, **options)
    return result


def adopt(module: Any) -> None:
    """Have megatron-core's parallel linear `module` compute by `forward`: its own place for another one."""
    module._forward_impl = forward
