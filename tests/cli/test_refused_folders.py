"""Folders that the system refuses, for real: root without the right to overlook permissions, and a read-only disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.hosts


def _as_a_user(*words: str) -> subprocess.CompletedProcess[str]:
    """The cockpit under the permission bits that every other user lives with."""
    bound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]
    return subprocess.run(
        [*bound, sys.executable, "-m", "cockpit.cli", *words],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, env=dict(os.environ), check=False,
    )  # fmt: skip


@pytest.fixture
def readonly_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes no writes."""
    disk = tmp_path / "readonly"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(disk)], check=True, timeout=20)
    yield disk
    subprocess.run(["umount", str(disk)], check=True, timeout=20)


def _one_sentence(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("ekvi-cockpit: ")
    for part in parts:
        assert part in done.stderr


def test_a_profile_folder_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "xdg-config" / "ekvi-cockpit" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("repeats: 3\n")
    folder.chmod(0)
    try:
        _one_sentence(_as_a_user("run", "--profile", "mine", "--dry-run"), str(folder))
    finally:
        folder.chmod(0o700)


def test_a_runs_folder_that_may_not_be_written(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir(mode=0o500)
    _one_sentence(_as_a_user("run", "--profile", "smoke-local", "--runs-dir", str(runs)), str(runs), "--runs-dir")


def test_a_runs_folder_on_a_read_only_disk(readonly_disk: Path) -> None:
    done = _as_a_user("run", "--profile", "smoke-local", "--runs-dir", str(readonly_disk / "runs"))
    _one_sentence(done, str(readonly_disk), "--runs-dir")


def test_a_run_whose_file_may_not_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "g.a.r1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "run.json").chmod(0)
    _one_sentence(_as_a_user("show", "g.a.r1", "--runs-dir", str(tmp_path / "runs")), "run.json")
