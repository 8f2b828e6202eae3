"""Each GPU kernel against its formula in torch, value and gradient, in Triton's interpreter.

Triton decides when a kernel is defined whether it interprets it, so these run in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.runners.support import ROOT

CASES = ("norm", "norm_alone", "swiglu", "rope", "loss", "ignored", "rows", "adam", "adam_fp32")


@pytest.fixture(scope="module")
def gaps() -> dict[str, float]:
    """The greatest relative difference of each case."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.bench.kernels"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_gives_what_its_formula_gives(gaps: dict[str, float], case: str) -> None:
    assert gaps[case] < 1e-6


def test_the_low_precision_weight_is_the_master_weight_rounded(gaps: dict[str, float]) -> None:
    assert gaps["adam_weight"] < 2**-7  # the interpreter cuts where a GPU rounds


def test_fp8_and_its_transpose_are_the_same_values(gaps: dict[str, float]) -> None:
    assert gaps["cast_across"] == 0.0
    assert gaps["cast"] < 2**-2  # as above, with two bits of mantissa
