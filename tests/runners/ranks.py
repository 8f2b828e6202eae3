"""`series`, with a host that passes for a GPU where a run asks for sequence parallelism.

megatron-core makes the buffers of that on `torch.cuda.current_device()`, which is why the CPU backend refuses it.
What is ours in it (the norms' marks, the loss, the layout) is the same on the host, so here that one call says "the
host".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from runners.megatron.cpu import CpuBackend
from runners.schema import RunConfig
from tests.runners import series

_REAL, _CHECK = torch.cuda.current_device, CpuBackend.check


def _host() -> Any:
    return torch.device("cpu")


def _check(self: CpuBackend, config: RunConfig) -> None:
    """The backend's own check, but for the refusal."""
    torch.cuda.current_device = _host if config.training.parallel.sequence else _REAL
    if not config.training.parallel.sequence:
        _CHECK(self, config)


if __name__ == "__main__":
    from runners.__main__ import leave

    CpuBackend.check = _check  # type: ignore[method-assign]
    series.main(Path(sys.argv[1]))
    leave(0)
