"""Each GPU kernel against its formula in torch, value and gradient, in Triton's interpreter.

Triton decides when a kernel is defined whether it interprets it, so these run in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CASES = ("norm", "norm_alone", "swiglu", "rope", "loss", "ignored", "adam", "adam_fp32", "cast")
PROGRAM = """
import copy, json, sys
import torch
from runners.megatron import rows
from runners.megatron.kernels import adam, cast, norm, rope, softmax, swiglu
from runners.megatron.loss import linear_loss

torch.manual_seed(0)
found = {}

def gap(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30))

def compare(name, ours, plain, *tensors):
    sides = [[t.clone().requires_grad_() for t in tensors] for _ in range(2)]
    out = [f(*side) for f, side in zip((ours, plain), sides)]
    out = [o if isinstance(o, tuple) else (o,) for o in out]
    towards = [torch.randn_like(o) for o in out[1]]
    for o in out:
        torch.autograd.backward(o, towards)
    pairs = [*zip(*out), *((a.grad, b.grad) for a, b in zip(*sides))]
    found[name] = max(gap(a, b) for a, b in pairs)

# Sizes that fill no block of a kernel's, so that its masks count.
x, y, w = torch.randn(3, 5, 48), torch.randn(3, 5, 48), torch.rand(48)
compare("norm", lambda *t: norm.add_norm(*t, 1e-5), lambda *t: norm.plain(*t, 1e-5), x, y, w)
compare("norm_alone", lambda x, w: norm.add_norm(x, None, w, 1e-5), lambda x, w: norm.plain(x, None, w, 1e-5), x, w)
compare("swiglu", swiglu.swiglu, swiglu.plain, torch.randn(2, 3, 2 * 1100))
angles = torch.rand(6, 1, 1, 12) * 6
cos, sin = rope.tables(torch.cat([angles, angles], -1))
mixed = torch.randn(6, 2, 3 * (2 + 2) * 24)
compare("rope", lambda m: rope.split(m, cos, sin, 3, 2), lambda m: rope.plain(m, cos, sin, 3, 2), mixed)

h, table = torch.randn(20, 16), torch.randn(9000, 16)  # wider than a block of the softmax
labels = torch.randint(0, 9000, (20,))
reference = lambda h, w: torch.nn.functional.cross_entropy(h @ w.t(), labels)
compare("loss", lambda h, w: linear_loss(h, w, labels, chunk=8, rows=softmax.loss_), reference, h, table)
labels[3] = -100
compare("ignored", lambda h, w: linear_loss(h, w, labels, chunk=8, rows=softmax.loss_), reference, h, table)

for name, kind in (("adam", torch.bfloat16), ("adam_fp32", None)):
    slots = []
    for count in (5, 3000, 70000):
        master = torch.randn(count)
        weight = master.to(kind) if kind else None
        slots.append(adam.Slot(torch.randn(count), master, torch.rand(count), torch.rand(count), weight, count > 5))
    twin = copy.deepcopy(slots)
    how = {"rate": 1e-2, "decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "step": 3, "factor": 0.5}
    adam.update(adam.Table(slots), **how)
    adam.plain(twin, **how)
    kept = ("master", "first", "second")
    found[name] = max(gap(getattr(a, k), getattr(b, k)) for a, b in zip(slots, twin) for k in kept)
    if kind:
        found["adam_weight"] = max(gap(a.weight, b.weight) for a, b in zip(slots, twin))

m, scale = torch.randn(70, 100), torch.tensor(30.0)
ours, plain = (f(m, scale, torch.float8_e5m2) for f in (cast.both, cast.plain))
found["cast"] = max(gap(a, b) for a, b in zip(ours, plain))
found["cast_across"] = gap(ours[1].float(), ours[0].float().t())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def gaps() -> dict[str, float]:
    """The greatest relative difference of each case."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case != "cast"])
def test_a_kernel_gives_what_its_formula_gives(gaps: dict[str, float], case: str) -> None:
    assert gaps[case] < 1e-6


def test_the_low_precision_weight_is_the_master_weight_rounded(gaps: dict[str, float]) -> None:
    assert gaps["adam_weight"] < 2**-7  # the interpreter cuts where a GPU rounds


def test_fp8_and_its_transpose_are_the_same_values(gaps: dict[str, float]) -> None:
    assert gaps["cast_across"] == 0.0
    assert gaps["cast"] < 2**-2  # as above, with two bits of mantissa
