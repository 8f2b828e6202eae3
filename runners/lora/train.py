"""One fine-tuning from its configuration to its report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from runners import group, provenance, wire
from runners.errors import ConfigurationError
from runners.listeners import Chorus, Listener
from runners.lora import data, logs, loop, merge, model, npy, report, sources
from runners.lora.logs import log
from runners.lora.model import Wrapped
from runners.lora.saving import Saver
from runners.lora.sources import Sources
from runners.process import Process
from runners.schema import LoraRunner, RunConfig
from runners.stages import Context, Outcome

PACKAGES = ("peft", "safetensors", "accelerate")


@dataclass(frozen=True)
class Given:
    """What a training starts from: the sources and what was read from them."""

    sources: Sources
    tokenizer: Any
    train: data.Examples
    validation: data.Examples

    @property
    def pad(self) -> int:
        """The id that fills batches up."""
        return int(getattr(self.tokenizer, "pad_token_id", None) or 0)


def prepare(context: Context) -> Outcome:
    """The data stage: fetch or make the model, and read every record once. On rank 0 of a node only."""
    _quiet()
    context = npy.made(context)
    runner = _runner(context.config)
    given = _read(context, runner)
    if context.process.first:
        _tell_data(given)
    told = f"{len(given.train)} training and {len(given.validation)} validation examples, {given.sources.name}"
    return Outcome("done", told)


def run(context: Context, listeners: Sequence[Callable[[], Listener]] = ()) -> Outcome:
    """Train as configured; `listeners` as in `runners.lora.run`."""
    runner, process = _runner(context.config), context.process
    _check(runner, process)
    _quiet()
    logs.set_up(runner, process)
    told = [make() for make in listeners] if process.last else []
    log.info("[STEP] init: rank %d of %d, local rank %d", process.rank, process.world, process.local_rank)
    torch.set_num_threads(context.config.training.threads)
    device = device_of(context)
    if process.local_rank == 0:  # before the group forms: the others of this node wait there for what is made now
        npy.prepared(context)
        sources.find(context.config, runner, context.folders.cache)
    collective = group.collective_of(device)
    with group.joined(process, collective):
        log.info("[DDP] %s: device %s, threads %d", collective, device, torch.get_num_threads())
        context = npy.prepared(context)
        runner = _runner(context.config)
        given = _read(context, runner)
        if process.last:
            _introduce(context, runner, device, collective)
            _tell_data(given)
        outcome = _train(context, runner, given, device, told)
        dist.barrier()  # nobody leaves while another still works: its loss of a peer would hide the real cause
    log.info("[DDP] left the process group")
    log.info("[DONE] %s", outcome.message)
    return outcome


def device_of(context: Context) -> str:
    """This process's device, made current. ConfigurationError where the GPUs asked for are not there."""
    backend = context.config.training.backend
    gpus = 0 if backend == "cpu" else group.gpu_count()
    if backend != "cpu" and not gpus:
        raise ConfigurationError(
            f"training.backend={backend}, but this torch sees no GPU.",
            hint="Set training=cpu, or see that driver, container and torch build fit the GPU.",
            every_rank=True,
        )
    device = group.device_of(context.process, gpus)
    if device != "cpu":
        torch.get_device_module(torch.device(device)).set_device(device)
    return device


def _train(context: Context, runner: LoraRunner, given: Given, device: str, told: Sequence[Listener]) -> Outcome:
    """Build, go on from where it was, train, merge, report."""
    process = context.process
    log.info("[STEP] model: %s from %s", given.sources.name, given.sources.model)
    wrapped = model.build(runner, given.sources.model, process, device)
    if runner.lora and given.sources.published:  # else the adapter would ask for a folder that others do not have
        wrapped.core.peft_config["default"].base_model_name_or_path = given.sources.name
    trainer = _trainer(context, runner, given, wrapped)
    facts = _facts(runner, given, trainer, device)
    _describe(runner, trainer, facts)
    listener = _listener(context, runner, trainer.steps, told) if process.last else Listener()
    trainer.listener = listener
    if process.last:
        report.model_diagnostic(runner, given.sources.name, wrapped, facts)
    begun = trainer.progress.step
    if begun and process.last:
        message = f"goes on after step {begun} of {trainer.steps}"
        wire.emit("diagnostic", level="info", code="resumed", message=message, data={"step": begun})
    log.info("[STEP] start training")
    listener.started(facts)
    began = time.perf_counter()
    try:
        loop.train(trainer)
    except BaseException:
        listener.finished("aborted")
        raise
    log.info("[STEP] finalize")
    missed = runner.target_loss is not None and not trainer.progress.reached
    listener.finished("aborted" if missed else "success")
    merged = _merge(context, runner, given, trainer)
    document = report.report(context.run, process.world, trainer.progress, facts, merged, begun)
    return _finish(context, runner, trainer, document, time.perf_counter() - began)


def _trainer(context: Context, runner: LoraRunner, given: Given, wrapped: Wrapped) -> loop.Trainer:
    """Everything the loop needs, resumed where there is something to go on from."""
    process, pin = context.process, wrapped.device != "cpu"
    loader = data.Loader.make(
        given.train,
        world=process.world,
        rank=process.rank,
        batch=runner.batch,
        seed=runner.seed,
        pad=given.pad,
        pin=pin,
    )
    made_of = {
        "lora": runner.lora,
        "r": runner.r if runner.lora else None,
        "target_modules": sorted(runner.target_modules) if runner.lora else None,
        "model": given.sources.name,
        "seed": runner.seed,
        "data": given.train.digest(),
        "batch_of_all": runner.batch * process.world,
    }
    saver = Saver(context.folders.out, runner, process, given.tokenizer, made_of)
    trainer = loop.Trainer(
        runner,
        process,
        wrapped,
        loop.optimizer(wrapped, runner),
        loader,
        given.validation,
        given.pad,
        saver,
        Listener(),
        logs.Logs(runner),
    )
    trainer.progress = saver.restore(wrapped, trainer.optimizer) or trainer.progress
    return trainer


def _facts(runner: LoraRunner, given: Given, trainer: loop.Trainer, device: str) -> dict[str, Any]:
    """What listeners are told at the start, flat but for nothing."""
    every, trained = model.counts(trainer.model.core)
    world = trainer.process.world
    settings = ("batch", "grad_accum", "seq_len", "lr", "warmup_steps", "weight_decay", "clip_grad", "r", "alpha")
    return {
        "world": world,
        "global_batch": runner.batch * runner.grad_accum * world,
        "train_samples": len(given.train),
        "eval_samples": len(given.validation),
        "steps": trainer.steps,
        "done_samples": trainer.progress.samples,  # where it goes on from a checkpoint
        "reached": trainer.progress.reached,
        "parameters": every,
        "trainable": trained,
        "model": given.sources.name,
        "weights": sources.fingerprint(given.sources.model),
        "device": device,
        **{name: getattr(runner, name) for name in (*settings, "dropout", "seed", "strategy", "epochs", "schedule")},
        "lora": runner.lora,
        "precision": report.precision(runner),
    }


def _listener(context: Context, runner: LoraRunner, total: int, told: Sequence[Listener]) -> Listener:
    lines: list[Listener] = [report.WireLines(total)]
    if runner.log_level in ("DEBUG", "INFO"):
        lines.append(logs.TrainLines(total, context.process))
    if runner.track:
        from runners import track

        lines += track.listeners(runner.track, context.folders.out, context.run)
    return Chorus([*told, *lines])


def _merge(context: Context, runner: LoraRunner, given: Given, trainer: loop.Trainer) -> bool:
    """Merge the best adapter on rank 0; the others need not wait for it but at the end."""
    adapter = trainer.saver.best(trainer.progress)
    if not runner.merge or adapter is None:
        return False
    if context.process.first:
        log.info("[STEP] merge: %s into %s", adapter.name, given.sources.model)
        merge.merge(given.sources.model, adapter, given.tokenizer, context.folders.out)
        log.info("[RESULT] merged weights in %s", context.folders.out / merge.NAME)
    return True


def _finish(
    context: Context, runner: LoraRunner, trainer: loop.Trainer, document: Mapping[str, Any], seconds: float
) -> Outcome:
    """The report, and the last words."""
    progress = trainer.progress
    loss = "unknown" if progress.loss is None else f"{progress.loss:.4f}"
    message = f"loss {loss} after {progress.step} steps in {seconds:.1f} s"
    if progress.validation is not None:
        message += f", validation {progress.validation:.4f}"
    missed = runner.target_loss is not None and not progress.reached
    if missed:
        message += f"; the target loss {runner.target_loss:g} was not reached"
    if context.process.last:
        report.write(context.folders.out, document, runner.report_json)
        level = "warning" if missed or progress.skipped else "info"
        wire.emit("diagnostic", level=level, code="result", message=message, data=dict(document))
    best = progress.best
    rate = document["tokens_per_s"]
    log.info(
        "[RESULT] %s, %d tokens without padding in %.3f s, %s tokens/s, world size %d, best %s",
        message, progress.tokens, progress.seconds, "no" if rate is None else f"{rate:.0f}", context.process.world,
        "none" if best is None else best.folder,
    )  # fmt: skip
    return Outcome("done", message)


def _read(context: Context, runner: LoraRunner) -> Given:
    """Find the sources and read all records. ConfigurationError names what is wrong."""
    found = sources.find(context.config, runner, context.folders.cache)
    tokenizer = sources.tokenizer(found)
    train, validation = sources.examples(context.config, runner, tokenizer, context.folders.cache)
    return Given(found, tokenizer, train, validation)


def _tell_data(given: Given) -> None:
    """What was read, as a diagnostic; broken records that were left out are a warning."""
    train, validation, skips = given.train, given.validation, given.train.skips
    left = f", {skips.count} broken records left out (the first: {skips.first})" if skips.count else ""
    cut = f", {train.cut} cut at the sequence length" if train.cut else ""
    dropped = f", {train.dropped} with nothing to learn left out" if train.dropped else ""
    wire.emit(
        "diagnostic",
        level="warning" if skips.count else "info",
        code="data",
        message=f"{len(train)} training and {len(validation)} validation examples{cut}{dropped}{left}",
        data={
            "sha256": train.digest(),
            "validation_sha256": validation.digest(),
            "train_samples": len(train),
            "validation_samples": len(validation),
            "tokens": train.tokens,
            "target_tokens": train.targets,
            "cut": train.cut,
            "dropped": train.dropped,
            "skipped": skips.count,
            "chat_template": "plain" if data.Encoder(given.tokenizer).plain else "model",
        },
    )


def _describe(runner: LoraRunner, trainer: loop.Trainer, facts: Mapping[str, Any]) -> None:
    """[DATA] and [MODEL]: what is trained on what."""
    train, validation, loader = trainer.loader.dataset, trainer.validation, trainer.loader
    log.info(
        "[DATA] %d examples, %d tokens, %d of them targets; %d for validation",
        len(train), train.tokens, train.targets, len(validation),
    )  # fmt: skip
    log.info("[DATA] DistributedSampler over %d processes: %d batches of %d an epoch, %d steps in all",
             facts["world"], len(loader), runner.batch, trainer.steps)  # fmt: skip
    log.debug("[DATA] sampler: %d examples a process, shuffled with seed %d by epoch; loader: pinned %s, cut %d,"
              " dropped %d", len(loader.sampler), runner.seed, loader.pin, train.cut, train.dropped)  # fmt: skip
    log.info("[MODEL] %d parameters in %s, attention %s, %s", facts["parameters"],
             str(model.base_dtype(runner)).removeprefix("torch."), runner.attention, facts["precision"])  # fmt: skip
    share = 100 * facts["trainable"] / facts["parameters"]
    log.debug("[MODEL] trainable: %d (%.4f %%)", facts["trainable"], share)
    log.info("[MODEL] optimizer AdamW lr %g, schedule %s after %d warm-up steps, strategy %s over %d",
             runner.lr, runner.schedule, runner.warmup_steps, runner.strategy, facts["world"])  # fmt: skip
    if runner.warmup_steps >= trainer.steps:
        log.warning("[MODEL] the warm-up of %d steps is as long as the training of %d: the rate %g is hardly reached",
                    runner.warmup_steps, trainer.steps, runner.lr)  # fmt: skip


def _introduce(context: Context, runner: LoraRunner, device: str, collective: str) -> None:
    """Say what made this run."""
    told = provenance.collect(
        torch,
        world=context.process.world,
        extra=PACKAGES,
        run=context.run,
        backend=context.config.training.backend,
        collective=collective,
        precision=report.precision(runner),
        attention=runner.attention,
    )
    message = f"torch {told['torch']['version']}, transformers {told['packages'].get('transformers')}, {device}"
    wire.emit("diagnostic", level="info", code="provenance", message=message, data=told)


def _runner(config: RunConfig) -> LoraRunner:
    assert isinstance(config.runner, LoraRunner)
    return config.runner


def _check(runner: LoraRunner, process: Process) -> None:
    """A launcher's number of processes is the one that was asked for."""
    if process.launched and process.world != runner.processes:
        raise ConfigurationError(
            f"{process.world} processes started, but runner.processes is {runner.processes}.",
            hint=f"Set runner.processes={process.world}, or start {runner.processes}.",
            every_rank=True,
        )


def _quiet() -> None:
    """Leave out what the libraries tell of themselves: bars, advice, what is recorded anyway."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for module in (r"torch\.distributed", r"torch\.utils", r"peft\.", r"transformers\."):
        warnings.filterwarnings("ignore", module=module)
