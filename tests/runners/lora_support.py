"""A model of 0.1 million parameters that learns sums, trained in this process or by many."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.listeners import Listener, Step
from runners.process import Folders, Process
from runners.schema import RunConfig
from runners.stages import Context

MODEL = {"name": "tiny", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 176}
EVERYWHERE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, Any] = {"lr": 0.02, "target_modules": EVERYWHERE, "dropout": 0.0}
WHOLE: dict[str, Any] = {"lr": 0.005, "lora": False}


def body(**runner: Any) -> dict[str, Any]:
    """A configuration as JSON has it: two epochs of 29 steps of 8 on the demo."""
    usual = {"name": "lora", "epochs": 2, "batch": 8, "seq_len": 64, "warmup_steps": 5, "log_level": "WARNING"}
    return {"model": MODEL, "runner": usual | runner}


def context(out: Path, cache: Path, **runner: Any) -> Context:
    """A run in one process."""
    return Context(RunConfig.model_validate(body(**runner)), Process(), Folders(out, cache), "r1")


@dataclass
class Heard(Listener):
    """Writes down what it is told."""

    facts: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    validations: list[tuple[int, float]] = field(default_factory=list)
    ended: str | None = None
    at_step: Callable[[Step], None] = lambda _step: None

    def started(self, facts: Any) -> None:
        self.facts = dict(facts)

    def step(self, step: Step) -> None:
        self.steps.append(step)
        self.at_step(step)

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        self.validations.append((step, loss))

    def finished(self, status: str) -> None:
        self.ended = status

    @property
    def losses(self) -> list[float | None]:
        """Of each step."""
        return [step.loss for step in self.steps]


def train(out: Path, cache: Path, heard: Heard | None = None, **runner: Any) -> Heard:
    """Train in this process; what was heard."""
    from runners import lora

    told = heard or Heard()
    lora.run(context(out, cache, **runner), [lambda: told])
    return told


def outputs(folder: Path, adapter: Path | None = None) -> Any:
    """Logits of a saved model, or of one with an adapter, for a few fixed tokens."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(10, 26).view(2, 8)).logits


def base_of(adapter: Path) -> Path:
    """The folder of the model that an adapter is for."""
    return Path(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])


def many(configs: Sequence[str]) -> int:
    """One training after another in this process, each in a folder beside its configuration (`PORT:FILE`).

    Each has a port of its own: a group must not meet what is left of the one before it.
    """
    from runners.__main__ import main

    for config in configs:
        os.environ["MASTER_PORT"], _, name = config.partition(":")
        os.environ["EKVI_OUT"] = str(Path(name).with_suffix(""))
        print(f"--- {Path(name).stem}", flush=True)
        code = main(["--config", name, "stage=train"])
        if code:
            return code
    return 0


def report(out: Path) -> dict[str, Any]:
    """The report of a training."""
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


if __name__ == "__main__":
    from runners.__main__ import leave

    leave(many(sys.argv[1:]))
