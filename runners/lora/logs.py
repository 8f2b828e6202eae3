"""The log for people: [STEP] [DDP] [DATA] [COLLATE] [MODEL] [TRAIN] [EPOCH] [BATCH] [RESULT] [DONE]."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from runners.listeners import Listener, Step
from runners.lora.data import Batch
from runners.lora.progress import Progress
from runners.process import Process
from runners.schema import LoraRunner

_LINES = 50  # [TRAIN] lines of a training, about
log = logging.getLogger("runners.lora")


def set_up(runner: LoraRunner, process: Process) -> None:
    """Rank 0 speaks of what all ranks do alike; the others only of what is wrong, and of everything at DEBUG."""
    quiet = not process.first and runner.log_level != "DEBUG"
    log.setLevel(max(logging.WARNING, logging.getLevelName(runner.log_level)) if quiet else runner.log_level)
    log.propagate = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        logging.Formatter(f"[rank{process.rank}] %(message)s" if process.world > 1 else "%(message)s")
    )
    log.handlers[:] = [handler]


def perplexity(loss: float) -> float:
    """exp(loss); beyond what a float holds, infinity."""
    return math.exp(loss) if loss < 700 else math.inf


class Logs:
    """What is told of batches and epochs."""

    def __init__(self, runner: LoraRunner) -> None:
        self.batches = runner.log_batches

    def batch(self, epoch: int, number: int, total: int, batch: Batch, loss: Any, began: float) -> None:
        """A micro batch at DEBUG, as `log_batches` asks: its shapes, its own mean loss, its time in seconds."""
        if self.batches == "none" or not log.isEnabledFor(logging.DEBUG):
            return
        if self.batches == "first-last" and number not in (1, total):
            return
        mean = float(loss.detach()) / max(1, batch.targets)
        log.debug(
            "[COLLATE] input_ids %s, attention causal with right padding, %d tokens of %d, %d targets",
            list(batch.ids.shape), batch.tokens, batch.padded, batch.targets,
        )  # fmt: skip
        log.debug(
            "[BATCH] epoch %d batch %d/%d loss %.6f time_s %.4f",
            epoch, number, total, mean, time.perf_counter() - began,
        )  # fmt: skip

    def epoch(self, progress: Progress, epochs: int, losses: Sequence[float], seconds: float) -> None:
        """The end of an epoch, or of what was left of one."""
        mean = sum(losses) / len(losses) if losses else math.nan
        at = f"{progress.epoch}/{epochs}" if not progress.batch else f"{progress.epoch + 1}/{epochs} (cut short)"
        told = ""
        if progress.validation is not None and progress.evaluated_at == progress.step:
            told = f" val_loss {progress.validation:.6f} perplexity {perplexity(progress.validation):.4f}"
        log.info("[EPOCH] epoch %s loss %.6f%s epoch_s %.3f", at, mean, told, seconds)


class TrainLines(Listener):
    """[TRAIN] lines, some tens in a training. On the one process that listeners are told on."""

    def __init__(self, total: int, process: Process) -> None:
        self.total = total
        self.every = max(1, total // _LINES)
        self.prefix = f"[rank{process.rank}] " if process.world > 1 else ""
        self.quiet = False

    def step(self, step: Step) -> None:
        """A line now and then; its tokens a second are without padding."""
        if self.quiet or (step.step % self.every and step.step not in (1, self.total)):
            return
        loss = "nan" if step.loss is None else f"{step.loss:.6f}"
        norm = "nan" if step.grad_norm is None else f"{step.grad_norm:.4f}"
        print(
            f"{self.prefix}[TRAIN] step {step.step}/{self.total} loss {loss} lr {step.rate:.3e} grad_norm {norm}"
            f" step_s {step.seconds:.4f} {step.tokens / step.seconds:.0f} tokens/s (without padding)",
            flush=True,
        )

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """The validation's line."""
        if not self.quiet:
            print(
                f"{self.prefix}[TRAIN] validation at step {step}: val_loss {loss:.6f} perplexity"
                f" {perplexity(loss):.4f} ({samples} samples, {tokens} target tokens)",
                flush=True,
            )
