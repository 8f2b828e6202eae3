"""Shared fixtures, the order on several workers, and the rule that a skip is a failure with EKVI_NO_SKIPS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

# Reasons for which a test may be skipped even in CI; each says what it would need.
ALLOWED_SKIPS = (
    r"needs a GPU",
    r"RAPL is not readable here",
    r"needs macOS",
    r"EKVI_REAL_DATA names no folder of real captures",
)

_skipped: dict[str, str] = {}  # reason by test or file


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Note a skip whose reason is not on the list."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
            _skipped[report.nodeid] = reason


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that was skipped; workers tell the one who prints of theirs."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A whole file that was skipped; each worker tells of it."""
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session on a skip that is not on the list."""
    if os.environ.get("EKVI_NO_SKIPS") and _skipped:
        print("\nskips that are not on the list:")
        print(*(f"  {where}: {why}" for where, why in _skipped.items()), sep="\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which worker gets which tests."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.workers import Files

    return Files(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers hand out what takes long first; one process keeps the order of the files."""
    if hasattr(config, "workerinput"):
        from tests.workers import longest_first

        longest_first(items)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this session have in common: see `tests.once`."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a home of its own: no test reads or writes the user's folders."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / f"xdg-{name.lower()}"))
    for name in ("EKVI_RUNS_DIR", "EKVI_WORKDIR", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
