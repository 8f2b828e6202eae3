"""How it is trained: steps, batches, precision, the process grid."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, NonNegative, Positive, Real, Strict, refuse
from runners.schema.checkpoint import Checkpoint

WARMUP_STEPS = 10  # iterations of warm-up where nothing is said


class Parallel(Strict):
    """Sizes of the process grid; their product is the number of processes.

    `sequence` spreads what tensor parallelism leaves whole (norms, residuals) over the tensor ranks.
    """

    tensor: Positive = 1
    pipeline: Positive = 1
    context: Positive = 1
    data: Positive = 1
    virtual_pipeline: Positive | None = None  # chunks a stage: the interleaved schedule
    sequence: Flag = False

    @property
    def processes(self) -> int:
        """How many processes train together."""
        return self.tensor * self.pipeline * self.context * self.data


class Kernels(Strict):
    """Which code does the element-wise work and the attention; `auto` is fused on GPUs and plain on the CPU.

    `attention` names a kernel of torch's scaled dot product; auto lets torch choose. The `loss` fused with the logits
    works on `loss_chunk` tokens at a time and never holds all logits.
    """

    attention: Literal["auto", "flash", "cudnn", "efficient", "math"] = "auto"
    layer: Literal["auto", "plain", "fused"] = "auto"
    loss: Literal["auto", "plain", "fused"] = "auto"
    loss_chunk: Positive = 8192
    optimizer: Literal["auto", "plain", "fused"] = "auto"


class LossScale(Strict):
    """fp16's factor on the loss: halved after an overflow, doubled after `window` good steps, never below `least`."""

    initial: Annotated[Real, Field(gt=0)] = 65536.0
    window: Positive = 1000
    least: Annotated[Real, Field(gt=0)] = 1.0


class Libraries(Strict):
    """What a vendor's own libraries may do beyond torch's defaults: only when asked for, and recorded.

    `tunable_op` lets torch time several matrix products of hipBLASLt or cuBLASLt and keep the fastest.
    """

    tunable_op: Flag = False
    hipblaslt: Flag | None = None  # None leaves torch's choice


class Training(Strict):
    """How it is trained. `backend` is the device family; batches count sequences.

    How long, the warm-up and the decay are counted in iterations (`train_iters`, `warmup_steps`, `decay_steps`) or in
    sequences (`train_samples`, `warmup_samples`, `decay_samples`), all in the same. The decay lasts the whole
    training where neither is said, and includes the warm-up, as in Megatron. With `evaluate` the loss over up to
    `eval_iters` global batches of the validation documents is told every `eval_interval` iterations; without, which
    is what a benchmark wants, at most once, after the last.
    """

    # The key that counts iterations, and its twin that counts sequences: of a pair one at most has a value.
    TWINS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("train_iters", "train_samples"),
        ("warmup_steps", "warmup_samples"),
        ("decay_steps", "decay_samples"),
    )

    name: str = "cpu"
    backend: Literal["cpu", "cuda", "rocm"] = "cpu"
    train_iters: Positive | None = 120
    train_samples: Positive | None = None
    sequence_length: Positive = 128
    micro_batch: Positive = 4
    global_batch: Positive = 8
    learning_rate: Annotated[Real, Field(gt=0)] = 1e-3
    min_learning_rate: Annotated[Real, Field(ge=0)] = 1e-4
    warmup_steps: NonNegative | None = WARMUP_STEPS
    warmup_samples: NonNegative | None = None
    decay_steps: Positive | None = None
    decay_samples: Positive | None = None
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: Annotated[Real, Field(ge=0)] = 0.1
    adam_beta1: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[Real, Field(ge=0, lt=1)] = 0.95
    adam_eps: Annotated[Real, Field(gt=0)] = 1e-8
    clip_grad: Annotated[Real, Field(ge=0)] = 1.0
    precision: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    gradients: Literal["fp32", "bf16"] = "fp32"  # in which they are added up and reduced; below fp32 weights only
    loss_scale: LossScale = LossScale()  # fp16 only
    recompute: Literal["none", "selective", "full"] = "none"
    distributed_optimizer: Flag = True  # GPUs: each data rank keeps its share of the optimizer's state
    overlap: Flag = True  # GPUs: gradients are reduced while the backward goes on
    kernels: Kernels = Kernels()
    libraries: Libraries = Libraries()
    init_std: Annotated[Real, Field(gt=0)] = 0.02
    seed: NonNegative = 1234
    threads: Positive = 1  # CPU threads a process
    stop_on_nan: Flag = True  # a loss that is no number ends the training; false skips its update and goes on
    checkpoint: Checkpoint = Checkpoint()
    evaluate: Flag = False
    eval_interval: Positive = 100
    eval_iters: Positive = 16
    parallel: Parallel = Parallel()

    @property
    def iterations(self) -> int:
        """How many iterations the training has, whichever way its length is said."""
        return self.train_iters if self.train_iters is not None else (self.train_samples or 0) // self.global_batch

    @property
    def warmup(self) -> float:
        """Iterations until the learning rate is at its peak; a part of one where sequences are counted."""
        return self._counted(self.warmup_steps, self.warmup_samples) or 0.0

    @property
    def decay(self) -> float:
        """Iterations until the learning rate is at its lowest, the warm-up among them."""
        return self._counted(self.decay_steps, self.decay_samples) or float(self.iterations)

    def _counted(self, steps: int | None, samples: int | None) -> float | None:
        return float(steps) if steps is not None else None if samples is None else samples / self.global_batch

    @model_validator(mode="before")
    @classmethod
    def _by_samples(cls, said: Any) -> Any:
        """Who counts in sequences need not unsay the defaults, which count in iterations."""
        if not isinstance(said, dict) or said.get("train_samples") is None:
            return said
        said = {"train_iters": None, **said}
        if "warmup_steps" not in said:
            batch = said.get("global_batch", cls.model_fields["global_batch"].default)
            said["warmup_steps"] = None
            if isinstance(batch, int):
                said.setdefault("warmup_samples", WARMUP_STEPS * batch)
        return said

    @model_validator(mode="after")
    def _length(self) -> Self:
        for steps, samples in self.TWINS:
            if getattr(self, steps) is not None and getattr(self, samples) is not None:
                raise refuse(
                    f"training.{steps} {getattr(self, steps)} and training.{samples} {getattr(self, samples)} exclude"
                    f" each other: set one to null",
                    samples,
                    steps,
                )
        if self.train_iters is None and self.train_samples is None:
            raise refuse("one of training.train_iters and training.train_samples must be set", *self.TWINS[0])
        own = 0 if self.train_iters is not None else 1
        for pair in self.TWINS[1:]:
            if getattr(self, pair[1 - own]) is not None:
                raise refuse(
                    f"training.{self.TWINS[0][own]} and training.{pair[1 - own]} do not count the same: set"
                    f" training.{pair[own]} in its place, or training.{pair[1 - own]}=null",
                    pair[1 - own],
                    self.TWINS[0][own],
                )
        if not self.iterations:
            raise refuse(
                f"training.train_samples {self.train_samples} is less than one training.global_batch"
                f" {self.global_batch}",
                "train_samples",
                "global_batch",
            )
        return self

    @model_validator(mode="after")
    def _decays(self) -> Self:
        own = 0 if self.train_iters is not None else 1
        warmup, decay = self.TWINS[1][own], self.TWINS[2][own]
        if getattr(self, decay) is not None and self.decay <= self.warmup:
            raise refuse(
                f"training.{decay} {getattr(self, decay)} must be above training.{warmup} {getattr(self, warmup)},"
                f" which it includes",
                decay,
                warmup,
            )
        return self

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
    def _parts(self) -> Self:
        context, tensor = self.parallel.context, self.parallel.tensor
        if context > 1 and self.sequence_length % (2 * context):
            raise refuse(
                f"training.sequence_length {self.sequence_length} does not divide by 2 x training.parallel.context"
                f" {context}: each rank holds two parts of a sequence",
                "parallel.context",
                "sequence_length",
            )
        if self.parallel.sequence and tensor < 2:
            raise refuse(
                "training.parallel.sequence needs training.parallel.tensor of 2 or more",
                "parallel.sequence",
                "parallel.tensor",
            )
        if self.parallel.sequence and self.sequence_length // context % tensor:
            raise refuse(
                f"training.sequence_length {self.sequence_length} / training.parallel.context {context} does not"
                f" divide by training.parallel.tensor {tensor}, as training.parallel.sequence needs",
                "parallel.tensor",
                "sequence_length",
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
