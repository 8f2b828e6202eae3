"""The linear that writes its weight's gradient into a waiting buffer, also where its activations are recomputed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from runners.megatron import linear


def weight_with_buffer() -> Any:
    """A weight [3, 4] with the buffer that megatron-core's data parallelism gives it."""
    weight: Any = torch.nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    weight.main_grad = torch.full((3, 4), 7.0)
    weight.grad_added_to_main_grad = False
    return weight


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_first_product_of_a_step_overwrites_the_buffer_and_later_ones_add(recomputed: bool) -> None:
    weight, x = weight_with_buffer(), torch.randn(5, 2, 4, requires_grad=True)
    module: Any = SimpleNamespace()
    linear.adopt(module)

    def work(value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = module._forward_impl(input=value, weight=weight, bias=None)
        return result

    exact = torch.ones(10, 3).t() @ x.detach().flatten(0, 1)
    for times in (1, 2):
        y = checkpoint(work, x, use_reentrant=False) if recomputed else work(x)
        y.sum().backward()
        torch.testing.assert_close(weight.main_grad, times * exact)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * (torch.ones(5, 2, 3) @ weight.detach()))


def test_without_a_buffer_the_gradient_goes_where_torch_puts_it() -> None:
    weight, x = torch.nn.Parameter(torch.randn(3, 4)), torch.randn(5, 2, 4)
    options: dict[str, Any] = {
        "gradient_accumulation_fusion": False,
        "allreduce_dgrad": False,
        "sequence_parallel": False,
        "tp_group": None,
    }
    linear.forward(input=x, weight=weight, bias=None, **options).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.ones(10, 3).t() @ x.flatten(0, 1))
