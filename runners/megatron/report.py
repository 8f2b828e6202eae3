"""What a training says: Megatron's own lines for people and other tools, wire lines for the cockpit."""

from __future__ import annotations

import math
import resource
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runners import sizes, wire
from runners.schema import RunConfig


@dataclass(frozen=True)
class Step:
    """One iteration, counted from 1. `loss` is None where it is not a number; seconds are wall time, those of the
    checkpoint that followed apart.
    """

    step: int
    loss: float | None
    seconds: float
    rate: float
    grad_norm: float
    skipped: bool
    checkpoint_s: float = 0.0
    loss_scale: float = 1.0  # the next one's, as Megatron prints it


class Reporter:
    """Speaks for one training, from the last rank. Counts what went wrong."""

    def __init__(self, config: RunConfig, padded_vocab: int, world: int) -> None:
        self.config = config
        self.world = world
        self.nan_iterations = 0
        self.skipped_iterations = 0
        self.tokens = 0
        training = config.training
        self.tokens_per_step = training.global_batch * training.sequence_length
        per_token = sizes.per_token(config.model, padded_vocab, training.sequence_length)
        self.flop_per_step = self.tokens_per_step * per_token[sizes.CONVENTION]

    def iteration(self, step: Step) -> None:
        """Print one iteration as Megatron's line and as a wire line; say once that a loss is not a number."""
        nan = step.loss is None
        self.nan_iterations += nan
        self.skipped_iterations += step.skipped
        self.tokens += self.tokens_per_step
        tflops = self.flop_per_step / step.seconds / self.world / 1e12
        print(self.line(step, tflops, datetime.now()), flush=True)  # noqa: DTZ005 - Megatron prints local time
        finite = math.isfinite(step.grad_norm)
        wire.emit(
            "iteration",
            step=step.step,
            total=self.config.training.iterations,
            loss=step.loss,
            step_s=step.seconds,
            tokens=self.tokens_per_step,
            samples=self.config.training.global_batch,
            lr=step.rate,
            grad_norm=step.grad_norm if finite else None,
            extra={"tflops_gpu": tflops, "skipped": int(step.skipped), "nan": int(nan)}
            | ({"checkpoint_s": step.checkpoint_s} if step.checkpoint_s else {})
            | ({"loss_scale": step.loss_scale} if self.config.training.precision == "fp16" else {}),
        )
        if (nan and self.nan_iterations == 1) or (step.skipped and self.skipped_iterations == 1):
            what = "the loss" if nan else "the gradient"
            wire.emit(
                "diagnostic",
                level="warning",
                code="nan",
                message=f"{what} of iteration {step.step} is not a finite number; its update was skipped",
                data={"step": step.step},
            )

    def validation(self, step: int, loss: float | None) -> None:
        """Print the mean loss of the validation after iteration `step` as Megatron's line, NAN where it is none."""
        value = math.nan if loss is None else loss
        perplexity = math.exp(min(value, 20.0))  # Megatron's cap; in this order NaN stays NaN
        line = f" validation loss at iteration {step} | lm loss value: {value:.6E} | lm loss PPL: {perplexity:.6E} |"
        print("-" * len(line), line, "-" * len(line), sep="\n", flush=True)

    def line(self, step: Step, tflops: float, now: datetime) -> str:
        """Megatron's iteration line; the loss is left out where it is not a number, as Megatron does."""
        training = self.config.training
        parts = [
            f" [{now:%Y-%m-%d %H:%M:%S}] iteration {step.step:8d}/{training.iterations:8d} ",
            f" consumed samples: {step.step * training.global_batch:12d} ",
            f" elapsed time per iteration (ms): {step.seconds * 1000:.1f} ",
            f" throughput per GPU (TFLOP/s/GPU): {tflops:.{1 if tflops >= 10 else 4}f} ",
            f" learning rate: {step.rate:.6E} ",
            f" global batch size: {training.global_batch:5d} ",
        ]
        if step.loss is not None:
            parts.append(f" lm loss: {step.loss:.6E} ")
        parts += [
            f" loss scale: {step.loss_scale:.1f} ",
            f" grad norm: {step.grad_norm:.3f} ",
            f" number of skipped iterations: {int(step.skipped):3d} ",
            f" number of nan iterations: {int(step.loss is None):3d} ",
        ]
        return "|".join(parts) + "|"


def model_diagnostic(config: RunConfig, padded_vocab: int, schedule: str) -> None:
    """Say what is trained: sizes, FLOP a token by convention, layout, and the memory estimated of the fullest GPU."""
    training, parallel = config.training, config.training.parallel
    parameters = sizes.parameters(config.model, padded_vocab)
    wire.emit(
        "diagnostic",
        level="info",
        code="model",
        message=f"{config.model.name}: {parameters} parameters, {training.global_batch} sequences a step",
        data={
            "name": config.model.name,
            "parameters": parameters,
            "flops_per_token": sizes.per_token(config.model, padded_vocab, training.sequence_length),
            "flops_convention": sizes.CONVENTION,
            "padded_vocab": padded_vocab,
            "seq_length": training.sequence_length,
            "global_batch": training.global_batch,
            "micro_batch": training.micro_batch,
            "train_iters": training.iterations,
            "parallel": parallel.model_dump(),
            "schedule": schedule,
            "precision": training.precision,
            "memory": {f"{name}_by": size for name, size in sizes.memory(config, padded_vocab).parts.items()},
        },
    )


def arguments(config: RunConfig, padded_vocab: int, world: int) -> str:
    """Megatron's dump of its arguments, in its layout and with its names."""
    rows = [
        f"  {name} {'.' * (48 - len(name))} {value}"
        for name, value in sorted(megatron_arguments(config, padded_vocab, world).items())
    ]
    head = "------------------------ arguments ------------------------"
    return "\n".join([head, *rows, "-------------------- end of arguments ---------------------"])


def megatron_arguments(config: RunConfig, padded_vocab: int, world: int) -> dict[str, Any]:
    """The configuration under the names of Megatron-LM's command line."""
    model, training, data = config.model, config.training, config.data
    parallel, gpt = training.parallel, model.architecture == "gpt"
    return {
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_eps": training.adam_eps,
        "add_bias_linear": gpt,
        "add_qkv_bias": model.qkv_bias,
        "attention_dropout": 0.0,
        "bf16": training.precision in ("bf16", "fp8"),
        "clip_grad": training.clip_grad,
        "context_parallel_size": parallel.context,
        "data_parallel_size": parallel.data,
        "distributed_backend": "gloo" if training.backend == "cpu" else "nccl",
        "eval_interval": training.eval_interval if training.evaluate else None,
        "eval_iters": training.eval_iters if training.evaluate else 0,
        "ffn_hidden_size": model.ffn,
        "fp16": training.precision == "fp16",
        "fp8": "hybrid" if training.precision == "fp8" else None,
        "global_batch_size": training.global_batch,
        "group_query_attention": model.kv_heads != model.heads,
        "hidden_dropout": 0.0,
        "hidden_size": model.hidden,
        "init_method_std": training.init_std,
        "log_interval": 1,
        "log_throughput": True,
        "load": model.weights,
        "lr": training.learning_rate,
        "lr_decay_style": training.schedule,
        "lr_decay_iters": training.decay_steps,
        "lr_decay_samples": training.decay_samples,
        "lr_warmup_iters": training.warmup_steps or 0,
        "lr_warmup_samples": training.warmup_samples or 0,
        "make_vocab_size_divisible_by": model.vocab_multiple,
        "max_position_embeddings": model.max_sequence or training.sequence_length,
        "micro_batch_size": training.micro_batch,
        "min_lr": training.min_learning_rate,
        "norm_epsilon": model.norm_eps,
        "normalization": "LayerNorm" if gpt else "RMSNorm",
        "num_attention_heads": model.heads,
        "num_layers": model.layers,
        "num_query_groups": model.kv_heads,
        "optimizer": "adam",
        "padded_vocab_size": padded_vocab,
        "params_dtype": {"fp32": "torch.float32", "fp16": "torch.float16"}.get(training.precision, "torch.bfloat16"),
        "pipeline_model_parallel_size": parallel.pipeline,
        "position_embedding_type": "learned_absolute" if gpt else "rope",
        "recompute_granularity": None if training.recompute == "none" else training.recompute,
        "rope_scaling_factor": model.rope_scaling.factor if model.rope_scaling else None,
        "rotary_base": None if gpt else model.rope_base,
        "seed": training.seed,
        "seq_length": training.sequence_length,
        "sequence_parallel": parallel.sequence,
        "split": f"{data.train_split},{1 - data.train_split:.6g},0",
        "swiglu": not gpt,
        "tensor_model_parallel_size": parallel.tensor,
        "train_iters": training.iterations,
        "train_samples": training.train_samples,
        "transformer_impl": "local",
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "virtual_pipeline_model_parallel_size": parallel.virtual_pipeline,
        "weight_decay": training.weight_decay,
        "world_size": world,
    }


def peak_memory_by() -> int:
    """The most memory this process ever held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
