"""The norms of a model, torch's own: on every device, whatever else is installed beside torch."""

from __future__ import annotations

from typing import Any

import torch


class Norm:
    """megatron-core's name for a norm that it builds; the module is torch's, of the configured kind."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_options: Any) -> torch.nn.Module:
        """RMSNorm or LayerNorm over `hidden_size`, in the parameters' type.

        With sequence parallelism a rank sees a part of the sequence only: its parameters are marked, and
        megatron-core sums their gradients over the tensor ranks.
        """
        kind = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}[config.normalization]
        norm: torch.nn.Module = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm
