"""A full disk under WORK stops the spool and not the training, and nothing that was written is damaged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners import wire
from runners.agent.base import is_locked
from tests.agent.support import Desk, desk_at, numbered, python, until

pytestmark = pytest.mark.hosts

# Prints whole lines in blocks; a file of its name in `gates` lets it begin the next block.
BLOCKS = """
import os, sys, time
gates, size, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
n = 0
for block in range(blocks):
    for _ in range(size // 100):
        sys.stdout.write(f"line {n:08d} {'x' * 85}\\n")
        n += 1
    sys.stdout.flush()
    with open(f"{gates}/done.{block}", "w"): pass
    while not os.path.exists(f"{gates}/go.{block}"):
        time.sleep(0.005)
"""


LONG = """
import os, sys, time
for _ in range(20): print("x" * 400)
open(sys.argv[1] + "/done", "w").close()
while not os.path.exists(sys.argv[1] + "/go"): time.sleep(0.005)
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Desk]:
    """A work folder on a disk of 8 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], check=True, timeout=20)
    try:
        with desk_at(mount / "work") as desk:
            yield desk
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True, timeout=20)


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    (tmp_path / "gates").mkdir()
    return tmp_path / "gates"


def _line(n: int) -> bytes:
    return b"line %08d %s\n" % (n, b"x" * 85)


def _fill(desk: Desk, leave: int = 0) -> Path:
    """Another user of the disk takes all of it but `leave` bytes."""
    path = desk.work.parent / "filler"
    v = os.statvfs(desk.work)
    with path.open("wb") as f:
        try:
            f.write(b"\1" * max(v.f_bavail * v.f_frsize - leave, 0))
            f.flush()
            while not leave:
                f.write(b"\1" * 4096)
                f.flush()
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                f.close()
    return path


def test_a_training_that_fills_the_disk_goes_on_and_the_queue_too(small: Desk, gates: Path) -> None:
    """12 MiB of output on 8 MiB: the end is noted with its code, and the next run's states are written."""
    code = BLOCKS + "\nsys.exit(5)"
    for block in range(3):
        (gates / f"go.{block}").touch()
    small.queue({"a": [python("train", code, str(gates), "4000000", "3")], "b": [python("train", "print('b')")]})
    small.work_to_end()
    end = small.last("a")
    assert (end["state"], end["exit_code"]) == ("FAILED", 5)
    data = small.spool("a")
    record = small.record("a")
    assert record is not None
    assert record["bytes_in"] == 12_000_000 == record["spool_by"] + record["dropped_by"]
    assert end["data"]["dropped_by"] == record["dropped_by"] > 3_000_000
    whole = record["spool_by"] // 100
    assert data[: whole * 100] == b"".join(_line(n) for n in range(whole)), "what was kept is whole and in order"
    reasons = [s["reason"] for s in small.states("a") if s["state"] == "RUNNING" and s["reason"]]
    assert len(reasons) == 1
    assert "no space left under" in reasons[0]
    assert "the training goes on" in reasons[0]
    assert small.log().count("run a: no space left") == 1
    assert small.last("b")["state"] == "SUCCEEDED"
    assert all(numbered(small.states(run)) for run in ("a", "b"))


def test_output_is_kept_again_when_space_comes_back(small: Desk, gates: Path) -> None:
    small.queue({"a": [python("train", BLOCKS, str(gates), "100000", "3")]})
    agent = small.work_here()
    until((gates / "done.0").exists, "the first block")
    until(lambda: len(small.spool("a")) == 100_000, "it is kept")
    filler = _fill(small)
    (gates / "go.0").touch()
    until((gates / "done.1").exists, "the training goes on while the disk is full")
    until(lambda: any("no space left" in (s["reason"] or "") for s in small.states("a")), "one word about it")
    filler.unlink()
    (gates / "go.1").touch()
    until((gates / "done.2").exists, "the third block")
    until(lambda: any("output is kept again" in (s["reason"] or "") for s in small.states("a")), "a word about that")
    (gates / "go.2").touch()
    small.finish(agent)
    assert small.last("a")["state"] == "SUCCEEDED"
    lines = small.spool("a").splitlines(keepends=True)
    marks = [i for i, line in enumerate(lines) if b"@ekvi" in line]
    assert len(marks) == 1
    mark = wire.parse(lines[marks[0]])
    record = small.record("a")
    assert mark is not None
    assert record is not None
    assert (mark["type"], mark["level"], mark["code"]) == ("diagnostic", "warning", "disk_full")
    assert mark["data"]["missing_by"] == record["dropped_by"] == small.last("a")["data"]["dropped_by"] > 0
    assert record["dropped_by"] % 100 == 0, "it stopped and went on at line starts"
    kept = lines[: marks[0]] + lines[marks[0] + 1 :]
    missing = record["dropped_by"] // 100
    numbers = [*range(marks[0]), *range(marks[0] + missing, 3000)]
    assert kept == [_line(n) for n in numbers]


def test_states_are_written_on_the_ballast_when_others_filled_the_disk(small: Desk, gates: Path) -> None:
    """An end with long last words needs a new block, and gets it; the next run waits for room."""
    small.queue({"a": [python("train", LONG, str(gates))], "b": [python("train", "print('b')")]})
    agent = small.work_here()
    until((gates / "done").exists, "a prints")
    small.wait_state("a", "RUNNING")
    assert (small.q / "ballast").stat().st_size == 256 << 10
    filler = _fill(small)
    (gates / "go").touch()
    assert small.wait_ended("a")["state"] == "SUCCEEDED"
    assert len(small.last("a")["data"]["tail"]) == 20
    assert (small.run_dir("a") / "states.jsonl").stat().st_size > 4096
    assert not (small.q / "ballast").exists()
    assert filler.exists()
    filler.unlink()
    small.finish(agent)
    assert small.last("b")["state"] == "SUCCEEDED"
    assert all(numbered(small.states(run)) for run in ("a", "b"))


def test_without_any_room_states_wait_and_come_in_order_when_there_is_some(small: Desk, gates: Path) -> None:
    """Even the ballast's space is taken by others: the agent lives, and tells everything later."""
    small.queue({"a": [python("train", LONG, str(gates))], "b": [python("train", "print('b')")]})
    agent = small.work_here()
    until((gates / "done").exists, "a prints")
    small.wait_state("a", "RUNNING")
    (small.q / "ballast").unlink()
    before = small.states("a")
    filler = _fill(small)
    (gates / "go").touch()
    until(lambda: (small.record("a") or {}).get("ended"), "the end is kept on a full disk")
    ended = small.record("a")
    assert ended is not None
    assert ended["exit_code"] == 0
    until(lambda: is_locked(str(small.run_dir("a") / "shim.0.json")) is False, "the shim leaves")
    assert agent.poll() is None
    assert small.states("a") == before
    filler.unlink()
    small.finish(agent)
    assert small.states("a")[: len(before)] == before
    assert [small.last(run)["state"] for run in ("a", "b")] == ["SUCCEEDED", "SUCCEEDED"]
    assert small.last("a")["mono"] == ended["mono_end"]
    assert all(numbered(small.states(run)) for run in ("a", "b"))


def test_a_queue_that_begins_on_a_full_disk_waits_and_says_so(small: Desk) -> None:
    small.queue({"a": [python("train", "print('a')")]})
    filler = _fill(small)
    agent = subprocess.Popen([sys.executable, "-m", "runners.agent", "work", str(small.q)], stderr=subprocess.PIPE)
    small.agents.append(agent)
    assert agent.stderr is not None
    said = b""
    for line in agent.stderr:
        said = line
        if b"no space left under" in line:
            break
    assert b"no space left under" in said
    assert agent.poll() is None
    filler.unlink()
    assert agent.wait(20) == 0
    assert small.last("a")["state"] == "SUCCEEDED"
