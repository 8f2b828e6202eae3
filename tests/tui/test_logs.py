"""The rings of the log: nothing is torn, nothing grows without end, nothing reaches the terminal as a command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.tui.logs import MAX_BYTES, MAX_LINE, MAX_LINES, Line, LogStore, Ring, shown

PIECES = st.lists(st.sampled_from([b"a", b"loss 1.5", b"\n", b"\r", b"\r\n", b"@ekvi {}", b"x" * 900]), max_size=30)


def _store() -> LogStore:
    store = LogStore()
    for run, server in (("g.left.r1", "left"), ("g.right.r1", "right")):
        store.know(run, server)
    return store


def _texts(store: LogStore) -> list[str]:
    return [line.text for line in store.view]


@given(PIECES, st.lists(st.integers(0, 20_000), max_size=6))
def test_lines_do_not_depend_on_where_blocks_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    whole, cut = _store(), _store()
    whole.show(server=None, wire=True)
    cut.show(server=None, wire=True)
    whole.feed("g.left.r1", 0, data)
    at = 0
    for end in [*sorted(c for c in cuts if c <= len(data)), len(data)]:
        cut.feed("g.left.r1", at, data[at:end])
        at = end
    assert _texts(cut) == _texts(whole)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_what_is_shown_of_a_half_line_can_be_grown(a: bytes, b: bytes) -> None:
    a, b = a.replace(b"\n", b""), b.replace(b"\n", b"")
    assert shown(shown(a) + b) == shown(a + b)


def test_a_progress_bar_shows_its_last_state() -> None:
    store = _store()
    store.feed("g.left.r1", 0, b"10 %\r55 %\r100 %\ndone\r\n")
    assert _texts(store) == ["100 %", "done"]


def test_a_line_without_an_end_stays_bounded() -> None:
    store = _store()
    for i in range(50):
        store.feed("g.left.r1", i * 100_000, b"y" * 100_000)
    store.feed("g.left.r1", 5_000_000, b"\nnext\n")
    assert [len(t) for t in _texts(store)] == [MAX_LINE, 4]


def test_missing_bytes_do_not_join_two_halves() -> None:
    store = _store()
    store.feed("g.left.r1", 0, b"first ha")
    store.feed("g.left.r1", 500, b"second half\nwhole\n")
    assert _texts(store) == ["second half", "whole"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b]52;c;c2VjcmV0\x1b\\after", "after"),
        (b"bell\x07 null\x00", "bell null"),
        (b"a\tb", "a   b"),
        (b"\xff\xfe bytes", "\ufffd\ufffd bytes"),
        ("c1 \x9b31m".encode(), "c1 31m"),
    ],
)
def test_no_control_sequence_is_shown(raw: bytes, expected: str) -> None:
    assert Line("r", raw).text == expected


@given(st.binary(max_size=200))
def test_no_control_character_is_ever_shown(raw: bytes) -> None:
    assert all(ord(c) >= 32 and not 0x7F <= ord(c) <= 0x9F for c in Line("r", raw.replace(b"\n", b"")).text)


def test_wire_lines_are_hidden_until_they_are_asked_for() -> None:
    store = _store()
    store.feed("g.left.r1", 0, b'plain\n@ekvi {"type":"iteration"}\n[rank0]: @ekvi {}\n')
    assert _texts(store) == ["plain"]
    store.show(server=None, wire=True)
    assert len(_texts(store)) == 3


def test_one_server_is_shown_with_what_its_ring_holds_and_with_what_comes() -> None:
    store = _store()
    store.feed("g.left.r1", 0, b"l1\n")
    store.feed("g.right.r1", 0, b"r1\n")
    store.show(server="right", wire=False)
    store.feed("g.left.r1", 3, b"l2\n")
    store.feed("g.right.r1", 3, b"r2\n")
    assert _texts(store) == ["r1", "r2"]
    store.show(server=None, wire=False)
    assert _texts(store) == ["l1", "r1", "l2", "r2"]


def test_a_chatty_server_does_not_push_out_a_quiet_one() -> None:
    store = _store()
    store.feed("g.right.r1", 0, b"quiet\n")
    store.feed("g.left.r1", 0, b"x\n" * (4 * MAX_LINES))
    store.show(server="right", wire=False)
    assert _texts(store) == ["quiet"]


@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 20), st.integers(1, 2000))
def test_a_ring_keeps_the_newest_within_its_bounds(sizes: list[int], lines: int, size: int) -> None:
    ring = Ring(lines, size)
    for number, count in enumerate(sizes):
        ring.append(Line(str(number), b"x" * count))
    kept = list(ring)
    assert ring.end == len(sizes)
    assert [line.run for line in kept] == [str(n) for n in range(ring.first, ring.end)]
    assert len(kept) <= lines
    assert sum(len(line.raw) for line in kept) <= size or len(kept) == 1


def test_long_lines_are_bounded_by_bytes() -> None:
    store = _store()
    for i in range(3 * MAX_BYTES // MAX_LINE):
        store.feed("g.left.r1", i * (MAX_LINE + 1), b"z" * MAX_LINE + b"\n")
    assert sum(len(line.raw) for line in store.view) <= MAX_BYTES
