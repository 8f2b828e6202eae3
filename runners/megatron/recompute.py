"""Activations that are not kept but computed a second time, for the backward pass: less memory, more work.

`full` keeps a layer's input alone. `selective` keeps what is dear to compute besides (the products with weights and
the attention) and repeats the rest: norms, rotary positions, activation function, sums. Both go by torch's
checkpointing, so they work alike on every device and for every kind of layer. Results are the same to the last bit.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import checkpoint as recomputing
from torch.utils.checkpoint import CheckpointPolicy

_PRODUCTS = ("mm", "addmm", "_scaled_mm")
_ATTENTION = ("_scaled_dot_product", "_flash_attention_forward", "_efficient_attention_forward")


def layer(base: type[Any], mode: str) -> type[Any]:
    """`base`, a megatron-core layer, or one like it that recomputes its activations; `mode` is training.recompute."""
    if mode == "none":
        return base

    class Recomputed(base):
        """The layer with its activations recomputed."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.dear = _Dear(self) if mode == "selective" else None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """As the layer's own."""
            if not (self.training and torch.is_grad_enabled()):
                return super().forward(*args, **kwargs)
            if self.dear is not None:
                kwargs["context_fn"] = self.dear.contexts
            return recomputing.checkpoint(
                super().forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
            )

    return Recomputed


class _Dear:
    """Knows, while a layer works, whether the operation at hand is dear to compute.

    By module and not by operation alone: where tensor ranks sum the output of a product in place, what was kept of it
    would be summed twice, so that one is repeated.
    """

    def __init__(self, layer: Any) -> None:
        self.inside = False
        attention, mlp = layer.self_attention, layer.mlp
        modules = [attention.linear_qkv, attention.core_attention, mlp.linear_fc1]
        if layer.config.tensor_model_parallel_size == 1 or layer.config.sequence_parallel:
            modules += [attention.linear_proj, mlp.linear_fc2]
        for module in modules:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave, always_call=True)

    @property
    def contexts(self) -> Any:
        """torch's hook: the contexts of the first and of the second pass."""
        return functools.partial(recomputing.create_selective_checkpoint_contexts, self._policy)

    def _policy(self, _context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        name = operation.__name__.partition(".")[0]
        if self.inside and (name in _PRODUCTS or name.startswith(_ATTENTION)):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def _enter(self, *_ignored: Any) -> None:
        self.inside = True

    def _leave(self, *_ignored: Any) -> None:
        self.inside = False
