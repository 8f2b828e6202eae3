"""Start-up of the command line, as CPU time of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys

_BUDGET_S = 0.15


def _cpu_s(*words: str) -> float:
    """User and system CPU seconds of one `ekvi-cockpit` call, its children included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cockpit.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def measure() -> list[tuple[str, float, str, str, str]]:
    """CPU seconds of `--help` and `--version`."""
    return [
        (f"`ekvi-cockpit {word}`", _cpu_s(word), "s CPU", f"≤ {_BUDGET_S}", "whole process")
        for word in ("--help", "--version")
    ]
