"""The smoke test of data-parallel training: does this machine's torch, its process group and its devices work?

A small network on separable synthetic data, with DDP and a distributed sampler; gloo on the host, nccl on GPUs
(RCCL on ROCm) by the same code. It fails where the loss did not fall. Runs with and without torchrun.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from runners import group, provenance, wire
from runners.errors import ConfigurationError, RunnerError
from runners.process import Process
from runners.schema import SmokeRunner, Training
from runners.stages import Context, Outcome

_HIDDEN = 128
log = logging.getLogger("runners.smoke")


@dataclass
class Smoke:
    """What the epochs need."""

    settings: SmokeRunner
    process: Process
    device: str
    model: Any
    optimizer: Any
    loader: Any
    sampler: Any

    @property
    def total(self) -> int:
        """Batches over all epochs."""
        return self.settings.epochs * len(self.loader)


def run(context: Context) -> Outcome:
    """Run the test. ConfigurationError for a rank without a GPU, RunnerError where the loss did not fall."""
    settings, process = context.config.runner, context.process
    assert isinstance(settings, SmokeRunner)
    _check(settings, process)
    _log_to_stdout(settings, process)
    log.info("[STEP] init: rank %d of %d, local rank %d", process.rank, process.world, process.local_rank)
    _threads(context.config.training)
    gpus = group.gpu_count()
    device = group.device_of(process, gpus)
    if device != "cpu":
        torch.cuda.set_device(device)
    collective = group.collective_of(device)
    with group.joined(process, collective):
        log.info("[DDP] %s: device %s of %d GPUs, threads %d", collective, device, gpus, torch.get_num_threads())
        if process.last:
            _introduce(context, settings, device, collective)
        smoke = set_up(settings, process, device)
        begin = time.perf_counter()
        losses = [epoch(smoke, number) for number in range(1, settings.epochs + 1)]
        seconds = time.perf_counter() - begin
        result(smoke, losses, seconds)
        dist.barrier()
    log.info("[DONE] smoke test")
    return Outcome("done", f"loss {losses[0][0]:.4f} -> {losses[-1][1]:.4f} in {seconds:.1f} s")


def set_up(settings: SmokeRunner, process: Process, device: str) -> Smoke:
    """Data, network and optimizer of this rank; call it on all ranks, in the process group."""
    log.info("[STEP] seed: %d", settings.seed)
    torch.manual_seed(settings.seed)
    features, labels = separable(settings)
    dataset = TensorDataset(features, labels)
    sampler = DistributedSampler(
        dataset, num_replicas=process.world, rank=process.rank, shuffle=True, seed=settings.seed
    )
    loader = DataLoader(dataset, batch_size=settings.batch, sampler=sampler)
    log.info(
        "[STEP] loader: %d samples, %d a process, %d batches of %d",
        settings.samples, len(sampler), len(loader), settings.batch,
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(settings.features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, settings.classes)).to(
        device
    )
    log.info("[STEP] model: %d parameters", sum(parameter.numel() for parameter in model.parameters()))
    wrapped = DistributedDataParallel(model, device_ids=None if device == "cpu" else [process.local_rank])
    log.info("[STEP] DDP: wrapped, gradients averaged over %d processes", process.world)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=settings.lr)
    return Smoke(settings, process, device, wrapped, optimizer, loader, sampler)


def separable(settings: SmokeRunner) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [samples, features] and int64 [samples]: each class is a cloud around a centre of its own, far
    enough from the others that a plane parts them. The same for the same seed.
    """
    draw = torch.Generator().manual_seed(settings.seed)
    labels = torch.randint(settings.classes, (settings.samples,), generator=draw)
    centres = torch.randn(settings.classes, settings.features, generator=draw)
    noise = torch.randn(settings.samples, settings.features, generator=draw)
    return centres[labels] + 0.5 * noise, labels


def epoch(smoke: Smoke, number: int) -> tuple[float, float]:
    """One epoch, counted from 1; returns its first batch's loss and its mean loss, over all processes."""
    smoke.sampler.set_epoch(number - 1)  # another order each epoch, the same on all ranks
    begin = last = time.perf_counter()
    losses = []
    for index, (features, classes) in enumerate(smoke.loader):
        inputs, labels = features.to(smoke.device), classes.to(smoke.device)
        smoke.optimizer.zero_grad()
        own = nn.functional.cross_entropy(smoke.model(inputs), labels)
        own.backward()
        smoke.optimizer.step()
        loss = own.detach()
        dist.all_reduce(loss)  # also waits for the device: the clock below means something
        losses.append(float(loss) / smoke.process.world)
        end = time.perf_counter()
        seconds, last = end - last, end  # from batch to batch: loading the data counts
        if index in (0, len(smoke.loader) - 1):
            log.debug(
                "[BATCH] epoch %d batch %d/%d loss %.6f inputs %s labels %s",
                number, index + 1, len(smoke.loader), losses[-1], list(inputs.shape), list(labels.shape),
            )  # fmt: skip
        if smoke.process.last:
            _iteration(smoke, (number - 1) * len(smoke.loader) + index + 1, losses[-1], seconds, len(labels))
    mean = sum(losses) / len(losses)
    took = time.perf_counter() - begin
    log.info("[TRAIN] epoch %d/%d loss %.6f (%.3f s)", number, smoke.settings.epochs, mean, took)
    return losses[0], mean


def result(smoke: Smoke, losses: list[tuple[float, float]], seconds: float) -> None:
    """Say the timing and whether the loss fell from the first batch to the last epoch; RunnerError if not."""
    first, final = losses[0][0], losses[-1][1]
    fell = final < first  # False for a loss that is not a number, too
    samples = len(smoke.sampler) * smoke.process.world * smoke.settings.epochs
    log.info(
        "[RESULT] loss %.6f -> %.6f (%s), %d samples in %.3f s, %.0f samples/s",
        first, final, "fell" if fell else "did not fall", samples, seconds, samples / seconds,
    )  # fmt: skip
    if smoke.process.last:
        wire.emit(
            "diagnostic",
            level="info" if fell else "error",
            code="result",
            message=f"loss {'fell' if fell else 'did not fall'} in {seconds:.2f} s",
            data={"fell": fell, "seconds": seconds, "samples": samples, "epochs": smoke.settings.epochs},
        )
    if not fell:
        raise RunnerError(
            f"the loss did not fall: {first:.4f} at first, {final:.4f} in the last epoch.",
            hint="Try more runner.epochs or a smaller runner.lr; if that does not help, do not trust this machine.",
            every_rank=True,
        )


def _iteration(smoke: Smoke, step: int, loss: float, seconds: float, samples: int) -> None:
    wire.emit(
        "iteration",
        step=step,
        total=smoke.total,
        loss=loss if math.isfinite(loss) else None,
        step_s=seconds,
        tokens=None,
        samples=samples * smoke.process.world,
        lr=smoke.settings.lr,
        grad_norm=None,
        extra={"epoch": (step - 1) // len(smoke.loader) + 1},
    )


def _check(settings: SmokeRunner, process: Process) -> None:
    """A launcher's number of processes counts; without one a test over several processes is not what was asked."""
    if process.launched and process.world != settings.processes:
        raise ConfigurationError(
            f"{process.world} processes started, but runner.processes is {settings.processes}.",
            hint=f"Set runner.processes={process.world}, or start {settings.processes}.",
            every_rank=True,
        )
    if settings.samples < process.world:
        raise ConfigurationError(
            f"runner.samples={settings.samples} is fewer than the {process.world} processes.", every_rank=True
        )


def _threads(training: Training) -> None:
    torch.set_num_threads(training.threads)


def _log_to_stdout(settings: SmokeRunner, process: Process) -> None:
    """Rank 0 speaks of what all ranks do alike; the others only of what is wrong, and of everything at DEBUG."""
    quiet = not process.first and settings.log_level != "DEBUG"
    log.setLevel("WARNING" if quiet else settings.log_level)
    log.propagate = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        logging.Formatter(f"[rank{process.rank}] %(message)s" if process.world > 1 else "%(message)s")
    )
    log.handlers[:] = [handler]


def _introduce(context: Context, settings: SmokeRunner, device: str, collective: str) -> None:
    data = provenance.collect(
        torch,
        world=context.process.world,
        run=context.run,
        backend=device.partition(":")[0],
        collective=collective,
        precision="fp32",
        smoke=settings.model_dump(),
    )
    message = f"torch {data['torch']['version']}, {collective}, {context.process.world} processes"
    wire.emit("diagnostic", level="info", code="provenance", message=message, data=data)
