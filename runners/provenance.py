"""What made a run: interpreter, torch build, packages, threads, and the environment variables that steer them."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("torch", "megatron-core", "tokenizers", "numpy", "pydantic", "transformers", "triton")
_PREFIXES = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "DNNL_", "ONEDNN_", "MALLOC_"),
    *("TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_", "NVTE_", "AITER_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "HIP_", "HIPBLASLT_", "ROCR_", "HSA_", "MIOPEN_"),
)
STARTED_WITH = dict(os.environ)  # libraries add their own on import; what counts is what the run was given
_NAMES = frozenset({"LD_PRELOAD", "PYTHONHASHSEED", "GPU_MAX_HW_QUEUES"})
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that steer the training stack, sorted; never one whose name speaks of a secret."""
    return {
        name: env[name]
        for name in sorted(env)
        if (name.startswith(_PREFIXES) or name in _NAMES) and not _SECRET.search(name)
    }


def packages(names: Iterable[str] = ()) -> dict[str, str]:
    """Installed versions of the packages that matter and of `names`; one that is not installed is left out."""
    found = {}
    for name in dict.fromkeys((*PACKAGES, *names)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def torch_build(torch: Any) -> dict[str, Any]:
    """How this torch was built: the module is handed in, since importing it is the caller's decision."""
    shown = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", shown)
    return {
        "version": torch.__version__,
        "git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "blas": blas[1] if blas else None,
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def collect(torch: Any, *, world: int, extra: Iterable[str] = (), **fields: Any) -> dict[str, Any]:
    """The data of a `provenance` diagnostic. `world` counts processes, `fields` are the runner's own."""
    versions = packages(extra)
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": platform.platform(),
        "torch": torch_build(torch),
        "megatron_core": versions.get("megatron-core"),
        "packages": versions,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "world": world,
        "env": environment(STARTED_WITH),
        **fields,
    }
