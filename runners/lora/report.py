"""What a fine-tuning tells the cockpit, and its report.json."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from runners import wire
from runners.errors import writing
from runners.listeners import Listener, Step
from runners.lora import model as models
from runners.lora.logs import perplexity
from runners.lora.progress import Progress
from runners.schema import LoraRunner
from runners.stages.wrap import artifact

NAME = "report.json"
COUNTED = "tokens without padding"


class WireLines(Listener):
    """One iteration line a step, one diagnostic a validation."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.odd = False

    def step(self, step: Step) -> None:
        """`tokens` are without padding; with it they are in `extra`."""
        wire.emit(
            "iteration",
            step=step.step,
            total=self.total,
            loss=step.loss,
            step_s=step.seconds,
            tokens=step.tokens,
            samples=step.samples,
            lr=step.rate,
            grad_norm=step.grad_norm,
            extra=dict(step.extra),
        )
        if step.extra.get("skipped") and not self.odd:
            self.odd = True
            what = "the loss" if step.loss is None else "the gradient"
            message = f"{what} of step {step.step} is not a finite number; its update was left out"
            wire.emit("diagnostic", level="warning", code="nan", message=message, data={"step": step.step})

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """Loss and perplexity."""
        known = loss if math.isfinite(loss) else None
        wire.emit(
            "diagnostic",
            level="info",
            code="validation",
            message=f"validation loss {loss:.6g} at step {step}.",
            data={
                "step": step,
                "set": "validation",
                "loss": known,
                "perplexity": finite(perplexity(loss)),
                "samples": samples,
                "tokens": tokens,
            },
        )


def finite(value: float) -> float | None:
    """None for what JSON cannot say."""
    return value if math.isfinite(value) else None


def model_diagnostic(runner: LoraRunner, name: str, wrapped: models.Wrapped, facts: Mapping[str, Any]) -> None:
    """Say what is trained. FLOP a token stay unknown: frozen weights have no gradient of their own, so that no usual
    convention counts what is done, and the sequences differ in length.
    """
    every, trained = facts["parameters"], facts["trainable"]
    adapters = None
    if runner.lora:
        adapters = {name: getattr(runner, name) for name in ("r", "alpha", "dropout", "target_modules")}
    wire.emit(
        "diagnostic",
        level="info",
        code="model",
        message=f"{name}: {every} parameters, {trained} of them trained, {facts['global_batch']} sequences a step",
        data={
            "name": name,
            "architecture": type(base(wrapped.core)).__name__,
            "parameters": every,
            "trainable": trained,
            "weights": facts["weights"],
            "flops_per_token": None,
            "lora": adapters,
            "precision": precision(runner),
            "base_dtype": str(models.base_dtype(runner)).removeprefix("torch."),
            "attention": runner.attention,
            "strategy": runner.strategy,
            "seq_len": runner.seq_len,
            "batch": runner.batch,
            "grad_accum": runner.grad_accum,
            "batch_of_all": facts["global_batch"],
            "steps": facts["steps"],
            "tokens_counted": COUNTED,
        },
    )


def base(core: Any) -> Any:
    """The model below its adapters."""
    return core.get_base_model() if hasattr(core, "get_base_model") else core


def precision(runner: LoraRunner) -> str:
    """In which numbers is computed."""
    return "bf16" if runner.bf16 else "fp32"


def report(
    run: str | None, world: int, progress: Progress, facts: Mapping[str, Any], merged: bool, begun: int
) -> dict[str, Any]:
    """The document. Counts and `seconds` are of all steps, also of those before `begun`, where this run went on."""
    validation = progress.validation
    return {
        "schema": "ekvi.lora/1",
        "run": run,
        "world_size": world,
        "tokens": progress.tokens,
        "tokens_counted": COUNTED,
        "padded_tokens": progress.padded,
        "target_tokens": progress.targets,
        "samples": progress.samples,
        "seconds": progress.seconds,
        "tokens_per_s": progress.tokens / progress.seconds if progress.seconds else None,
        "steps": progress.step,
        "resumed_from_step": begun or None,
        "epochs": progress.epoch,
        "skipped_steps": progress.skipped,
        "final_loss": progress.loss,
        "validation_loss": validation,
        "perplexity": None if validation is None else finite(perplexity(validation)),
        "best": None if progress.best is None else progress.as_json()["best"],
        "target_reached": progress.reached,
        "merged": merged,
        "parameters": facts["parameters"],
        "trainable": facts["trainable"],
        "mem_peak_by": peak_by(facts["device"]),
    }


def write(folder: Path, document: Mapping[str, Any], copy: str | None) -> None:
    """report.json in the output folder, and a copy where one is asked for. RunnerError where the disk refuses."""
    target = folder / NAME
    with writing(str(target)):
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{NAME}.part"
        part.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(part, target)
    artifact(folder, target)
    if copy:
        place = Path(os.path.expanduser(copy)).absolute()
        with writing(str(place)):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, place)


def peak_by(device: str) -> int:
    """The most memory this process held on its device, in bytes."""
    if device != "cpu":
        return int(torch.get_device_module(torch.device(device)).max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
