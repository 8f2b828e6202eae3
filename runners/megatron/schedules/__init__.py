"""Which pipeline schedule runs a step. Adaptive schedules have their place here, beside megatron-core's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runners.schema import Parallel


def name(parallel: Parallel) -> str:
    """The schedule that the sizes ask for: "none", "1f1b" or "interleaved"."""
    if parallel.pipeline == 1:
        return "none"
    return "interleaved" if parallel.virtual_pipeline else "1f1b"


def select(parallel: Parallel) -> Callable[..., list[dict[str, Any]]]:
    """megatron-core's forward-backward function for the sizes."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    function: Callable[..., list[dict[str, Any]]] = get_forward_backward_func(
        pp_size=parallel.pipeline, vp_size=parallel.virtual_pipeline
    )
    return function
