"""The backend of GPUs, CUDA's and ROCm's alike: torch calls both by one name, so nothing here asks which it is."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel.random import initialize_rng_tracker

from runners import calibrate, group, rates
from runners.errors import ConfigurationError
from runners.megatron import fp8, mixed
from runners.megatron.optimizer import Updates
from runners.process import Process
from runners.schema import RunConfig, Training

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


class GpuBackend:
    """Trains on this machine's GPUs, one a process, over NCCL or RCCL."""

    collective = "nccl"  # torch's name for RCCL too

    def __init__(self, name: str) -> None:
        self.name = name  # "cuda" or "rocm"

    @property
    def device(self) -> torch.device:
        """This process's GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    def check(self, config: RunConfig) -> None:
        """Raise ConfigurationError where there is no such GPU, or it cannot do what is asked."""
        calibrate.device_of(self.name, Process.from_environment(os.environ))
        training = config.training
        if training.precision == "bf16" and not torch.cuda.is_bf16_supported():
            raise ConfigurationError(
                f"training.precision=bf16: {torch.cuda.get_device_name()} has no bf16.",
                hint="Set training.precision=fp16.",
                every_rank=True,
            )
        if training.precision == "fp8":
            self._fp8()
            self._fp8_sizes(config)

    def _fp8_sizes(self, config: RunConfig) -> None:
        model, training = config.model, config.training
        parallel = training.parallel
        tokens = training.micro_batch * training.sequence_length // parallel.context
        for key, size in (
            ("model.hidden", model.hidden // parallel.tensor),
            ("model.ffn", model.ffn // parallel.tensor),
            ("training.sequence_length", tokens),
        ):
            if size % fp8.STEP:
                raise ConfigurationError(
                    f"training.precision=fp8: {key} leaves a product a side of {size}, which does not divide by"
                    f" {fp8.STEP}.",
                    hint="Set training.precision=bf16, or another size.",
                    every_rank=True,
                )

    def start(self, training: Training) -> None:
        """Take this process's GPU, and set what steers torch's libraries as the configuration says."""
        process = Process.from_environment(os.environ)
        torch.cuda.set_device(torch.device(group.device_of(process, group.gpu_count())))
        torch.cuda.tunable.enable(training.libraries.tunable_op)
        if training.libraries.hipblaslt is not None:
            torch.backends.cuda.preferred_blas_library("cublaslt" if training.libraries.hipblaslt else "cublas")
        warnings.filterwarnings("ignore", message=".*CUDA_DEVICE_MAX_CONNECTIONS", module=r"megatron\.core")

    def seed(self, seed: int) -> None:
        """Seed torch; megatron-core's tracker of generators is the one that keeps none: nothing is dropped out."""
        initialize_rng_tracker(inference_rng_tracker=True)
        torch.manual_seed(seed)

    def transformer_options(self, training: Training) -> dict[str, Any]:
        """Types of the parameters and of what travels between stages. megatron-core's own fusions stay off: they are
        either CUDA's alone or done by our kernels.
        """
        dtype = DTYPES[training.precision]
        interleaved = training.parallel.virtual_pipeline is not None
        return {
            "params_dtype": dtype,
            "pipeline_dtype": dtype,
            "bf16": dtype == torch.bfloat16,
            "fp16": dtype == torch.float16,
            "gradient_accumulation_fusion": False,
            "bias_activation_fusion": False,
            "bias_dropout_fusion": False,
            "apply_rope_fusion": False,
            "masked_softmax_fusion": False,
            "overlap_p2p_comm": interleaved,
            "batch_p2p_comm": not interleaved,
        }

    def adapt(self, chunk: Any, config: RunConfig) -> None:
        """Have the layers' linears compute in fp8, where that was asked for."""
        if config.training.precision == "fp8":
            from runners.megatron.kernels.cast import both

            kind = fp8.Format(*fp8.FORMATS[self._fp8()], both)
            for layer in chunk.decoder.layers:
                attention, mlp = layer.self_attention, layer.mlp
                for module in (attention.linear_qkv, attention.linear_proj, mlp.linear_fc1, mlp.linear_fc2):
                    fp8.adopt(module, kind)

    def _fp8(self) -> str:
        """The fp8 format of this GPU; ConfigurationError where it has none."""
        found = rates.fp8_format(self.device)
        if isinstance(found, rates.Unknown):
            raise ConfigurationError(
                f"training.precision=fp8: {found.why}.", hint="Set training.precision=bf16.", every_rank=True
            )
        return found

    def wrap(self, chunk: Any, training: Training, *, index: int, group: Any) -> DistributedDataParallel:
        """megatron-core's data parallelism: gradients in one buffer, reduced while the backward goes on."""
        reduces = training.overlap and group.size() > 1
        config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=training.gradients == "fp32",
            overlap_grad_reduce=reduces,
            use_distributed_optimizer=training.distributed_optimizer,
            check_for_nan_in_grad=False,
            average_in_collective=False,
        )
        return DistributedDataParallel(chunk.config, config, chunk, disable_bucketing=index > 0)

    def updates(self, chunks: list[Any], training: Training, groups: Any) -> Updates:
        """AdamW on fp32 master weights, divided over the data ranks with the distributed optimizer."""
        if chunks[0].ddp_config.overlap_grad_reduce:  # the schedule says which micro batch is the last
            quiet = [chunk.no_sync for chunk in chunks]
            chunks[0].config.no_sync_func = quiet if len(quiet) > 1 else quiet[0]
        return mixed.MixedUpdates(chunks, training, groups)

    def kernels(self, config: RunConfig) -> dict[str, str]:
        """Fused, but for the layer of another architecture than Llama's."""
        asked = config.training.kernels
        llama = config.model.architecture == "llama"
        layer = asked.layer if asked.layer != "auto" else ("fused" if llama else "plain")
        return {
            "layer": layer,
            "loss": "plain" if asked.loss == "plain" else "fused",
            "optimizer": "plain" if asked.optimizer == "plain" else "fused",
            **({"fp8": self._fp8()} if config.training.precision == "fp8" else {}),
        }

    def row_loss(self) -> Any:
        """Our kernel."""
        from runners.megatron.kernels.softmax import loss_

        return loss_

    def communicator(self, group: Any, config: Any) -> P2PCommunicator:
        """megatron-core's own."""
        return P2PCommunicator(group, config)

    def context(self) -> AbstractContextManager[Any]:
        """Nothing special."""
        return nullcontext()

    def synchronise(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    def peak_memory_by(self) -> int:
        """The most memory that this process's tensors took on its GPU, in bytes."""
        return int(torch.cuda.max_memory_allocated())

    def packages(self) -> Iterable[str]:
        """Distributions whose version belongs into the provenance."""
        libraries = (f"nvidia-{what}-cu{n}" for what in ("cudnn", "nccl") for n in (12, 13))
        return ("triton", "pytorch-triton-rocm", *libraries)
