"""Shared fixtures, and the rule that a skip is a failure where EKVI_NO_SKIPS is set."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

# Reasons for which a test may be skipped even in CI; each says what it would need.
ALLOWED_SKIPS = (
    r"needs a GPU",
    r"RAPL is not readable here",
    r"needs macOS",
    r"EKVI_REAL_DATA names no folder of real captures",
)

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the skips whose reason is not on the list."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
            _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session on a skip that is not on the list."""
    if os.environ.get("EKVI_NO_SKIPS") and _skipped:
        print("\nskips that are not on the list:", *_skipped, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a home of its own: no test reads or writes the user's folders."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / f"xdg-{name.lower()}"))
    for name in ("EKVI_RUNS_DIR", "EKVI_WORKDIR", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
