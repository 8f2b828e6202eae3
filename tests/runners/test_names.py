"""Nothing in the runners names a vendor where it means the device.

torch calls AMD's GPUs "cuda" as well, so its own names (`torch.cuda`, the device type) stand for both. Whatever else
names CUDA or NVIDIA must be on the list below, with the reason why it is meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.support import ROOT

VENDOR = re.compile(r"cuda|nvidia|cudnn|cublas|nvml|nvtx", re.IGNORECASE)
BOTH = "torch's name for the GPUs of both vendors"
OTHERS = "megatron-core's own word, on every device"
ENV = "variables that a run's environment is searched for: AMD's stand beside them"
# (file below runners/, what it says, "" for all of it): why it is meant.
MEANT = {
    ("schema/training.py", "cuda"): "the choice that a user makes, beside rocm",
    ("calibrate.py", "CUDA"): "says for which vendor torch was built, where the other's was asked for",
    ("group.py", "cuda"): BOTH,
    ("group.py", "cuda:"): BOTH,
    ("group.py", "CUDA_VISIBLE_DEVICES"): "a hint that names HIP_VISIBLE_DEVICES beside it",
    ("megatron/gpu.py", "cuda"): BOTH,
    ("megatron/gpu.py", "CUDA_DEVICE_MAX_CONNECTIONS"): OTHERS,
    ("megatron/gpu.py", "cublas"): "torch's names of its libraries: it takes hipBLAS and hipBLASLt by them too",
    ("megatron/gpu.py", "nvidia-"): "packages whose versions are recorded where they are installed",
    ("megatron/gpu.py", "cudnn"): "packages whose versions are recorded where they are installed",
    ("megatron/gpu.py", ".backends.cuda"): "torch's switches for the GPUs of both vendors",
    ("megatron/cpu.py", "cuda"): "what megatron-core asks for by that name on a machine without GPUs",
    ("megatron/cpu.py", "CUDA_DEVICE_MAX_CONNECTIONS"): OTHERS,
    ("megatron/memory.py", "cuda"): BOTH,
    ("sizes.py", "cuda"): "by training.backend, beside rocm",
    ("trouble.py", ""): "what libraries say of either vendor's devices, and hints that name both",
    ("provenance.py", "CUDA_"): ENV,
    ("provenance.py", "CUBLAS_"): ENV,
    ("provenance.py", "CUDNN_"): ENV,
    ("provenance.py", "cuda"): "torch's build, beside hip",
    ("provenance.py", ".version.cuda"): "torch's build, beside hip",
    (
        "schema/training.py",
        "cudnn",
    ): "a kernel of torch's attention that a user may ask for; refused where there is none",
    ("megatron/attention.py", "cudnn"): "a kernel of torch's attention that a user may ask for",
    ("megatron/attention.py", "CUDNN_ATTENTION"): "torch's name of that kernel",
}
IS_GPU = ".is_cuda"  # a tensor's own property, true of AMD's GPUs too


def sources() -> list[Path]:
    """All of the runners but the agent, which reads each vendor's own sensors."""
    return [p for p in sorted((ROOT / "runners").rglob("*.py")) if "agent" not in p.relative_to(ROOT).parts]


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of each text and attribute that names a vendor; docstrings aside."""
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            if VENDOR.search(node.value):
                yield node.lineno, node.value
        elif isinstance(node, ast.Attribute) and VENDOR.search(node.attr):
            dotted = ast.unparse(node)
            if dotted != "torch.cuda" and f".{node.attr}" != IS_GPU:
                yield node.lineno, f".{dotted.partition('.')[2]}"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from ((node.lineno, name) for name in names if VENDOR.search(name))


def unmeant(name: str, text: str) -> list[tuple[int, str]]:
    """What a file says of a vendor without a reason on the list."""
    allowed = [what for file, what in MEANT if file == name]
    return [
        (line, said)
        for line, said in named(ast.parse(text))
        if not any(said == what or (what in said and what not in ("cuda", "CUDA")) for what in allowed)
    ]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT / "runners")))
def test_a_vendor_is_named_only_where_it_is_meant(path: Path) -> None:
    name = path.relative_to(ROOT / "runners").as_posix()
    found = unmeant(name, path.read_text(encoding="utf-8"))
    assert not found, f"runners/{name} names a vendor: {found}. If it is meant, say why in MEANT."


@pytest.mark.parametrize(
    "text",
    [
        'x = torch.zeros(1, device="cuda")',
        'y = x.to(f"cuda:{n}")',
        "y = x.cuda()",
        "v = torch.version.cuda",
        "torch.backends.cudnn.benchmark = True",
        "import pynvml",
        "from torch.cuda import nvtx",
        'os.environ["CUDA_VISIBLE_DEVICES"] = "0"',
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert unmeant("smoke.py", text)


@pytest.mark.parametrize("text", ['"""Runs on CUDA."""', "torch.cuda.synchronize()", "x.is_cuda", "import torch.hub"])
def test_the_search_leaves_alone_what_stands_for_both(text: str) -> None:
    assert not unmeant("smoke.py", text)
