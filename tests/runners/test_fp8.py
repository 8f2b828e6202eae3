"""A linear in fp8: near the exact product, within its range, and its weight's gradient where it belongs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.megatron import fp8
from runners.megatron.kernels.cast import plain

KIND = fp8.Format(*fp8.FORMATS["e4m3fn"], plain)
COARSE = 2**-3  # a step of e5m2's mantissa, halved by rounding; sums of many products stay below it


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative difference of two tensors, by their norms."""
    return float(((a.float() - b.float()).norm() / b.float().norm()).detach())


def linear(module: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What the adopted module computes."""
    fp8.adopt(module, KIND)
    result: torch.Tensor = module._forward_impl(input=x, weight=weight, bias=None)
    return result


@given(st.floats(1e-6, 1e6), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_a_tensor_of_any_scale_keeps_its_values_to_the_format_s_mantissa(size: float, seed: int) -> None:
    x = torch.randn(32, 48, generator=torch.Generator().manual_seed(seed)) * size
    held = fp8.held(x, torch.float8_e4m3fn, plain)
    assert gap(held.straight.float() * held.worth, x) < 2**-4
    assert torch.equal(held.across.float(), held.straight.float().t())
    assert torch.isfinite(held.straight.float()).all()


def test_zeros_stay_zeros() -> None:
    held = fp8.held(torch.zeros(16, 16), torch.float8_e4m3fn, plain)
    assert held.straight.float().abs().max() == 0.0
    assert torch.isfinite(held.worth)


def test_value_and_gradients_are_near_those_of_the_exact_product() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 16, 64, requires_grad=True), torch.randn(48, 64, requires_grad=True)
    y = linear(SimpleNamespace(), x, weight)
    towards = torch.randn_like(y)
    y.backward(towards)
    assert x.grad is not None
    assert weight.grad is not None
    assert 0.0 < gap(y, x @ weight.t()) < COARSE
    assert gap(x.grad, towards @ weight) < COARSE
    assert gap(weight.grad, towards.flatten(0, 1).t() @ x.flatten(0, 1)) < COARSE


@pytest.mark.parametrize("before", [False, True])
def test_the_weight_s_gradient_goes_into_the_buffer_that_waits_for_it(before: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(32, 64), torch.randn(48, 64, requires_grad=True)
    held: Any = weight
    held.main_grad = torch.full((48, 64), 3.0)
    held.grad_added_to_main_grad = before
    y = linear(SimpleNamespace(), x, weight)
    y.backward(torch.ones_like(y))
    exact = torch.ones(32, 48).t() @ x
    assert gap(held.main_grad, exact + 3.0 if before else exact) < COARSE
    assert held.grad_added_to_main_grad
