"""The pipeline's transport on the host."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

_TO_NEXT, _TO_PREVIOUS = 1, 2  # tags: with two stages the next and the previous rank are the same one


class HostCommunicator(P2PCommunicator):
    """megatron-core's communicator with host tensors; shapes are the same in both directions and known."""

    def _communicate(
        self,
        *,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Send and receive [sequence, micro batch, hidden] tensors; returns (from previous, from next, None).

        Always waits: the overlapped variant is a choice of the GPU backends.
        """
        dtype = self.config.pipeline_dtype
        works: list[Any] = []
        alive: list[torch.Tensor] = []  # gloo reads a tensor until its work is done

        def send(tensor: torch.Tensor, rank: int | None, tag: int) -> None:
            alive.append(tensor.detach().contiguous())
            works.append(dist.isend(alive[-1], rank, group=self.pp_group, tag=tag))

        def receive(rank: int | None, tag: int) -> torch.Tensor:
            tensor = torch.empty(tensor_shape, dtype=dtype)
            works.append(dist.irecv(tensor, rank, group=self.pp_group, tag=tag))
            return tensor

        if tensor_send_next is not None:
            send(tensor_send_next, self.next_rank, _TO_NEXT)
        from_previous = receive(self.prev_rank, _TO_NEXT) if recv_prev else None
        if tensor_send_prev is not None:
            send(tensor_send_prev, self.prev_rank, _TO_PREVIOUS)
        from_next = receive(self.next_rank, _TO_PREVIOUS) if recv_next else None
        for work in works:
            work.wait()
        for tensor in (from_previous, from_next):
            if tensor is not None:
                tensor.requires_grad_()
        return from_previous, from_next, None
