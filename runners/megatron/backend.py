"""What differs between device families, behind one interface; everything else is the same on all of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from runners.megatron.optimizer import Updates
from runners.schema import RunConfig, Training


class Backend(Protocol):
    """A device family. Tensors, modules and process groups are torch's and megatron-core's."""

    name: str
    collective: str  # torch.distributed's backend

    @property
    def device(self) -> Any:
        """The torch.device of this process."""

    def check(self, config: RunConfig) -> None:
        """Raise ConfigurationError for what this device family cannot do."""

    def start(self, training: Training) -> None:
        """Set this process up before the first tensor: threads, device."""

    def seed(self, seed: int) -> None:
        """Seed torch and megatron-core's generators."""

    def transformer_options(self, training: Training) -> dict[str, Any]:
        """What the TransformerConfig gets beyond the model's shape."""

    def adapt(self, chunk: Any, config: RunConfig) -> None:
        """Fit a fresh GPTModel chunk to the device."""

    def wrap(self, chunk: Any, training: Training, *, index: int, group: Any) -> Any:
        """Chunk number `index` for data parallelism over `group`: megatron-core's data-parallel interface."""

    def updates(self, chunks: list[Any], training: Training, groups: Any) -> Updates:
        """AdamW over the wrapped chunks' parameters."""

    def kernels(self, config: RunConfig) -> dict[str, str]:
        """What `auto` stands for here: layer, loss and optimizer, each "plain" or "fused"."""

    def row_loss(self) -> Any:
        """The row loss (runners.megatron.loss) of this device."""

    def communicator(self, group: Any, config: Any) -> Any:
        """The pipeline's point-to-point transport over `group`."""

    def context(self) -> AbstractContextManager[Any]:
        """What a schedule call must run in."""

    def synchronise(self) -> None:
        """Wait until the device has done all that was asked, so that a clock reading means something."""

    def peak_memory_by(self) -> int:
        """The most memory that this process held on its device, in bytes."""

    def packages(self) -> Iterable[str]:
        """Distributions beyond the common ones whose version belongs into the provenance."""


def select(name: str) -> Backend:
    """The backend for `training.backend`."""
    if name == "cpu":
        from runners.megatron.cpu import CpuBackend

        return CpuBackend()
    from runners.megatron.gpu import GpuBackend

    return GpuBackend(name)
