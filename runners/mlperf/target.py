"""Time to target: when the validation's loss first was as low as asked, told to the cockpit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from runners import wire
from runners.listeners import Listener, Step


class Target(Listener):
    """Says once, by the `target` diagnostic, whether `loss` was reached, and how long after the start.

    Seconds run from `started` to the end of the evaluation that reached it; None where the training went on from a
    checkpoint, whose own time nobody took.
    """

    def __init__(self, loss: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = loss
        self._clock = clock
        self._began: float | None = None
        self._samples = 0
        self._resumed = False
        self._last: float | None = None
        self._told = False

    def started(self, facts: Mapping[str, Any]) -> None:
        """The clock runs."""
        self._began = self._clock()
        self._samples = facts.get("done_samples", 0)
        self._resumed = self._samples > 0
        if facts.get("reached"):
            self._tell(True)

    def step(self, step: Step) -> None:
        """Count the samples."""
        self._samples += step.samples

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """Look whether this is it."""
        self._last = loss
        if loss <= self._target:
            self._tell(True)

    def finished(self, status: str) -> None:
        """What has not been reached by now is not."""
        self._tell(False)

    def _tell(self, reached: bool) -> None:
        if self._told or self._began is None:
            return
        self._told = True
        seconds = None if self._resumed else self._clock() - self._began
        last = "never validated" if self._last is None else f"at {self._last:.6g}"
        when = "from a checkpoint on, time unknown" if seconds is None else f"{seconds:.1f} s"
        what = f"reached ({when})" if reached else f"not reached ({when}), {last}"
        wire.emit(
            "diagnostic",
            level="info" if reached else "warning",
            code="target",
            message=f"target loss {self._target:g}: {what}, {self._samples} samples",
            data={
                "reached": reached,
                "target_loss": self._target,
                "loss": self._last if self._last is None or self._last == self._last else None,
                "seconds": seconds,
                "samples": self._samples,
            },
        )
