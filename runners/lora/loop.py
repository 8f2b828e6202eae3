"""The loop: a step is some micro batches, one sum of gradients over all processes, one update."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from runners.errors import RunnerError
from runners.listeners import Listener, Step
from runners.lora import data
from runners.lora.data import Batch, Examples, Loader
from runners.lora.logs import Logs
from runners.lora.model import Wrapped
from runners.lora.progress import Progress
from runners.lora.saving import Saver
from runners.process import Process
from runners.schema import LoraRunner


@dataclass
class Trainer:
    """Everything that a step needs. `clock` is when the step before ended, in seconds."""

    runner: LoraRunner
    process: Process
    model: Wrapped
    optimizer: Any
    loader: Loader
    validation: Examples
    pad: int
    saver: Saver
    listener: Listener
    logs: Logs
    progress: Progress = field(default_factory=Progress)
    clock: float = field(default_factory=time.perf_counter)

    @property
    def steps_an_epoch(self) -> int:
        """Optimizer steps; the last of an epoch may have fewer micro batches."""
        return -(-len(self.loader) // self.runner.grad_accum)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training, as planned."""
        planned = self.runner.epochs * self.steps_an_epoch
        return min(planned, self.runner.max_steps or planned)

    def ended(self) -> bool:
        """Whether there is nothing more to train."""
        return self.progress.reached or self.progress.step >= self.steps


def optimizer(model: Wrapped, runner: LoraRunner) -> torch.optim.AdamW:
    """AdamW over what is trained; vectors (norms, biases) do not decay."""
    decays = [parameter for parameter in model.trainable if parameter.ndim > 1]
    plain = [parameter for parameter in model.trainable if parameter.ndim <= 1]
    groups = [(decays, runner.weight_decay), (plain, 0.0)]
    return torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters],
        lr=runner.lr,
        betas=(runner.adam_beta1, runner.adam_beta2),
        eps=runner.adam_eps,
        fused=not model.sharded,
    )


def learning_rate(runner: LoraRunner, step: int, steps: int) -> float:
    """The rate of a step, counted from 1: a linear warm-up, then down to 0 after the last one, or constant."""
    done, warm = step - 1, runner.warmup_steps
    if done < warm:
        return runner.lr * step / warm
    if runner.schedule == "constant":
        return runner.lr
    left = max(0.0, (steps - done) / max(1, steps - warm))
    return runner.lr * (left if runner.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * (1 - left))))


def train(trainer: Trainer) -> None:
    """Train from where the progress stands to the end. RunnerError where the loss is no number."""
    trainer.model.core.train()
    while not trainer.ended():
        epoch(trainer)


def epoch(trainer: Trainer) -> None:
    """What is left of an epoch: its steps, the validation, its folder."""
    runner, progress = trainer.runner, trainer.progress
    begin, losses = time.perf_counter(), []
    batches = trainer.loader.epoch(progress.epoch, progress.batch)
    trainer.clock = time.perf_counter()
    while not trainer.ended() and (micro := list(islice(batches, runner.grad_accum))):
        before = progress.samples
        losses.append(one_step(trainer, micro))
        if due(runner, before, progress.samples):
            evaluate(trainer)
        within = progress.batch < len(trainer.loader) and not trainer.ended()
        if runner.save and runner.save_every and progress.step % runner.save_every == 0 and within:
            trainer.saver.save(f"step-{progress.step}", trainer.model, trainer.optimizer, progress)
            trainer.clock = time.perf_counter()
    on_samples = runner.mlperf is not None and runner.eval_every is not None  # and nowhere else, by its rules
    if progress.evaluated_at != progress.step and not on_samples:
        evaluate(trainer)
    whole = progress.batch >= len(trainer.loader)
    if whole:
        progress.epoch, progress.batch = progress.epoch + 1, 0
    trainer.logs.epoch(progress, runner.epochs, losses, time.perf_counter() - begin)
    if runner.save:
        name = f"epoch-{progress.epoch}" if whole else f"step-{progress.step}"
        trainer.saver.save(name, trainer.model, trainer.optimizer, progress, rank=True)


def due(runner: LoraRunner, before: int, samples: int) -> bool:
    """Whether a validation stands between these two counts of samples."""
    every = runner.eval_every
    return every is not None and samples >= runner.eval_from and samples // every > before // every


def one_step(trainer: Trainer, micro: Sequence[Batch]) -> float:
    """Forward, backward and update; returns the mean loss over the target tokens of all processes.

    An update whose gradient is no number is left out, on all ranks alike: they share the norm. Raises RunnerError
    for a loss that is none, unless `stop_on_nan` is false.
    """
    runner, model, progress = trainer.runner, trainer.model, trainer.progress
    number = progress.step + 1
    torch.manual_seed(_seed(runner.seed, number, trainer.process.rank))  # dropout is the step's: resuming repeats it
    counts = Counts(*_summed(model.device, Counts.of(micro)))
    loss = _backward(trainer, micro, counts.targets)
    if not math.isfinite(loss) and runner.stop_on_nan:
        raise _no_number(number, progress)
    norm = model.clip(runner.clip_grad)
    rate = learning_rate(runner, number, trainer.steps)
    good = math.isfinite(norm) and math.isfinite(loss)
    if good:
        for group in trainer.optimizer.param_groups:
            group["lr"] = rate
        trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)
    _wait(model.device)
    now = time.perf_counter()
    seconds, trainer.clock = now - trainer.clock, now
    progress.loss = loss if math.isfinite(loss) else None
    progress.step, progress.seconds = number, progress.seconds + seconds
    progress.skipped += not good
    counts.add_to(progress)
    extra = {
        "epoch": round(progress.epoch + progress.batch / len(trainer.loader), 6),
        "padded_tokens": float(counts.padded),
        "target_tokens": float(counts.targets),
        "tokens_per_s": counts.tokens / seconds,
        "skipped": float(not good),
    }
    known = norm if math.isfinite(norm) else None
    step = Step(number, progress.loss, seconds, counts.tokens, counts.samples, rate, known, extra)
    trainer.listener.step(step)
    return loss


@dataclass(frozen=True)
class Counts:
    """What a step works through, over all processes."""

    targets: int
    tokens: int
    padded: int
    samples: int

    @staticmethod
    def of(micro: Sequence[Batch]) -> list[int]:
        """This process's, in the order of the fields."""
        return [sum(getattr(batch, name) for batch in micro) for name in Counts.__dataclass_fields__]

    def add_to(self, progress: Progress) -> None:
        """Count them in."""
        for name in Counts.__dataclass_fields__:
            setattr(progress, name, getattr(progress, name) + getattr(self, name))


def _backward(trainer: Trainer, micro: Sequence[Batch], targets: int) -> float:
    """Leave the gradient of the mean loss over `targets` tokens of all processes in the parameters; that loss."""
    model, progress = trainer.model, trainer.progress
    total = torch.zeros((), device=model.device)
    for at, batch in enumerate(micro):
        began = time.perf_counter()
        with model.apart(last=at == len(micro) - 1):
            own = model.loss_sum(batch.to(model.device), training=True)
            (own * (trainer.process.world / targets)).backward()  # the processes' gradients are averaged
        total += own.detach()
        progress.batch += 1
        trainer.logs.batch(progress.epoch + 1, progress.batch, len(trainer.loader), batch, own, began)
    dist.all_reduce(total)
    return float(total) / targets


@torch.no_grad()
def evaluate(trainer: Trainer) -> None:
    """The mean loss over all target tokens of the validation, told to the listeners; nothing without validation."""
    progress, process, model = trainer.progress, trainer.process, trainer.model
    if not trainer.validation.items:
        return
    trainer.listener.evaluating(progress.step)
    size = trainer.runner.eval_batch or trainer.runner.batch
    sums = torch.zeros(2, dtype=torch.float64, device=model.device)
    model.core.eval()
    shares = data.share(trainer.validation, world=process.world, rank=process.rank, batch=size, pad=trainer.pad)
    for batch in shares:
        sums[0] += model.loss_sum(batch.to(model.device), training=False)
        sums[1] += batch.targets
    dist.all_reduce(sums)
    model.core.train()
    loss, targets = float(sums[0] / sums[1]), int(sums[1])
    progress.validation = loss if math.isfinite(loss) else None
    progress.evaluated_at = progress.step
    target = trainer.runner.target_loss
    progress.reached = target is not None and loss <= target
    trainer.listener.evaluated(progress.step, loss, len(trainer.validation), targets)
    trainer.clock = time.perf_counter()


def _seed(*parts: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little")


def _summed(device: str, counts: Sequence[int]) -> list[int]:
    """Counts over all processes."""
    sums = torch.tensor(counts, dtype=torch.int64, device=device)
    dist.all_reduce(sums)
    return [int(value) for value in sums.tolist()]


def _wait(device: str) -> None:
    """Until the device has done all that was asked, so that the clock means something."""
    if device != "cpu":
        torch.get_device_module(torch.device(device)).synchronize(device)


def _no_number(step: int, progress: Progress) -> RunnerError:
    kept = "nothing was saved yet"
    if progress.best is not None:
        told = "" if progress.best.loss is None else f" (validation loss {progress.best.loss:.4f})"
        kept = f"the best so far is kept: {progress.best.folder}{told}"
    return RunnerError(
        f"the loss of step {step} is not a number, so the training stops; {kept}.",
        hint="Try a smaller runner.lr or more runner.warmup_steps; runner.stop_on_nan=false leaves such steps out.",
        every_rank=True,
    )
