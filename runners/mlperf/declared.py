"""What a run says of itself before it starts: mlperf-logging's keys, from the configuration and the loop's facts."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

from runners.schema import LoraRunner
from runners.schema.mlperf import MLPerf

RECORD = "run.json"  # where the cockpit keeps the whole configuration


def submission(said: MLPerf, world: int) -> dict[str, Any]:
    """Who ran what, and where; `world` counts the processes, one a device."""
    contact = {"submission_poc_name": said.contact_name, "submission_poc_email": said.contact_email}
    return {
        "submission_benchmark": said.benchmark,
        "submission_org": said.organization,
        "submission_division": said.division,
        "submission_status": said.status,
        "submission_platform": said.platform or f"{world}x{device()}",
        **{key: value for key, value in contact.items() if value is not None},
    }


def settings(runner: LoraRunner, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters. `facts` has world, global_batch, steps, train_samples and eval_samples."""
    return {
        "seed": runner.seed,
        "target_accuracy": runner.target_loss,
        "global_batch_size": facts["global_batch"],
        "micro_batch_size": runner.batch,
        "gradient_accumulation_steps": runner.grad_accum,
        "max_sequence_length": runner.seq_len,
        "train_samples": facts["train_samples"],
        "eval_samples": facts["eval_samples"],
        "lora_rank": runner.r,
        "lora_alpha": int(runner.alpha) if float(runner.alpha).is_integer() else runner.alpha,
        "opt_name": "adamw",
        "opt_base_learning_rate": runner.lr,
        "opt_learning_rate_decay_schedule": runner.schedule,
        "opt_learning_rate_training_steps": facts["steps"],
        "opt_learning_rate_warmup_factor": runner.warmup_steps / facts["steps"],
        "opt_adamw_beta_1": runner.adam_beta1,
        "opt_adamw_beta_2": runner.adam_beta2,
        "opt_adamw_epsilon": runner.adam_eps,
        "opt_adamw_weight_decay": runner.weight_decay,
        "opt_gradient_clip_norm": runner.clip_grad,
    }


def disclosed(runner: LoraRunner) -> dict[str, Any]:
    """What the rules want disclosed from 6.1 on: the lowest precisions, the parallel sizes, the configuration."""
    compute = "bfloat16" if runner.bf16 else "fp32"
    base = compute if runner.base_dtype == "auto" and runner.lora else {"bf16": "bfloat16"}.get(runner.base_dtype)
    return {
        "lowest_numerical_precision_in_linear": compute,
        "lowest_numerical_precision_in_attn": compute,
        "lowest_numerical_precision_in_comm": base or "fp32" if runner.strategy == "fsdp" else "fp32",
        "tensor_parallelism": 1,
        "pipeline_parallelism": 1,
        "context_parallelism": 1,
        "expert_parallelism": 1,
        "config_filename": RECORD,
    }


def device() -> str:
    """What this process trains on, in words."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(torch.cuda.current_device()))
    return f"{platform.machine()} CPU"
