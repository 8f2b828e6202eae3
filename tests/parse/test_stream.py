"""The stream parser: any cut of the same bytes gives the same events, and no line is lost in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cockpit.core.events import Diagnostic, Event, Iteration
from cockpit.parse import stream
from cockpit.parse.stream import StreamParser

GOLDEN = Path(__file__).parent / "golden"
LOGS = [p.read_bytes() for p in sorted(GOLDEN.glob("*.log"))]
LINES = [line for log in LOGS for line in log.splitlines(keepends=True)]
PIECES = st.one_of(
    st.sampled_from(LINES),
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\x1b[0m", b"iteration ", b"@ekvi ", b"\xff", b"Traceback (most", b""]),
    st.binary(max_size=12),
)


def whole(data: bytes) -> list[Event]:
    parser = StreamParser()
    return parser.feed(data, 0) + parser.finish()


def in_cuts(data: bytes, cuts: list[int]) -> list[Event]:
    parser, events, at = StreamParser(), [], 0
    for cut in [*sorted(c % (len(data) + 1) for c in cuts), len(data)]:
        events += parser.feed(data[at:cut], at)
        at = cut
    return events + parser.finish()


@pytest.mark.parametrize("small", [False, True])
def test_any_cut_gives_the_same_events(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:  # so that windows end and lines are too long within the few bytes of an example
        monkeypatch.setattr(stream, "_WINDOW", 64)
        monkeypatch.setattr(stream, "LONGEST_PIECE_BY", 150)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 10_000), max_size=12))
    @example([b"a\r", b"\n", LINES[0]], [2, 3])
    @example(list(LOGS), list(range(0, 10_000, 97)))
    def check(pieces: list[bytes], cuts: list[int]) -> None:
        data = b"".join(pieces)
        assert in_cuts(data, cuts) == whole(data)

    check()


def test_byte_by_byte_is_the_same() -> None:
    data = b"".join(LOGS)
    assert in_cuts(data, list(range(len(data)))) == whole(data)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=20))
def test_offsets_are_line_starts_and_rise(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    last = 0
    for event in whole(data):
        assert event.offset is not None
        assert event.offset == 0 or data[event.offset - 1 : event.offset] == b"\n"
        assert event.offset >= last
        last = event.offset


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_can_break_it(data: bytes) -> None:
    whole(b"@ekvi " + data + b"\n iteration 1/2 | " + data + b"\n@ekvi {" + data)


def _iteration_line(step: int) -> bytes:
    return f" iteration {step}/9 | elapsed time per iteration (ms): 5.0 | lm loss: 1.0 |\n".encode()


def test_fed_bytes_are_passed_over_when_they_come_again() -> None:
    data = _iteration_line(1) + _iteration_line(2)
    parser = StreamParser()
    events = parser.feed(data[:90], 0)
    events += parser.feed(data[10:100], 10)
    events += parser.feed(data[20:50], 20)
    events += parser.feed(data[100:], 100)
    assert events == whole(data)


def test_a_hole_is_refused() -> None:
    parser = StreamParser()
    parser.feed(b"abc", 0)
    with pytest.raises(ValueError, match="byte 3"):
        parser.feed(b"def", 4)


def test_a_log_may_begin_later_than_its_first_byte() -> None:
    (event,) = StreamParser().feed(_iteration_line(3), 1000)
    assert event.offset == 1000


def test_a_line_without_its_newline_waits_for_finish() -> None:
    parser = StreamParser()
    assert parser.feed(_iteration_line(1)[:-1], 0) == []
    (event,) = parser.finish()
    assert isinstance(event, Iteration)
    assert event.step == 1
    assert parser.finish() == []


def test_a_line_of_megabytes_is_cut_and_the_next_one_is_whole() -> None:
    long = b"x" * (3 << 20) + b" iteration 1/9 | lm loss: 1.0 |\n"
    events = in_cuts(long + _iteration_line(2), list(range(0, 3 << 20, 100_001)))
    assert [e.step for e in events if isinstance(e, Iteration)] == [2]
    assert events == whole(long + _iteration_line(2))


def test_what_is_cut_off_a_long_line_decides_nothing() -> None:
    line = _iteration_line(1)[:-1] + b"x" * stream.LONGEST_PIECE_BY + b"@ekvi {}\n"
    events = whole(line)
    assert [e.step for e in events if isinstance(e, Iteration)] == [1]
    assert events == in_cuts(line, [5])


def test_a_progress_bar_of_megabytes_does_not_hide_what_follows_it() -> None:
    bar = b"\r 10%|#####     | 100/1000 [00:10<01:30,  9.99it/s]" * 40_000
    (event,) = whole(b"first\n" + bar + b"\r" + _iteration_line(4))
    assert isinstance(event, Iteration)
    assert (event.step, event.offset) == (4, 6)


def test_a_restart_from_a_checkpoint_tells_its_iterations_again() -> None:
    data = b"".join(_iteration_line(step) for step in (1, 2, 3, 2, 3, 4))
    assert [e.step for e in whole(data) if isinstance(e, Iteration)] == [1, 2, 3, 2, 3, 4]


def test_every_rank_that_tells_the_same_iterations_counts_once() -> None:
    lines = [f"{rank}: ".encode() + _iteration_line(step) for step in range(1, 5) for rank in range(4)]
    assert [e.step for e in whole(b"".join(lines)) if isinstance(e, Iteration)] == [1, 2, 3, 4]


def test_an_arguments_dump_without_an_end_is_given_up() -> None:
    head = b"------------------------ arguments ------------------------\n  seq_length ...... 128\n"
    data = (
        head
        + b"a line\n" * 5000
        + b"-------------------- end of arguments ---------------------\n"
        + _iteration_line(1)
    )
    (event,) = whole(data)
    assert isinstance(event, Iteration)
    assert event.tokens is None


HOSTILE = [
    b"iteration ",
    b" iteration 1/2 |",
    b"validation loss at iteration ",
    b"validation loss at ",
    b"@ekvi ",
    b'@ekvi {"a":[',
    b"[RESULT] a",
    b"[RESULT] " + b"a=",
    b"rror A",
    b"rror: CUDA ",
    b"a-1",
    b"\x1b]",
    b"(a, pid=",
    b"Traceback (most recent call last)",
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", HOSTILE)
def test_a_long_line_costs_time_in_proportion_to_its_length(text: bytes) -> None:
    tail = b"a" * (1 << 19)
    head = b"Traceback (most recent call last):\n"
    for line in (text * ((1 << 20) // len(text)), text + tail, head + b"A" + tail + b"!", text + b"1" * (1 << 19)):
        whole(line + b"\n")


def test_a_flood_of_different_errors_is_cut_off() -> None:
    words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(400)]
    data = b"".join(
        f'Traceback (most recent call last):\n  File "a.py"\nValueError: {word}\n'.encode() for word in words
    )
    errors = [e for e in whole(data) if isinstance(e, Diagnostic)]
    assert 0 < len(errors) <= 100
