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
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import TorchDispatchMode

from runners.errors import ConfigurationError
from runners.megatron import context
from runners.schema import RunConfig

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def core(config: RunConfig) -> Callable[..., SdpaAttention]:
    """megatron-core's builder of a layer's core attention, with the configured kernel."""
    return functools.partial(SdpaAttention, kernel=config.training.kernels.attention)


class SdpaAttention(MegatronModule):
    """Causal core attention without dropout, over the whole sequence where a context group holds it in parts."""

    def __init__(
        self,
        config: Any,
        *_args: Any,
        kernel: str = "auto",
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_kwargs: Any,
    ) -> None:
        super().__init__(config=config)
        self.kernel = kernel
        self.scale = softmax_scale
        self.group = pg_collection.cp if config.context_parallel_size > 1 else None

    def forward(self, query: Any, key: Any, value: Any, *_args: Any, **_kwargs: Any) -> Any:
        """query [s, b, heads, d], key and value [s, b, key-value heads, d] -> [s, b, heads x d]."""
        if self.group is None:
            return self.attend(query, key, value)
        key, value = context.whole(key, self.group), context.whole(value, self.group)
        size = self.group.size()
        length = key.shape[0] // (2 * size)
        held = zip(context.chunks(self.group.rank(), size), query.chunk(2), strict=True)
        return torch.cat([self.attend(q, *(x[: (i + 1) * length] for x in (key, value))) for i, q in held])

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Shapes as in `forward`, the queries being the last positions of the keys."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        return causal(q, k, v, scale=self.scale, kernel=self.kernel).permute(2, 0, 1, 3).flatten(2)


def causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, kernel: str = "auto"
) -> torch.Tensor:
    """Causal attention. q [b, heads, s, d], k and v [b, key-value heads, s or more, d] -> [b, heads, s, d].

    The last query sees all keys, the one before it all but one.
    """
    queries, keys = q.shape[2], k.shape[2]
    options: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if queries == keys:
        options["is_causal"] = True
    elif kernel in ("auto", "flash") and q.is_cuda and not torch.version.hip:
        # Only NVIDIA's flash kernel is known to align a causal mask at its end; it needs no mask in memory then.
        options["attn_mask"] = causal_lower_right(queries, keys)
    else:
        options["attn_mask"] = _mask(queries, keys, q.device)
    with _only(kernel):
        return functional.scaled_dot_product_attention(q, k, v, **options)


@functools.lru_cache(maxsize=2)  # a rank has two chunks, each with a number of keys of its own
def _mask(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """What the last `queries` of `keys` positions see, bool [queries, keys]."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def ran(config: RunConfig, device: torch.device) -> str:
    """The kernel of one attention call of this training, by the operator that torch dispatched to: "flash", "cudnn",
    "efficient", "overrideable" (a device's own) or "math". ConfigurationError where the configured one cannot.
    """
    training = config.training
    q, k, v = _heads(config, device)
    try:
        with _Watch() as watch:
            causal(q, k, v, kernel=training.kernels.attention)
    except RuntimeError as error:
        if training.kernels.attention == "auto" or isinstance(error, torch.OutOfMemoryError):
            raise
        raise ConfigurationError(
            f"training.kernels.attention={training.kernels.attention}: torch has no such kernel on {device.type} for"
            f" {training.precision} heads of {config.model.hidden // config.model.heads}"
            f"{' with training.parallel.context above 1' if training.parallel.context > 1 else ''}.",
            hint="Set training.kernels.attention=auto.",
            every_rank=True,
        ) from error
    return watch.kernel


def _heads(config: RunConfig, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of one rank's layer in this training, empty of sense."""
    model, training = config.model, config.training
    parallel, batch = training.parallel, training.micro_batch
    chunk = training.sequence_length if parallel.context == 1 else training.sequence_length // (2 * parallel.context)
    kv_heads = max(1, model.kv_heads // parallel.tensor)
    dtype = DTYPES[training.precision]
    q, k, v = (
        torch.zeros(batch, length, heads, model.hidden // model.heads, device=device, dtype=dtype).transpose(1, 2)
        for length, heads in (
            (chunk, model.heads // parallel.tensor),
            (training.sequence_length, kv_heads),
            (training.sequence_length, kv_heads),
        )
    )
    return q.requires_grad_(), k, v


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
