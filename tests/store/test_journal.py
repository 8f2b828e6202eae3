"""The journal: stamped, cut to its last whole record, undamaged by a full disk."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.core.errors import StoreError
from cockpit.core.events import Diagnostic, Event, Iteration, State, StateChange
from cockpit.parse.stream import StreamParser
from cockpit.store.errors import DiskFull
from cockpit.store.journal import Journal, read_events

EVENTS: list[Event] = [
    StateChange(state=State.SUBMITTED),
    StateChange(state=State.PENDING, agent_seq=0),
    Iteration(step=1, loss=2.5, extra={"offset": 5}, offset=10),
    Diagnostic(level="info", code="x", message='"offset":7}\n', data={"agent_seq": 99, "offset": 1}),
    Diagnostic(level="info", code="y", message="ü", offset=40),
    StateChange(state=State.RUNNING, agent_seq=1, stage="train"),
    Iteration(step=2, offset=70),
]


def filled(path: Path) -> bytes:
    with Journal(path, "run-1", clock=lambda: 7.0) as journal:
        journal.append(EVENTS[:3])
        journal.append(EVENTS[3:])
    return path.read_bytes()


def test_append_stamps_and_read_gives_it_back(tmp_path: Path) -> None:
    with Journal(tmp_path / "e", "run-1", clock=lambda: 7.0) as journal:
        stamped = journal.append(EVENTS)
        assert [(e.seq, e.run, e.t_recv) for e in stamped] == [(i, "run-1", 7.0) for i in range(len(EVENTS))]
        assert list(journal.read()) == stamped
        assert journal.append([]) == []


def test_opening_again_knows_where_it_was(tmp_path: Path) -> None:
    filled(tmp_path / "e")
    with Journal(tmp_path / "e", "run-1") as journal:
        assert (journal.next_seq, journal.line_events(), journal.agent_seq) == (7, 3, 1)


def test_a_new_journal_knows_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "e", "run-1") as journal:
        assert (journal.next_seq, journal.line_events(), journal.agent_seq) == (0, 0, -1)
        assert list(journal.read()) == []


def test_a_journal_cut_anywhere_opens_at_its_last_whole_record(tmp_path: Path) -> None:
    data = filled(tmp_path / "e")
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in sorted({*range(0, len(data), 29), *(end + by for end in ends for by in (-1, 0, 1))}):
        (tmp_path / "c").write_bytes(data[:cut])
        with Journal(tmp_path / "c", "run-1") as journal:
            whole = data[:cut].count(b"\n")
            assert journal.next_seq == whole
            assert journal.line_events() == sum(e.offset is not None for e in EVENTS[:whole])
            assert journal.agent_seq == (-1 if whole < 2 else 0 if whole < 6 else 1)
            assert (tmp_path / "c").read_bytes() == data[: data[:cut].rfind(b"\n") + 1]


JUNK = [b"\0" * 5000, b'{"seq":\n', b"[]\n", b"\xff\xfe\n\n\n", b'{"seq":3}\n' + b"\0" * 70_000]


@pytest.mark.parametrize("junk", JUNK)
def test_what_a_power_cut_leaves_behind_is_cut(junk: bytes, tmp_path: Path) -> None:
    data = filled(tmp_path / "e")
    (tmp_path / "e").write_bytes(data + junk)
    with Journal(tmp_path / "e", "run-1") as journal:
        assert journal.next_seq == 7
    assert (tmp_path / "e").read_bytes() == data


def test_a_record_longer_than_any_window_is_found(tmp_path: Path) -> None:
    with Journal(tmp_path / "e", "run-1") as journal:
        journal.append([Iteration(step=1, extra={"x": "y" * 3_000_000}, offset=5)])
    with (tmp_path / "e").open("ab") as file:
        file.write(b'{"torn')
    with Journal(tmp_path / "e", "run-1") as journal:
        assert (journal.next_seq, journal.line_events()) == (1, 1)


def test_a_full_disk_leaves_whole_records_and_the_same_events_go_in_later(
    tmp_path: Path, full_at: Callable[[int], AbstractContextManager[None]]
) -> None:
    before = filled(tmp_path / "e")
    with Journal(tmp_path / "e", "run-1") as journal:
        with full_at(len(before) + 30), pytest.raises(DiskFull, match="full"):
            journal.append([Iteration(step=3, offset=100), Iteration(step=4, offset=130)])
        assert (tmp_path / "e").read_bytes() == before
        assert (journal.next_seq, journal.line_events()) == (7, 3)
        again = journal.append([Iteration(step=3, offset=100), Iteration(step=4, offset=130)])
        assert [e.seq for e in again] == [7, 8]
    assert [e.seq for e in read_events(tmp_path / "e")] == list(range(9))


def test_a_write_that_was_interrupted_is_overwritten_by_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int, data: memoryview, offset: int) -> int:
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, data[: len(data) // 2])
        raise KeyboardInterrupt

    with Journal(tmp_path / "e", "run-1") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", interrupted)
            patch.setattr(os, "ftruncate", lambda *_: None)  # not even that came
            with pytest.raises(KeyboardInterrupt):
                journal.append([Iteration(step=1, extra={"long": "x" * 500})])
        assert (tmp_path / "e").stat().st_size > 200
        journal.append([Iteration(step=2)])
    assert [e.step for e in read_events(tmp_path / "e") if isinstance(e, Iteration)] == [2]


def test_what_json_does_not_know_is_written_as_unknown(tmp_path: Path) -> None:
    with Journal(tmp_path / "e", "run-1") as journal:
        journal.append([Iteration(step=1, loss=math.nan, extra={"a": [math.inf, 1.0], "b": "\ud800"})])
    (line,) = (tmp_path / "e").read_text().splitlines()
    obj = json.loads(line, parse_constant=pytest.fail)
    assert (obj["loss"], obj["extra"]["a"]) == (None, [None, 1.0])


def test_damage_in_the_middle_is_named_with_its_line(tmp_path: Path) -> None:
    lines = filled(tmp_path / "e").splitlines(keepends=True)
    (tmp_path / "e").write_bytes(b"".join([*lines[:2], b'{"seq":2,"type":"iteration"}\n', *lines[3:]]))
    with pytest.raises(StoreError, match=r"e:3: damaged record"):
        list(read_events(tmp_path / "e"))


def test_a_reader_leaves_out_a_last_record_that_is_not_whole(tmp_path: Path) -> None:
    data = filled(tmp_path / "e")
    (tmp_path / "e").write_bytes(data[:-5])
    assert len(list(read_events(tmp_path / "e"))) == 6


def test_a_missing_journal_has_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "none")) == []


LOG = (
    b"".join(
        b"loading\n"
        b"  9%%|# |\r iteration %d/9 | elapsed time per iteration (ms): 5.0 | lm loss: 1.5 |\n"
        b'@ekvi {"type":"diagnostic","code":"note","message":"%d"} @ekvi {"type":"artifact","path":"a%d"}\n'
        % (n, n, n)
        for n in range(1, 5)
    )
    + b" iteration 5/9 | lm loss: 1.0 |"
)
BLOCKS = st.integers(1, 200)
STATES: list[Event] = [StateChange(state=State.RUNNING, agent_seq=0)]


def follow(journal: Journal, parser: StreamParser, data: bytes, at: int, known: int, block: int) -> None:
    """Feed a log from `at` on, in blocks, and journal what is not there yet."""
    while at < len(data):
        events = parser.feed(data[at : at + block], at)
        skip = min(known, len(events))
        known -= skip
        journal.append(events[skip:])
        at += block
    events = parser.finish()
    journal.append(events[min(known, len(events)) :])


def facts(path: Path) -> list[tuple[str, int | None, int | None, str]]:
    return [
        (e.type, getattr(e, "step", None), e.offset, getattr(e, "path", getattr(e, "message", "")) or "")
        for e in read_events(path)
    ]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), blocks=st.tuples(BLOCKS, BLOCKS))
def test_each_event_is_there_once_wherever_a_crash_cut_the_files(
    cuts: tuple[int, int], blocks: tuple[int, int], tmp_path: Path
) -> None:
    (cut_journal, cut_log), (block, block_after) = cuts, blocks
    path = tmp_path / "e"
    path.unlink(missing_ok=True)
    with Journal(path, "run-1") as journal:
        journal.append(STATES)
        follow(journal, StreamParser(), LOG, 0, 0, block)
    undisturbed, data = facts(path), path.read_bytes()

    path.write_bytes(data[: cut_journal % (len(data) + 1)])
    mirrored = LOG[: cut_log % (len(LOG) + 1)]
    with Journal(path, "run-1") as journal:
        journal.append([e for e in STATES if (e.agent_seq or 0) > journal.agent_seq])
        parser, known = StreamParser(), journal.line_events()
        events = parser.feed(mirrored, 0)
        journal.append(events[min(known, len(events)) :])
        follow(journal, parser, LOG, len(mirrored), max(0, known - len(events)), block_after)
    assert facts(path) == undisturbed
    assert [e.seq for e in read_events(path)] == list(range(len(undisturbed)))
