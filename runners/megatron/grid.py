"""megatron-core's grid of processes over the process group."""

from __future__ import annotations

from typing import Any

from runners.errors import ConfigurationError
from runners.process import Process
from runners.schema import Parallel


def check(parallel: Parallel, process: Process) -> None:
    """Raise ConfigurationError where another number of processes was started than the sizes ask for."""
    if process.world == parallel.processes:
        return
    raise ConfigurationError(
        f"{process.world} process{'es' if process.world > 1 else ''} started, but training.parallel asks for"
        f" {parallel.processes} (tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context}"
        f" x data {parallel.data}).",
        hint="Start it with: python -m runners ..."
        if parallel.processes == 1
        else f"Start it with: python -m torch.distributed.run --standalone --nproc-per-node {parallel.processes}"
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
        context_parallel_size=parallel.context,
    )
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.mp = parallel_state.get_model_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.dp = parallel_state.get_data_parallel_group()
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return groups
