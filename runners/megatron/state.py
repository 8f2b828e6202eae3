"""What an optimizer keeps of the parameters, seen alike whoever keeps it: fp32 weights, AdamW's moments, its counts.

On the host the parameters are their own fp32 weights. On GPUs megatron-core's optimizers hold fp32 copies; its
distributed one holds, on each data rank, a run of a parameter's elements only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Run:
    """Elements `begin` to `end` of this rank's part of `parameter`, in flat order, and what is kept of them.

    `weights`, `exp_avg` and `exp_avg_sq` are the very memory that training uses, fp32 and flat: who writes into them
    changes the training.
    """

    parameter: Any
    begin: int
    end: int
    weights: Any
    exp_avg: Any
    exp_avg_sq: Any


class State(Protocol):
    """The whole state of the updates on this rank."""

    def runs(self) -> Iterator[Run]:
        """All of it. Moments that no step has made yet are there, and zero."""

    def counts(self) -> dict[str, float]:
        """What is the same on all ranks: updates made, the loss scale and its trackers."""

    def restored(self, counts: dict[str, float]) -> None:
        """The runs were written into: take the counts, and give the model the weights. Call it on all ranks."""


def of(updates: Any) -> State:
    """The state of the backend's Updates."""
    if hasattr(updates, "inner"):
        return MegatronState(updates.inner)
    return AdamState(updates.adam)


class AdamState:
    """torch's AdamW over the parameters themselves."""

    def __init__(self, adam: torch.optim.AdamW) -> None:
        self.adam = adam

    def runs(self) -> Iterator[Run]:
        """A run for each parameter, the whole of it."""
        for group in self.adam.param_groups:
            for parameter in group["params"]:
                yield self._run(parameter, parameter, 0, parameter.numel())

    def _run(self, parameter: Any, held: Any, begin: int, end: int) -> Run:
        """The run of `parameter` whose fp32 weights AdamW has as `held`."""
        kept = self._moments(held)
        flat = (tensor.detach().view(-1) for tensor in (held, kept["exp_avg"], kept["exp_avg_sq"]))
        return Run(parameter, begin, end, *flat)

    def _moments(self, held: Any) -> dict[str, Any]:
        """What AdamW keeps of a parameter, made as its first step would where there is nothing yet."""
        kept: dict[str, Any] = self.adam.state[held]
        if "exp_avg" not in kept:
            kept["exp_avg"] = torch.zeros_like(held, memory_format=torch.preserve_format)
            kept["exp_avg_sq"] = torch.zeros_like(held, memory_format=torch.preserve_format)
        if "step" not in kept:
            fused = self.adam.defaults["fused"]
            kept["step"] = torch.zeros((), dtype=torch.float32, device=held.device if fused else "cpu")
        return kept

    def counts(self) -> dict[str, float]:
        """The updates that were not skipped: AdamW's bias corrections go by them."""
        held = [p for group in self.adam.param_groups for p in group["params"]]
        return {"updates": float(self._moments(held[0])["step"]) if held else 0.0}

    def restored(self, counts: dict[str, float]) -> None:
        """All parameters have had the same number of updates."""
        for group in self.adam.param_groups:
            for held in group["params"]:
                self._moments(held)["step"].fill_(counts["updates"])


class MegatronState(AdamState):
    """megatron-core's optimizers around torch's AdamW: the distributed one, that with fp32 copies, and the plain."""

    _SCALER = ("scale", "growth_tracker", "hysteresis_tracker")

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.optimizer)
        self.inner = inner

    def runs(self) -> Iterator[Run]:
        """What this data rank keeps: of the distributed optimizer its share."""
        for parameter, held, begin in self._held():
            yield self._run(parameter, held, begin, begin + held.numel())

    def _held(self) -> Iterator[tuple[Any, Any, int]]:
        """(model parameter, its fp32 weights in AdamW, where they begin)."""
        inner = self.inner
        if hasattr(inner, "gbuf_ranges"):
            for parameter, (group, order) in inner.model_param_group_index_map.items():
                own = inner._get_model_param_range_map(parameter)["param"]
                yield parameter, self.adam.param_groups[group]["params"][order], own.start
            return
        copies = {}
        for low, high in zip(
            getattr(inner, "float16_groups", ()), getattr(inner, "fp32_from_float16_groups", ()), strict=True
        ):
            copies.update({id(copy): parameter for parameter, copy in zip(low, high, strict=True)})
        for group in self.adam.param_groups:
            for held in group["params"]:
                yield copies.get(id(held), held), held, 0

    def counts(self) -> dict[str, float]:
        """AdamW's, and fp16's loss scale."""
        scaler = self.inner.grad_scaler if hasattr(self.inner, "grad_scaler") else None
        said = scaler.state_dict() if scaler is not None else {}
        return super().counts() | {name: float(said[name]) for name in self._SCALER if name in said}

    def restored(self, counts: dict[str, float]) -> None:
        """Give the parameters the weights, rounded to their type; shares go to the other data ranks."""
        super().restored(counts)
        inner = self.inner
        scaler = getattr(inner, "grad_scaler", None)
        if scaler is not None and "scale" in counts:
            said = scaler.state_dict()
            taken = {name: counts[name] for name in self._SCALER if name in counts}
            taken |= {name: int(value) for name, value in taken.items() if name != "scale"}
            taken["scale"] = torch.full_like(said["scale"], taken["scale"])
            scaler.load_state_dict({**said, **taken})
        if hasattr(inner, "_copy_main_params_to_model_params"):
            inner._copy_main_params_to_model_params()
        for chunk in getattr(inner, "model_chunks", None) or ():
            chunk.start_param_sync(force_sync=True)
