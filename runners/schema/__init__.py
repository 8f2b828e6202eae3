"""The configuration that a runner gets: strict models, unknown keys refused.

Defaults stand here, so that every key exists whatever a YAML file leaves out. Units stand in the names; counts are
plain integers.
"""

from __future__ import annotations

from pydantic import model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, NonNegative, Positive, Real, Strict, Whole, refuse
from runners.schema.checkpoint import Checkpoint
from runners.schema.data import Data
from runners.schema.lora import LoraRunner
from runners.schema.model import Model, RopeScaling
from runners.schema.runner import CommandRunner, Declares, LogFormat, MegatronRunner, Runner, SmokeRunner
from runners.schema.training import Kernels, Libraries, LossScale, Parallel, Training

__all__ = [
    "ALL_STAGES",
    "STAGES",
    "Checkpoint",
    "CommandRunner",
    "Data",
    "Declares",
    "Flag",
    "Kernels",
    "Libraries",
    "LogFormat",
    "LoraRunner",
    "LossScale",
    "MegatronRunner",
    "Model",
    "NonNegative",
    "Parallel",
    "Positive",
    "Real",
    "RopeScaling",
    "RunConfig",
    "Runner",
    "SmokeRunner",
    "Strict",
    "Training",
    "Whole",
    "refuse",
]

STAGES = ("data", "calibrate", "train", "wrap", "purge")
ALL_STAGES = ("data", "train", "wrap")  # what stage=all stands for


class RunConfig(Strict):
    """The one resolved configuration of a run, as JSON beside it."""

    model: Model = Model()
    data: Data = Data()
    training: Training = Training()
    runner: Runner = MegatronRunner()

    @model_validator(mode="after")
    def _grid(self) -> Self:
        p, m = self.training.parallel, self.model
        for what, count, key, size in (
            ("model.heads", m.heads, "training.parallel.tensor", p.tensor),
            ("model.kv_heads", m.kv_heads, "training.parallel.tensor", p.tensor),
            ("model.ffn", m.ffn, "training.parallel.tensor", p.tensor),
            ("model.layers", m.layers, "training.parallel.pipeline", p.pipeline * (p.virtual_pipeline or 1)),
        ):
            if count % size:
                raise refuse(f"{what} {count} does not divide by {key} {size}", key, what)
        return self

    @model_validator(mode="after")
    def _reach(self) -> Self:
        sequence, most = self.training.sequence_length, self.model.max_sequence
        if most is not None and sequence > most:
            raise refuse(
                f"training.sequence_length {sequence} is longer than the model takes, model.max_sequence {most}",
                "training.sequence_length",
                "model.max_sequence",
            )
        return self

    @model_validator(mode="after")
    def _layer(self) -> Self:
        if self.training.kernels.layer == "fused" and self.model.architecture != "llama":
            raise refuse(
                "training.kernels.layer=fused is Llama's layer, not that of"
                f" model.architecture={self.model.architecture}: set training.kernels.layer=auto",
                "training.kernels.layer",
                "model.architecture",
            )
        return self

    @model_validator(mode="after")
    def _evaluation(self) -> Self:
        if self.training.evaluate and self.data.train_split == 1:
            raise refuse(
                "training.evaluate needs documents to validate on, but data.train_split is 1.0: all of them train",
                "training.evaluate",
                "data.train_split",
            )
        return self

    @property
    def processes(self) -> int:
        """How many processes the runner starts."""
        if isinstance(self.runner, SmokeRunner | LoraRunner):
            return self.runner.processes
        return self.training.parallel.processes if isinstance(self.runner, MegatronRunner) else 1
