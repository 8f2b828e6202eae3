"""Fine-tuning by transformers and peft: LoRA adapters or all weights, on one process or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.listeners import Listener
    from runners.stages import Context, Outcome


def run(context: Context, listeners: Sequence[Callable[[], Listener]] = ()) -> Outcome:
    """Train as configured. `listeners` are made on the one process that speaks, before anything else is done.

    Raises ConfigurationError for what cannot run as it is asked, RunnerError for what failed.
    """
    from runners.lora import train

    return train.run(context, listeners)


def prepare(context: Context) -> Outcome:
    """The data stage: the model's folder is there and the records are sound. On rank 0 of a node only."""
    from runners.lora import train

    return train.prepare(context)
