"""MLPerf's Llama2-70B LoRA task: its data, and the log that its checkers read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.listeners import Listener
    from runners.schema import LoraRunner


def listeners(runner: LoraRunner) -> list[Callable[[], Listener]]:
    """Who listens to a fine-tuning for its target and for MLPerf's log; made on the one process that speaks."""
    from runners.mlperf.mllog import MLLog
    from runners.mlperf.target import Target

    made: list[Callable[[], Listener]] = []
    if runner.mlperf is not None:
        made.append(lambda: MLLog(runner))
    target = runner.target_loss
    if target is not None:
        made.append(lambda: Target(target))
    return made
