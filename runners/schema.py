"""The configuration that a runner gets: strict models, unknown keys refused.

Defaults stand here, so that every key exists whatever a YAML file leaves out. Units stand in the names; counts are
plain integers.
"""

from __future__ import annotations

import hashlib
import json
from typing import (
    Annotated,
    Any,
    Literal,
    Self,  # typing has it from 3.11 on; pydantic brings this one
)

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


def refuse(message: str, *keys: str) -> PydanticCustomError:
    """The error that a validator raises with a sentence for the user.

    `keys` are the dotted keys that do not fit together, seen from the model that refuses: they say where to look.
    """
    return PydanticCustomError("refused", "{message}", {"message": message, "keys": keys})


def _whole(value: Any) -> Any:
    """A whole number may be written 1e3; true and "12" are no numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Real = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Positive = Annotated[Whole, Field(ge=1)]
NonNegative = Annotated[Whole, Field(ge=0)]

STAGES = ("data", "calibrate", "train", "wrap", "purge")
ALL_STAGES = ("data", "train", "wrap")  # what stage=all stands for


class Strict(BaseModel):
    """Base of all configuration models."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Model(Strict):
    """A decoder-only transformer in Llama's shape.

    `vocab` None takes the tokenizer's size; it is padded to a multiple of `vocab_multiple` times the tensor size.
    """

    name: str = "tiny"
    layers: Positive = 4
    hidden: Positive = 128
    heads: Positive = 4
    kv_heads: Positive = 2
    ffn: Positive = 352
    vocab: Positive | None = None
    vocab_multiple: Positive = 64
    rope_base: Annotated[Real, Field(gt=0)] = 10000.0
    norm_eps: Annotated[Real, Field(gt=0)] = 1e-5
    tied_embeddings: Flag = False
    qkv_bias: Flag = False

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % self.heads:
            raise refuse(f"model.hidden {self.hidden} does not divide by model.heads {self.heads}", "heads", "hidden")
        if self.heads % self.kv_heads:
            raise refuse(
                f"model.heads {self.heads} does not divide by model.kv_heads {self.kv_heads}", "kv_heads", "heads"
            )
        return self


class Data(Strict):
    """Where tokens come from.

    `source` pydoc is the documentation that every Python carries, synthetic a seeded random walk, files the local
    text files in `paths`. `samples` bounds the documents read; None reads all. `train_split` is the share of
    documents for training, 0..1, the rest is for validation.
    """

    name: str = "pydoc"
    source: Literal["pydoc", "synthetic", "files"] = "pydoc"
    paths: tuple[str, ...] = ()
    samples: Positive | None = None
    train_split: Annotated[Real, Field(gt=0, le=1)] = 1.0
    tokenizer_vocab: Annotated[Whole, Field(ge=257)] = 1024
    seed: NonNegative = 1234

    @property
    def request(self) -> str:
        """16 hex digits over what decides the prepared data; `<request>.entry` in the cache names the entry made."""
        asked = self.model_dump(mode="json", include={"source", "paths", "samples", "tokenizer_vocab", "seed"})
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    @model_validator(mode="after")
    def _paths(self) -> Self:
        if (self.source == "files") != bool(self.paths):
            raise refuse("data.paths are for data.source=files, and data.source=files needs them", "paths", "source")
        return self


class Parallel(Strict):
    """Sizes of the process grid; their product is the number of processes."""

    tensor: Positive = 1
    pipeline: Positive = 1
    data: Positive = 1
    virtual_pipeline: Positive | None = None  # chunks a stage: the interleaved schedule

    @property
    def processes(self) -> int:
        """How many processes train together."""
        return self.tensor * self.pipeline * self.data


class Training(Strict):
    """How it is trained. `backend` is the device family; batches count sequences; warmup_steps counts iterations."""

    name: str = "cpu"
    backend: Literal["cpu", "cuda", "rocm"] = "cpu"
    train_iters: Positive = 120
    sequence_length: Positive = 128
    micro_batch: Positive = 4
    global_batch: Positive = 8
    learning_rate: Annotated[Real, Field(gt=0)] = 1e-3
    min_learning_rate: Annotated[Real, Field(ge=0)] = 1e-4
    warmup_steps: NonNegative = 10
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: Annotated[Real, Field(ge=0)] = 0.1
    adam_beta1: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[Real, Field(ge=0, lt=1)] = 0.95
    adam_eps: Annotated[Real, Field(gt=0)] = 1e-8
    clip_grad: Annotated[Real, Field(ge=0)] = 1.0
    precision: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    init_std: Annotated[Real, Field(gt=0)] = 0.02
    seed: NonNegative = 1234
    threads: Positive = 1  # CPU threads a process
    parallel: Parallel = Parallel()

    @model_validator(mode="after")
    def _rates(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise refuse(
                f"training.min_learning_rate {self.min_learning_rate} is above training.learning_rate "
                f"{self.learning_rate}",
                "min_learning_rate",
                "learning_rate",
            )
        return self

    @model_validator(mode="after")
    def _batches(self) -> Self:
        share = self.micro_batch * self.parallel.data
        if self.global_batch % share:
            raise refuse(
                f"training.global_batch {self.global_batch} does not divide by training.micro_batch "
                f"{self.micro_batch} x training.parallel.data {self.parallel.data}",
                "parallel.data",
                "micro_batch",
                "global_batch",
            )
        micro = self.global_batch // share
        if self.parallel.virtual_pipeline and micro % self.parallel.pipeline:
            raise refuse(
                f"the interleaved schedule needs the number of micro batches ({micro}) to divide by "
                f"training.parallel.pipeline {self.parallel.pipeline}",
                "parallel.virtual_pipeline",
                "parallel.pipeline",
            )
        if self.parallel.virtual_pipeline and self.parallel.pipeline < 2:
            raise refuse(
                "training.parallel.virtual_pipeline needs training.parallel.pipeline of 2 or more",
                "parallel.virtual_pipeline",
                "parallel.pipeline",
            )
        return self


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


Runner = Annotated[MegatronRunner | SmokeRunner | CommandRunner, Field(discriminator="name")]


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

    @property
    def processes(self) -> int:
        """How many processes the runner starts."""
        if isinstance(self.runner, SmokeRunner):
            return self.runner.processes
        return self.training.parallel.processes if isinstance(self.runner, MegatronRunner) else 1
