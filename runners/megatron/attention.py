"""Causal core attention by torch's scaled dot product: the portable kernel of CPU, CUDA and ROCm.

Which of torch's kernels works is a choice of `training.kernels.attention`; which one did is found by watching a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from runners.schema import RunConfig

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def core(config: RunConfig) -> Callable[..., SdpaAttention]:
    """megatron-core's builder of a layer's core attention, with the configured kernel."""
    return functools.partial(SdpaAttention, kernel=config.training.kernels.attention)


class SdpaAttention(MegatronModule):
    """Causal core attention without dropout."""

    def __init__(
        self, config: Any, *_args: Any, kernel: str = "auto", softmax_scale: float | None = None, **_kwargs: Any
    ) -> None:
        super().__init__(config=config)
        self.kernel = kernel
        self.scale = softmax_scale

    def forward(self, query: Any, key: Any, value: Any, *_args: Any, **_kwargs: Any) -> Any:
        """query [s, b, heads, d], key and value [s, b, key-value heads, d] -> [s, b, heads x d]."""
        length, batch = query.shape[0], query.shape[1]
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = causal(q, k, v, scale=self.scale, kernel=self.kernel)
        return out.permute(2, 0, 1, 3).reshape(length, batch, -1)


def causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, kernel: str = "auto"
) -> torch.Tensor:
    """Causal attention. q [b, heads, s, d], k and v [b, key-value heads, s, d] -> [b, heads, s, d]."""
    with _only(kernel):
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )


def ran(config: RunConfig, device: torch.device, dtype: torch.dtype) -> str:
    """The kernel of one attention call of this training, by the operator that torch dispatched to: "flash", "cudnn",
    "efficient", "overrideable" (a device's own) or "math". RuntimeError where the configured one cannot.
    """
    model, training = config.model, config.training
    tensor, length = training.parallel.tensor, training.sequence_length
    head, kv_heads = model.hidden // model.heads, max(1, model.kv_heads // tensor)
    q, k, v = (
        torch.zeros(training.micro_batch, heads, length, head, device=device, dtype=dtype, requires_grad=True)
        for heads in (model.heads // tensor, kv_heads, kv_heads)
    )
    with _Watch() as watch:
        causal(q, k, v, kernel=training.kernels.attention)
    return watch.kernel


class _Watch(TorchDispatchMode):
    """Remembers by which kernel attention was worked."""

    kernel = "math"  # it has no operator of its own: matrix products and a softmax

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        for kernel in ("flash", "cudnn", "efficient", "overrideable"):
            if f"{kernel}_attention" in name or f"attention_{kernel}" in name:
                self.kernel = kernel
        return func(*args, **(kwargs or {}))


def _only(kernel: str) -> AbstractContextManager[None]:
    """Let torch take that kernel alone; "auto" leaves the choice to torch."""
    if kernel == "auto":
        return nullcontext()
    limited: AbstractContextManager[None] = sdpa_kernel(KERNELS[kernel])
    return limited
