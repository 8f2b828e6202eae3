"""The process group and megatron-core's grid of processes over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from runners.errors import ConfigurationError, RunnerError
from runners.process import Process
from runners.schema import Parallel

TIMEOUT_S = 600.0  # for the processes to meet; EKVI_RENDEZVOUS_TIMEOUT_S says otherwise


@contextmanager
def joined(process: Process, collective: str) -> Iterator[None]:
    """Join the run's processes in a group, and leave it at the end. RunnerError where they do not meet."""
    timeout = timedelta(seconds=float(os.environ.get("EKVI_RENDEZVOUS_TIMEOUT_S") or TIMEOUT_S))
    try:
        if process.launched:
            dist.init_process_group(collective, timeout=timeout)
        else:
            dist.init_process_group(collective, store=dist.HashStore(), rank=0, world_size=1)
    except (RuntimeError, ValueError, OSError) as error:  # torch's DistError is a RuntimeError
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunnerError(
            f"no process group: rank {process.rank} of {process.world} did not meet the others at {where} within"
            f" {timeout.total_seconds():g} s ({first}).",
            hint="Start all processes with one torchrun command, and see that this address is reachable.",
        ) from error
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def check(parallel: Parallel, process: Process) -> None:
    """Raise ConfigurationError where another number of processes was started than the sizes ask for."""
    if process.world == parallel.processes:
        return
    raise ConfigurationError(
        f"{process.world} process{'es' if process.world > 1 else ''} started, but training.parallel asks for"
        f" {parallel.processes} (tensor {parallel.tensor} x pipeline {parallel.pipeline} x data {parallel.data}).",
        hint=f"Start it with: python -m torch.distributed.run --standalone --nproc-per-node {parallel.processes}"
        " -m runners ...",
        every_rank=True,
    )


def lay(parallel: Parallel) -> Any:
    """Lay megatron-core's grid over the group; returns the groups that schedules and gradients are given."""
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline,
    )
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.mp = parallel_state.get_model_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return groups
