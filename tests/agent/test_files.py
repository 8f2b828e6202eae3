"""Line files, the ballast and slots: whole or absent, whatever the disk and a kill do."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent import files, slots
from runners.agent.files import Ballast, LineFile, read_whole_lines, tail_lines
from runners.agent.states import StateLog


@given(st.binary(max_size=200).map(lambda b: b.replace(b"{", b"\n")), st.integers(1, 64))
def test_opening_cuts_a_torn_last_line_and_nothing_else(data: bytes, block: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BY", block)
        path = Path(folder) / "lines"
        path.write_bytes(data)
        lines = LineFile(str(path))
        assert lines.append({"a": 1})
        lines.close()
        assert path.read_bytes() == data[: data.rfind(b"\n") + 1] + b'{"a":1}\n'


def test_a_line_that_fits_in_part_is_taken_back_and_written_later_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    lines = LineFile(str(path))
    lines.append({"n": 0})
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:3]))
    assert not lines.append({"n": 1})
    assert not lines.append({"n": 2})
    assert path.read_bytes() == b'{"n":0}\n'
    monkeypatch.setattr(os, "write", whole)
    assert lines.flush()
    assert path.read_bytes() == b'{"n":0}\n{"n":1}\n{"n":2}\n'


def test_states_are_numbered_over_lives_and_over_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "states.jsonl")
    first = StateLog(path)
    first.add("PENDING", "x")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        first.add("STARTING", stage="train")
        assert len(first.file.pending) == 1
    first.add("RUNNING", stage="train")
    assert first.file.pending == []
    second = StateLog(path)
    second.add("SUCCEEDED", stage="train", exit_code=0)
    assert [(s["agent_seq"], s["state"]) for s in read_whole_lines(path)] == [
        (0, "PENDING"),
        (1, "STARTING"),
        (2, "RUNNING"),
        (3, "SUCCEEDED"),
    ]
    assert ("RUNNING", "train") in second.seen


def test_lines_read_from_the_end_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b'{"n":%d}\n' % n for n in range(100)) + b'{"n":')
    assert [line["n"] for line in read_whole_lines(str(path), tail_by=40)] == [97, 98, 99]
    assert len(read_whole_lines(str(path))) == 100
    assert read_whole_lines(str(tmp_path / "none")) == []


def test_the_tail_is_the_last_lines_of_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "spool.log"
    path.write_bytes(b"\xff\xfe broken\n" + b"".join(b"%d\n" % n for n in range(30)) + b"x" * 900)
    tail = tail_lines(str(path))
    assert len(tail) == 20
    assert tail[-2:] == ["29", "x" * 500]
    assert tail_lines(str(tmp_path / "none")) == []


def test_the_ballast_is_real_space_and_goes_at_once(tmp_path: Path) -> None:
    ballast = Ballast(str(tmp_path / "ballast"), size_by=8192)
    ballast.hold()
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 8192
    assert ballast.release()
    assert not (tmp_path / "ballast").exists()
    ballast.hold()
    assert not (tmp_path / "ballast").exists(), "what was just given to the states is not taken back at once"


def test_no_ballast_is_taken_where_space_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_by", lambda path: 15 * 8192)
    Ballast(str(tmp_path / "ballast"), size_by=8192).hold()
    assert not (tmp_path / "ballast").exists()


# --- slots


def _taken(work: Path, info: dict[str, Any] | None) -> slots.Slot:
    slot, _ = slots.take(str(work), "gpu", 1)
    assert slot is not None
    if info is not None:
        slot.tell(info)
    return slot


def test_a_slot_is_taken_once_and_says_by_whom(tmp_path: Path) -> None:
    slot = _taken(tmp_path, {"group": "g7", "run": "r1", "pid": 4})
    assert slots.take(str(tmp_path), "gpu", 1) == (None, "waits for slot gpu, held by run r1 of group g7")
    second, _ = slots.take(str(tmp_path), "gpu", 2)
    assert second is not None
    assert second.path.endswith("gpu.1.lock")
    second.free()
    slot.free()
    again, _ = slots.take(str(tmp_path), "gpu", 1)
    assert again is not None
    again.free()


@pytest.mark.parametrize(
    ("info", "low", "high"),
    [
        (None, 0, 0),  # never used
        ({"ended": 0.0}, 1, 600),  # just now
        ({"ended": -9e6}, 0, 0),  # long ago
        ({"ended": 9e6}, 600, 600),  # the clock was set back
        ({"run": "other"}, 600, 600),  # its agent was killed: the end is unknown
        ({"run": "mine"}, 0, 0),  # the run's own next stage
    ],
)
def test_the_rest_counts_from_the_last_end(
    tmp_path: Path, info: dict[str, Any] | None, low: float, high: float
) -> None:
    if info and "ended" in info:  # seconds from now: a test may be collected long before it runs
        info = {"ended": time.time() + info["ended"]}
    slot = _taken(tmp_path, info)
    assert low <= slot.rest_s(600.0, "mine") <= high
    slot.free()
    assert json.loads(Path(slot.path).read_bytes())["ended"] > 0
