"""How it is trained: steps, batches, precision, the process grid."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, NonNegative, Positive, Real, Strict, refuse


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
    works on `loss_chunk` tokens at a time and never holds all logits. `compile` hands each layer to torch.compile.
    """

    attention: Literal["auto", "flash", "cudnn", "efficient", "math"] = "auto"
    layer: Literal["auto", "plain", "fused"] = "auto"
    loss: Literal["auto", "plain", "fused"] = "auto"
    loss_chunk: Positive = 4096
    optimizer: Literal["auto", "plain", "fused"] = "auto"
    compile: Flag = False


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
