"""Importing the figures and the reports costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "rich", "pydantic", "hydra", "textual", "asyncssh", "torch")


@pytest.mark.parametrize(
    "module",
    ["cockpit.metrics.compare", "cockpit.metrics.summary", "cockpit.metrics.steady", "cockpit.report"],
)
def test_a_module_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
