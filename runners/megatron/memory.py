"""The memory estimate before a model is built: said, and refused where the card is clearly too small."""

from __future__ import annotations

import os
from typing import Any

import torch

from runners import sizes, wire
from runners.errors import ConfigurationError
from runners.schema import RunConfig


def check(config: RunConfig, vocab: int, device: Any, *, speak: bool) -> None:
    """Say the estimate for tables of `vocab` rows, where `speak` is set, against the memory of `device`.

    Raises ConfigurationError where it is above 110 % of a GPU's memory, or of the whole machine's where it trains on
    the CPU: the system would end other programs too.
    """
    capacity = None
    if device.type == "cuda":
        capacity = int(torch.cuda.get_device_properties(device).total_memory)
    judge(config, vocab, capacity, speak=speak)
    if device.type == "cpu":
        _refuse_machine(config, vocab, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _refuse_machine(config: RunConfig, vocab: int, memory: int) -> None:
    found = sizes.memory(config, vocab)
    if found.total > sizes.REFUSED * memory:
        raise ConfigurationError(
            f"this training needs about {_words(found, None)}; this machine has {memory / sizes.GIB:.1f} GiB.",
            hint="Take a smaller model or a shorter sequence.",
            every_rank=True,
        )


def judge(config: RunConfig, vocab: int, capacity: int | None, *, speak: bool) -> None:
    """As `check`, against `capacity` bytes; None is a machine whose memory is not judged."""
    found = sizes.memory(config, vocab)
    share = found.total / capacity if capacity else 0.0
    mends = sizes.advice(config, vocab, capacity) if capacity and share > sizes.WARNED else []
    told = "; ".join(map(str, mends))
    if speak:
        reduce = f". To reduce it: {told}" if mends else ""
        wire.emit(
            "diagnostic",
            level="warning" if share > sizes.WARNED else "info",
            code="memory",
            message=f"about {_words(found, capacity)}{reduce}",
            data={
                "total_by": found.total,
                "capacity_by": capacity,
                "stage": found.stage,
                **{f"{name}_by": size for name, size in found.parts.items()},
                "advice": [{"key": mend.key, "value": mend.value, "saves_by": mend.saves} for mend in mends],
            },
        )
    if share > sizes.REFUSED:
        raise ConfigurationError(
            f"this training needs about {_words(found, capacity)}.",
            hint=f"Set {told}." if mends else "Take a smaller model, a shorter sequence or more GPUs.",
            every_rank=True,
        )


def _words(found: sizes.Memory, capacity: int | None) -> str:
    unit = "process" if capacity is None else "GPU"
    room = "" if capacity is None else f", which has {capacity / sizes.GIB:.1f} GiB"
    parts = ", ".join(f"{name} {size / sizes.GIB:.2f}" for name, size in found.parts.items() if size)
    return f"{found.total / sizes.GIB:.1f} GiB on the fullest {unit}{room} ({parts})"
