"""A runs folder on a disk that is really full: a small tmpfs, mounted for the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cockpit.core.events import Iteration
from cockpit.store.errors import DiskFull
from cockpit.store.store import Store
from tests.store.conftest import make_plan

pytestmark = pytest.mark.hosts
GROUP = "20260131-093000-duel-4f2a"
RUN = f"{GROUP}.left.r1"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "ekvi-test", str(disk)], check=True, timeout=30)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=30)


@pytest.fixture
def fill(small_disk: Path) -> Callable[[], Path]:
    """Fill the disk to its last byte; deleting the returned file makes room again."""

    def filled() -> Path:
        path = small_disk / "ballast"
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        assert os.statvfs(small_disk).f_bavail == 0
        return path

    return filled


def test_nothing_written_is_damaged_and_all_goes_on_when_there_is_room(
    small_disk: Path, fill: Callable[[], Path]
) -> None:
    store = Store(small_disk / "runs")
    store.create(make_plan(), {})
    run = store.run_dir(RUN)
    journal = run.journal()
    block = b"line of a log\n" * 1000
    events = [Iteration(step=i, offset=i) for i in range(200)]
    run.append_stdout(block, 0)
    run.append_telemetry(b'{"type":"hello"}\n')
    journal.append(events)
    ballast = fill()

    with pytest.raises(DiskFull, match=r"cannot write .*stdout\.log: the disk"):
        run.append_stdout(block, len(block))
    with pytest.raises(DiskFull):
        run.append_telemetry(b"x" * 8191 + b"\n")
    with pytest.raises(DiskFull):
        journal.append(events)
    with pytest.raises(DiskFull):
        run.update_meta(state="FAILED")
    with pytest.raises(DiskFull):
        run.write_summary({"id": RUN})
    assert run.meta()["state"] == "PLANNED"
    assert len(list(run.journal_events())) == 200
    assert len(store.runs()) == 4  # without an index
    assert len(run.columns()["step"]) == 200

    assert [t["type"] for t in run.ticks()] == ["hello"]

    ballast.unlink()
    assert run.append_telemetry(b'{"type":"gap"}\n') == 32
    assert [t["type"] for t in run.ticks()] == ["hello", "gap"]
    assert run.append_stdout(block, len(block)) == 2 * len(block)
    assert run.read_stdout(0, 1 << 20) == block * 2
    assert [e.seq for e in journal.append(events)] == list(range(200, 400))
    assert run.update_meta(state="FAILED")["state"] == "FAILED"
    assert len(store.runs("state=FAILED")) == 1
    journal.close()
    run.close()


def test_a_new_group_on_a_full_disk_leaves_nothing(small_disk: Path, fill: Callable[[], Path]) -> None:
    store = Store(small_disk / "runs")
    store.create(make_plan(), {})
    fill()
    with pytest.raises(DiskFull):
        store.create(make_plan("20260201-000000-duel-0000"), {})
    assert [g.id for g in store.groups()] == [GROUP]
    assert len(store.runs()) == 4
    assert len(store.delete(GROUP)) == 4  # which is how one makes room
