"""The CPU backend: gloo, fp32, and host-side stand-ins for the few places where megatron-core says "cuda"."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from torch.overrides import TorchFunctionMode

from runners.errors import ConfigurationError
from runners.megatron import report
from runners.megatron.context import cut
from runners.megatron.ddp import HostDataParallel
from runners.megatron.optimizer import HostUpdates
from runners.megatron.p2p import HostCommunicator
from runners.schema import RunConfig, Training

INTERPRETED = "TRITON_INTERPRET"  # Triton's own variable: kernels run on the host, value by value


class HostFactories(TorchFunctionMode):
    """Makes tensors on the host that megatron-core's schedules ask for with device="cuda" (their token counter)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` with device="cuda" turned into the host."""
        if kwargs and (device := kwargs.get("device")) is not None and torch.device(device).type == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **(kwargs or {}))


class HostRotary(RotaryEmbedding):
    """Rotary embedding whose frequencies stay on the host."""

    def get_emb(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Angles, float32 [sequence, 1, 1, head dimension]."""
        freqs = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((freqs, freqs), dim=-1)[:, None, None, :]

    def forward(self, max_seq_len: int, offset: int = 0, packed_seq: bool = False, cp_group: Any = None) -> Any:
        """The angles of this context rank's part of the sequence."""
        return cut(self.get_emb(max_seq_len, offset), 0, cp_group or self.cp_group)


class CpuBackend:
    """Trains on the processors of a machine; the same code path as on GPUs but for what stands in this file."""

    name = "cpu"
    collective = "gloo"

    @property
    def device(self) -> torch.device:
        """The host."""
        return torch.device("cpu")

    def check(self, config: RunConfig) -> None:
        """Raise ConfigurationError for another precision than fp32, and for tied embeddings over a pipeline."""
        training = config.training
        if training.precision != "fp32":
            raise ConfigurationError(
                f"training.precision={training.precision}: the cpu backend trains in fp32 only.",
                hint="Set training.precision=fp32.",
                every_rank=True,
            )
        if training.kernels.layer == "fused" and os.environ.get(INTERPRETED) != "1":
            raise ConfigurationError(
                "training.kernels.layer=fused: those kernels are for GPUs.",
                hint=f"Set training.kernels.layer=auto, or {INTERPRETED}=1 to have them interpreted, very slowly.",
                every_rank=True,
            )
        if training.parallel.sequence:
            raise ConfigurationError(
                "training.parallel.sequence=true is not possible on the cpu backend: megatron-core makes its"
                " buffers on a GPU.",
                hint="Set training.parallel.sequence=false.",
                every_rank=True,
            )
        if config.model.tied_embeddings and training.parallel.pipeline > 1:
            raise ConfigurationError(
                "model.tied_embeddings=true with training.parallel.pipeline above 1 is not possible on the cpu"
                " backend: megatron-core shares that weight through a GPU.",
                hint="Set model.tied_embeddings=false or training.parallel.pipeline=1.",
                every_rank=True,
            )

    def start(self, training: Training) -> None:
        """Use `training.threads` threads within an operation and one between operations."""
        torch.set_num_threads(training.threads)
        # A hint for CUDA's queues, given on every device.
        warnings.filterwarnings("ignore", message=".*CUDA_DEVICE_MAX_CONNECTIONS", module=r"megatron\.core")

    def seed(self, seed: int) -> None:
        """Seed torch; megatron-core's tracker of CUDA generators is switched to the one that keeps none."""
        initialize_rng_tracker(inference_rng_tracker=True)
        torch.manual_seed(seed)

    def transformer_options(self, training: Training) -> dict[str, Any]:
        """No fusions (they are CUDA's or compiled at run time), point-to-point calls one by one."""
        return {
            "use_cpu_initialization": True,
            "params_dtype": torch.float32,
            "pipeline_dtype": torch.float32,
            "gradient_accumulation_fusion": False,
            "bias_activation_fusion": False,
            "bias_dropout_fusion": False,
            "apply_rope_fusion": False,
            "masked_softmax_fusion": False,
            "batch_p2p_comm": False,
            "batch_p2p_sync": False,
        }

    def adapt(self, chunk: Any, config: RunConfig) -> None:
        """Give the chunk a rotary embedding that does not move to a GPU."""
        chunk.rotary_pos_emb = HostRotary(
            chunk.config.kv_channels, 1.0, rotary_base=config.model.rope_base, use_cpu_initialization=True
        )

    def wrap(self, chunk: Any, training: Training, *, index: int, group: Any) -> HostDataParallel:
        """Data parallelism with one all-reduce a step over a flat gradient buffer."""
        return HostDataParallel(chunk, group)

    def updates(self, chunks: list[Any], training: Training, groups: Any) -> HostUpdates:
        """torch's AdamW in fp32."""
        return HostUpdates(chunks, training, groups)

    def kernels(self, config: RunConfig) -> dict[str, str]:
        """Plain, unless fused ones were asked for; a fused loss needs no kernel of ours."""
        asked = config.training.kernels
        return {
            "layer": "fused" if asked.layer == "fused" else "plain",
            "loss": "fused" if asked.loss == "fused" else "plain",
            "optimizer": "fused",
        }

    def row_loss(self) -> Any:
        """torch's own operations."""
        from runners.megatron.rows import plain_

        return plain_

    def communicator(self, group: Any, config: Any) -> HostCommunicator:
        """megatron-core's communicator with host tensors over gloo."""
        return HostCommunicator(group, config)

    def context(self) -> AbstractContextManager[Any]:
        """The redirection of the schedules' own tensors."""
        mode: AbstractContextManager[Any] = HostFactories()
        return mode

    def synchronise(self) -> None:
        """Nothing to wait for: operations on the host end before they return."""

    def peak_memory_by(self) -> int:
        """The most memory that this process ever held."""
        return report.peak_memory_by()

    def packages(self) -> Iterable[str]:
        """Nothing beyond the common ones."""
        return ()
