"""Which program does the work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runners.schema.base import NonNegative, Positive, Real, Strict, Whole
from runners.schema.lora import LoraRunner


class MegatronRunner(Strict):
    """GPT training with megatron-core."""

    name: Literal["megatron"] = "megatron"


class SmokeRunner(Strict):
    """The DDP smoke test: a small MLP on separable synthetic data. `batch` is per process."""

    name: Literal["smoke"] = "smoke"
    epochs: Positive = 2
    batch: Positive = 256
    samples: Positive = 4096
    features: Positive = 128
    classes: Annotated[Whole, Field(ge=2)] = 4
    lr: Annotated[Real, Field(gt=0)] = 3e-3
    seed: NonNegative = 42
    processes: Positive = 2
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class Declares(Strict):
    """What a program trains, where its log does not say: for tokens a second and for parity.

    `sequence_length` in tokens, `global_batch` in sequences, `parameters` counts all of them. None is unknown.
    """

    model: str | None = None
    parameters: Positive | None = None
    sequence_length: Positive | None = None
    global_batch: Positive | None = None
    precision: str | None = None


LogFormat = Literal["auto", "megatron", "nemo", "torchtitan", "tags", "wire"]


class CommandRunner(Strict):
    """Any program in any image. `{seq_length}`, `{output}` and other keys are filled into `argv` and `env`.

    `artifacts` are patterns of the files below `{output}` that come home (empty: as the profile's `fetch`).
    `log_format` auto tells the format from the lines; a name lets only that one give iterations. Of several nodes
    `log_node` is the one that prints them, counted from 0.
    """

    name: Literal["command"] = "command"
    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    log_format: LogFormat = "auto"
    log_node: NonNegative = 0
    declares: Declares = Declares()


Runner = Annotated[MegatronRunner | SmokeRunner | LoraRunner | CommandRunner, Field(discriminator="name")]
