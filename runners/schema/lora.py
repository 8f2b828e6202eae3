"""Fine-tuning a Hugging Face model with LoRA adapters, or all of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, NonNegative, Positive, Real, Strict, refuse
from runners.schema.mlperf import MLPerf

Share = Annotated[Real, Field(ge=0, lt=1)]
Above = Annotated[Real, Field(gt=0)]


class LoraRunner(Strict):
    """Fine-tuning by transformers and peft. Paths are the server's; a relative one starts in the run's folder.

    The model is `model_local_dir`, else `model` (a repo id or a folder), else what `model.weights` names, else a new
    one in the shape of the `model` section with random weights, and a tokenizer for it. `tokenizer_local_dir` None
    takes the tokenizer from the model. `local_files_only` asks no network.

    `data` and `validation` are JSONL files (`data_format` npy: arrays of token ids); `demo` is a small task made on
    the spot, `section` the records of the `data` section (jsonl, csv, url or hub). Without `validation` the share
    `validation_split` of the records is kept apart. Records are cut at `seq_len` tokens.

    `batch` counts sequences a process; a step takes `batch` x `grad_accum` x `processes`. `warmup_steps` and
    `max_steps` count optimizer steps, `eval_every` samples between two validations beside the one after each epoch,
    `save_every` optimizer steps between two checkpoints beside the one of each epoch. `target_loss` ends the
    training once the validation's loss is as low. `lora` false trains all weights. `base_dtype` is what frozen
    weights are kept in: auto is bf16 with both `bf16` and `lora`, else fp32; trained weights are always fp32.
    """

    name: Literal["lora"] = "lora"
    model: str | None = None
    model_local_dir: str | None = None
    tokenizer_local_dir: str | None = None
    revision: str | None = None
    local_files_only: Flag = False
    data: Annotated[str, Field(min_length=1)] = "demo"
    validation: str | None = None
    validation_split: Share = 0.1
    data_format: Literal["jsonl", "npy"] = "jsonl"
    epochs: Positive = 1
    max_steps: Positive | None = None
    seq_len: Annotated[Positive, Field(ge=2)] = 512
    batch: Positive = 1
    grad_accum: Positive = 1
    eval_batch: Positive | None = None  # None: as `batch`
    processes: Positive = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    lr: Above = 2e-4
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # after the warm-up, down to 0
    warmup_steps: NonNegative = 0
    weight_decay: Annotated[Real, Field(ge=0)] = 0.0
    adam_beta1: Share = 0.9
    adam_beta2: Share = 0.999
    adam_eps: Above = 1e-8
    clip_grad: Annotated[Real, Field(ge=0)] = 1.0  # 0: never
    bf16: Flag = False
    base_dtype: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: Flag = False
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    lora: Flag = True
    r: Positive = 16
    alpha: Above = 16.0
    dropout: Share = 0.05
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] = ("q_proj", "k_proj", "v_proj", "o_proj")
    merge: Flag = False
    seed: NonNegative = 42
    eval_every: Positive | None = None
    eval_from: NonNegative = 0  # samples before which there is no validation
    target_loss: Above | None = None
    save: Flag = True
    save_every: Positive | None = None
    keep: Positive = 2  # states to resume from; an epoch's weights always stay
    resume: Annotated[str, Field(min_length=1)] = "auto"  # auto, never, or a folder epoch-<n> or step-<n>
    stop_on_nan: Flag = True
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_batches: Literal["all", "first-last", "none"] = "first-last"
    report_json: str | None = None  # a further copy of report.json
    track: tuple[Literal["tensorboard", "mlflow"], ...] = ()
    mlperf: MLPerf | None = None  # prints MLPerf's log too

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.merge and not self.lora:
            raise refuse("runner.merge is for adapters, and runner.lora=false trains the weights themselves", "merge")
        if self.merge and not self.save:
            raise refuse("runner.merge needs the adapters that runner.save=false leaves unsaved", "merge", "save")
        if self.base_dtype == "bf16" and not self.lora:
            raise refuse("runner.base_dtype is for frozen weights, and runner.lora=false has none", "base_dtype")
        if self.target_loss is not None and not self.validation and not self.validation_split:
            raise refuse("runner.target_loss needs runner.validation or runner.validation_split", "target_loss")
        return self
