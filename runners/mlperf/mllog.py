"""A training told in MLPerf's words: `:::MLLOG` lines as mlperf-logging's compliance checker reads them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runners.listeners import Listener, Step
from runners.mlperf import declared, lines
from runners.schema import LoraRunner
from runners.schema.mlperf import MLPerf

SUCCESS, ABORTED = "success", "aborted"
_CACHES = "/proc/sys/vm/drop_caches"


def clear_caches(path: str = _CACHES) -> bool:
    """Drop the kernel's page cache; whether that could be done (it needs root, and a /proc that can be written)."""
    with suppress(OSError):
        os.sync()
        with open(path, "w", encoding="ascii") as stream:
            stream.write("3")
        return True
    return False


class MLLog(Listener):
    """Prints the log. Made first of all: from then on the preparation counts, from `started` on the run does.

    Only the one process that speaks has one. A run with a target ends with success once it is reached, and is
    aborted else; so is one that goes on from a checkpoint: from run_start to run_stop it is not the whole training.
    """

    def __init__(self, runner: LoraRunner) -> None:
        said = runner.mlperf or MLPerf()
        self._runner = runner
        self._said = said
        self._target = runner.target_loss
        self._samples = 0
        self._size: int | None = None
        self._block = False  # whether one is open
        self._running = self._reached = self._resumed = False
        lines.say(lines.EVENT, "cache_clear", clear_caches() if said.clear_caches else False)
        lines.say(lines.BEGIN, "init_start")

    def started(self, facts: Mapping[str, Any]) -> None:
        """Preparation ends, the run begins, and with it its first block."""
        self._size = facts["train_samples"]
        self._samples = facts.get("done_samples", 0)
        self._resumed = self._samples > 0
        told = {
            **declared.submission(self._said, facts["world"]),
            **declared.settings(self._runner, facts),
            **declared.disclosed(self._runner),
        }
        for key, value in told.items():
            lines.say(lines.EVENT, key, value)
        lines.say(lines.END, "init_stop")
        lines.say(lines.BEGIN, "run_start")
        self._running = True
        self._open()

    def step(self, step: Step) -> None:
        """Count the samples; now and then tell the training loss."""
        self._samples += step.samples
        if step.step % self._said.log_every == 0 and step.loss is not None and math.isfinite(step.loss):
            told = {**self._place(), "step": step.step, "lr": step.rate, "step_time": step.seconds}
            lines.say(lines.EVENT, "train_loss", step.loss, told)

    def evaluating(self, step: int) -> None:
        """The block ends where its evaluation begins."""
        self._close(step)
        lines.say(lines.BEGIN, "eval_start", None, {**self._place(), "step": step})

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """Tell the loss; at the target the clock stops at once, whatever the training still saves."""
        told = {**self._place(), "step": step}
        if math.isfinite(loss):  # the checkers compare it
            lines.say(lines.EVENT, "eval_accuracy", loss, told)
        lines.say(lines.END, "eval_stop", None, told)
        if self._target is not None and loss <= self._target:
            self._reached = True
            self.finished(SUCCESS)
        self._open()

    def finished(self, status: str) -> None:
        """The run ends, once: with success only where its target was reached, or where it has none."""
        if not self._running:
            return
        self._running = False
        self._close(None)
        if self._target is not None:
            status = SUCCESS if self._reached and not self._resumed else ABORTED
        lines.say(lines.END, "run_stop", None, {**self._place(), "status": status})

    def _place(self) -> dict[str, Any]:
        """Where the training stands: samples seen, and epochs, which the open division asks for."""
        epochs = {"epoch_num": self._samples / self._size} if self._size else {}
        return {"samples_count": self._samples, **epochs}

    def _open(self) -> None:
        if self._running and not self._block:
            self._block = True
            lines.say(lines.BEGIN, "block_start", None, self._place())

    def _close(self, step: int | None) -> None:
        if self._block:
            self._block = False
            told = {} if step is None else {"step": step}
            lines.say(lines.END, "block_stop", None, {**self._place(), **told})
