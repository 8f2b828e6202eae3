"""The training loop: one step is forward and backward by the schedule, one norm, one update, one line."""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runners import group, provenance, sizes, wire
from runners.data import prepare, samples
from runners.data.prepare import Entry
from runners.data.samples import micro_batches
from runners.errors import ConfigurationError, writing
from runners.megatron import (
    architecture,
    attention,
    checkpoint,
    grid,
    memory,
    model,
    optimizer,
    report,
    schedules,
)
from runners.megatron.backend import Backend, select
from runners.megatron.context import cut
from runners.megatron.feed import fed
from runners.schema import RunConfig
from runners.stages import Context, Outcome
from runners.stages.wrap import artifact


@dataclass
class Training:
    """Everything that one step needs."""

    config: RunConfig
    backend: Backend
    groups: Any
    chunks: list[Any]  # wrapped for data parallelism
    updates: optimizer.Updates
    schedule: Any
    schedule_options: dict[str, Any]
    samples: Any
    validation: Any  # samples, None where all documents train

    def batches(self, samples: Any, steps: int, begin: int = 0) -> list[Iterator[Any]]:
        """The micro batches of this rank in the steps from `begin` to `steps`, an iterator for each chunk."""
        replica = self.groups.dp.rank()
        batches = (self.parts(micro_batches(samples, self.config, replica, steps, begin)) for _ in self.chunks)
        return [fed(each, self.backend.device) for each in batches]

    def parts(self, batches: Iterator[Any]) -> Iterator[Any]:
        """This context rank's part of each sequence."""
        for batch in batches:
            yield tuple(cut(tensor, 1, self.groups.cp) for tensor in batch)

    def pipeline(self, batches: list[Iterator[Any]], *, forward_only: bool) -> list[dict[str, Any]]:
        """Run the schedule over one global batch; the micro batches' losses on the last stage, else nothing."""
        settings = self.config.training
        with self.backend.context():
            losses: list[dict[str, Any]] = self.schedule(
                forward_step_func=forward_step,
                data_iterator=batches,
                model=self.chunks,
                num_microbatches=settings.global_batch // (settings.micro_batch * settings.parallel.data),
                seq_length=settings.sequence_length,
                micro_batch_size=settings.micro_batch,
                forward_only=forward_only,
                **self.schedule_options,
            )
        return losses


def run(context: Context) -> Outcome:
    """Train as configured. ConfigurationError before any work for what cannot run, RunnerError for what failed."""
    config, process = context.config, context.process
    backend = select(config.training.backend)
    backend.check(config)
    backend.start(config.training)
    kernels = {"attention": attention.ran(config, backend.device), **backend.kernels(config)}
    index = None
    if process.local_rank == 0:  # before the group forms: the others of this node wait there for the index
        index = samples.index(config, prepare.find(config.data, context.folders.cache), context.folders.cache)
    with group.joined(process, backend.collective):
        entry = prepare.find(config.data, context.folders.cache)
        index = index or samples.index(config, entry, context.folders.cache)
        vocab = _vocab(config, entry)
        if process.first:
            print(report.arguments(config, vocab, process.world), flush=True)
        memory.check(config, vocab, backend.device, speak=process.last)
        training = set_up(config, backend, entry, index, vocab)
        if process.last:
            _introduce(context, backend, entry, vocab, kernels)
        reporter = report.Reporter(config, vocab, process.world)
        saver = checkpoint.Saver(context, training, entry, vocab)
        saver.resume()
        begun = saver.step
        loss, seconds = loop(training, reporter, saver, speak=process.last)
        validation, count = validate(training)
        if process.last:
            if count:
                reporter.validation(config.training.iterations, validation)
            _finish(context, reporter, begun, loss, seconds, validation)
        dist.barrier()  # nobody leaves while another still works: its loss of a peer would hide the real cause
    if process.first:
        saver.export()
    return Outcome("done", f"{config.training.iterations} iterations")


def set_up(config: RunConfig, backend: Backend, entry: Entry, index: Path, vocab: int) -> Training:
    """Build this rank's part of the model and what trains it. Call it on all ranks, in the process group."""
    parallel = config.training.parallel
    backend.seed(config.training.seed)
    groups = grid.lay(parallel)
    built = model.build(config, backend, vocab)
    chunks = [backend.wrap(chunk, config.training, index=i, group=groups.dp_cp) for i, chunk in enumerate(built)]
    for chunk in chunks:
        chunk.broadcast_params()
        chunk.train()
    updates = backend.updates(chunks, config.training, groups)
    options: dict[str, Any] = {"pg_collection": groups}
    if parallel.pipeline > 1:
        options["p2p_communicator"] = backend.communicator(groups.pp, chunks[0].config)
    return Training(
        config,
        backend,
        groups,
        chunks,
        updates,
        schedules.select(parallel),
        options,
        *samples.datasets(config, entry, index),
    )


def loop(
    training: Training, reporter: report.Reporter, saver: checkpoint.Saver, *, speak: bool
) -> tuple[float | None, float]:
    """Train the iterations that are left; returns the last loss (known on the last pipeline stage) and the seconds of
    all steps. Raises RunnerError where the loss is no number or the disk has no room for a checkpoint.

    A step lasts from the end of the one before to its own, as in Megatron: what is told in between counts too, but
    the pause of a checkpoint or of a validation does not.
    """
    gc.collect()
    gc.freeze()  # the model is no garbage: later collections need not look at it
    loss, total = None, 0.0
    batches = training.batches(training.samples, training.config.training.iterations, saver.step)
    training.backend.synchronise()
    begin = time.perf_counter()
    for number in range(saver.step + 1, training.config.training.iterations + 1):
        rate = optimizer.learning_rate(training.config.training, number)
        losses, norm, skipped = one_step(training, batches, rate)
        loss = mean_loss(training, losses)
        training.backend.synchronise()
        end = time.perf_counter()
        seconds, begin = end - begin, end
        total += seconds
        pause, trouble = saver.after(number, loss)
        begin += pause
        if speak:
            scale = training.updates.loss_scale
            reporter.iteration(report.Step(number, loss, seconds, rate, norm, skipped, pause, scale))
        if trouble is not None:
            raise trouble
        if _evaluates(training, number):
            validation, _count = validate(training)
            if speak:
                reporter.validation(number, validation)
            training.backend.synchronise()
            begin = time.perf_counter()  # the pause is no part of the next step
    return loss, total


def one_step(
    training: Training, batches: list[Iterator[Any]], rate: float
) -> tuple[list[dict[str, Any]], float, bool]:
    """Forward, backward and update; returns the micro batches' losses, the gradient's norm, whether it was skipped.

    An update whose gradient is not finite is skipped, on all ranks alike: they share the norm.
    """
    for chunk in training.chunks:
        chunk.zero_grad_buffer()
    losses = training.pipeline(batches, forward_only=False)
    norm, skipped = training.updates.step(rate)
    return losses, norm, skipped


@torch.no_grad()
def validate(training: Training) -> tuple[float | None, int]:
    """The mean loss over the validation documents and the number of samples it is of, at most `eval_iters` global
    batches, always the same; (None, 0) where they do not fill one. The loss is known on the last pipeline stage.
    """
    size = training.config.training.global_batch
    steps = validation_steps(training)
    if not steps:
        return None, 0
    for chunk in training.chunks:
        chunk.eval()
    batches = training.batches(training.validation, steps)
    losses = [entry for _ in range(steps) for entry in training.pipeline(batches, forward_only=True)]
    for chunk in training.chunks:
        chunk.train()
    return mean_loss(training, losses), steps * size


def validation_steps(training: Training) -> int:
    """How many global batches a validation takes; 0 where its documents do not fill one."""
    settings = training.config.training
    return (
        0
        if training.validation is None
        else min(settings.eval_iters, len(training.validation) // settings.global_batch)
    )


def _evaluates(training: Training, number: int) -> bool:
    """Whether a validation follows iteration `number`; the one after the last is not the loop's."""
    settings = training.config.training
    due = settings.evaluate and number % settings.eval_interval == 0 and number < settings.iterations
    return due and validation_steps(training) > 0


def forward_step(batches: Iterator[Any], chunk: Any) -> tuple[Any, Any]:
    """megatron-core's hook: the chunk's output and the function that makes a loss of it.

    Chunks in the middle of the pipeline need neither tokens nor labels, so they draw no batch.
    """
    inner = chunk.module
    tokens, labels = next(batches) if inner.pre_process or inner.post_process else (None, None)
    where = architecture.positions(inner, tokens)
    output = chunk(tokens, where, None, labels=labels if inner.post_process else None)
    return output, functools.partial(_mean, context=chunk.config.context_parallel_size)


def _mean(output: torch.Tensor, *, context: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mean over the tokens of a micro batch that this rank has, for the backward and for the report.

    megatron-core multiplies the first by the number of `context` ranks (and divides it in place, so a copy is
    reported); the gradients' mean is over the context ranks too.
    """
    loss = output.float().mean()
    return loss / context, {"lm loss": loss.detach().clone()}


def mean_loss(training: Training, losses: list[dict[str, Any]]) -> float | None:
    """The mean over all micro batches of all replicas; None away from the last stage, or where it is no number."""
    if not losses:
        return None
    loss = torch.stack([entry["lm loss"] for entry in losses]).mean()
    if training.groups.dp_cp.size() > 1:
        dist.all_reduce(loss, group=training.groups.dp_cp)
        loss /= training.groups.dp_cp.size()
    value = float(loss)
    return value if math.isfinite(value) else None


def _vocab(config: RunConfig, entry: Entry) -> int:
    """The padded vocabulary; ConfigurationError where the model's is smaller than the tokenizer's."""
    wanted = config.model.vocab or entry.vocab
    if wanted < entry.vocab:
        raise ConfigurationError(
            f"model.vocab={wanted} is smaller than the tokenizer's {entry.vocab} tokens.",
            hint=f"Set model.vocab to null or at least {entry.vocab}, or a smaller data.tokenizer_vocab.",
            every_rank=True,
        )
    return sizes.padded_vocab(wanted, config.model.vocab_multiple, config.training.parallel.tensor)


def _introduce(context: Context, backend: Backend, entry: Entry, vocab: int, kernels: dict[str, str]) -> None:
    """Say what made this run, what is trained and on what."""
    config = context.config
    data = provenance.collect(
        torch,
        world=context.process.world,
        extra=backend.packages(),
        run=context.run,
        backend=backend.name,
        collective=backend.collective,
        precision=config.training.precision,
        attention=attention.ATTENTION,
        kernels=kernels,
        transformer_impl="local",
    )
    message = f"torch {data['torch']['version']}, megatron-core {data['megatron_core']}, {backend.name}"
    wire.emit("diagnostic", level="info", code="provenance", message=message, data=data)
    told = ", ".join(f"{what} {kernel}" for what, kernel in kernels.items())
    wire.emit("diagnostic", level="info", code="kernels", message=told, data=kernels)
    report.model_diagnostic(config, vocab, schedules.name(config.training.parallel))
    wire.emit("diagnostic", **entry.diagnostic())


def _finish(
    context: Context,
    reporter: report.Reporter,
    begun: int,
    loss: float | None,
    seconds: float,
    validation: float | None,
) -> None:
    """Write train.json and say the result: steps are the whole training's, tokens, samples and seconds those of this
    run, which went on from step `begun`.
    """
    training = context.config.training
    result = {
        "schema": "ekvi.train/1",
        "run": context.run,
        "final_loss": loss,
        "validation_loss": validation,
        "steps": training.iterations,
        "resumed_from_step": begun or None,
        "tokens": reporter.tokens,
        "samples": (training.iterations - begun) * training.global_batch,
        "seconds": seconds,
        "nan_iterations": reporter.nan_iterations,
        "skipped_iterations": reporter.skipped_iterations,
        "mem_peak_by": report.peak_memory_by(),
    }
    folder = context.folders.out
    with writing(str(folder / "train.json")):
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / ".train.json.part"
        part.write_text(json.dumps(result, indent=1) + "\n")
        os.replace(part, folder / "train.json")
    artifact(folder, folder / "train.json")
    told = "no number" if loss is None else f"{loss:.4f}"
    now = f", {training.iterations - begun} of them now," if begun else ""
    message = f"final loss {told} after {training.iterations} iterations{now} in {seconds:.1f} s"
    if not reporter.tokens:
        message = f"all {training.iterations} iterations were made before"
    if reporter.nan_iterations or reporter.skipped_iterations:
        message += f"; {reporter.nan_iterations} nan and {reporter.skipped_iterations} skipped iterations"
    level = "warning" if reporter.nan_iterations or reporter.skipped_iterations else "info"
    wire.emit("diagnostic", level=level, code="result", message=message, data=result)
