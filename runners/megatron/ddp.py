"""Data parallelism on the host, with the interface that megatron-core's schedules and finalize_model_grads expect."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.data_parallel_base import _BaseDataParallel


class HostDataParallel(_BaseDataParallel):
    """Averages gradients over `group` once a step.

    Every gradient is a view into one flat buffer, so that the all-reduce is a single call and nothing is copied.
    """

    def __init__(self, module: Any, group: Any) -> None:
        super().__init__(config=module.config, module=module)
        self.group = group
        self.ddp_config = DistributedDataParallelConfig()
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buffer = torch.zeros(sum(parameter.numel() for parameter in parameters))
        offset = 0
        for parameter in parameters:
            parameter.grad = self.buffer[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def broadcast_params(self) -> None:
        """Give every replica the parameters of the group's first."""
        source = dist.get_global_rank(self.group, 0)
        for parameter in self.module.parameters():
            dist.broadcast(parameter.data, src=source, group=self.group)

    def zero_grad_buffer(self) -> None:
        """Forget the last step's gradients."""
        self.buffer.zero_()

    def finish_grad_sync(self, force_all_reduce: bool | None = False) -> None:
        """Average the gradients over the replicas; `force_all_reduce` is what happens anyway."""
        if self.group.size() > 1:
            dist.all_reduce(self.buffer, group=self.group)
            self.buffer.div_(self.group.size())

    def scale_gradients(self, scaling_factor: float) -> None:
        """Multiply all gradients by `scaling_factor`."""
        self.buffer.mul_(scaling_factor)
