"""The loss made with its gradients: only where somebody learns from it."""

from __future__ import annotations

from typing import Any

import torch

from runners.megatron.loss import linear_loss
from runners.megatron.rows import plain_


def test_a_validation_makes_no_gradient() -> None:
    asked = []

    def rows(logits: torch.Tensor, labels: torch.Tensor, group: Any = None, *, gradient: bool = True) -> torch.Tensor:
        asked.append(gradient)
        return plain_(logits, labels, group, gradient=gradient)

    hidden, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    labels = torch.arange(6)
    learned = linear_loss(hidden, weight, labels, chunk=6, rows=rows)
    with torch.no_grad():
        looked = linear_loss(hidden, weight, labels, chunk=6, rows=rows)
    assert asked == [True, False]
    assert torch.equal(learned.detach(), looked)
