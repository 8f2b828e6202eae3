"""Telemetry as a server sends it, hostile too: each line once, in order, and what is missing declared."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.parse.ticklines import LINE_BY, NOT_KEPT, TickLines

HELLO = {"type": "hello", "schema": "ekvi.gpu/1", "agent_id": "a", "boot_id": "b", "t_wall_ns": 1}


def _tick(seq: int, **more: Any) -> dict[str, Any]:
    return {"type": "tick", "seq": seq, "t_mono_ns": seq, "t_wall_ns": 10 * seq, "devices": [], **more}


def _raw(*lines: Any) -> bytes:
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def _gap(first: int, last: int, why: str = NOT_KEPT) -> dict[str, Any]:
    return {"type": "gap", "from_seq": first, "to_seq": last, "reason": why}


def _fed(sieve: TickLines, *lines: Any, sure: bool = False) -> list[dict[str, Any]]:
    return [line for _, line in sieve.feed(_raw(*lines), sure=sure).lines]


def _segment(first: int) -> dict[str, Any]:
    return {"type": "segment", "first_seq": first}


def test_a_segment_leads_to_the_next_and_its_own_lines_are_not_kept() -> None:
    sieve = TickLines()
    sieve.begin(0)
    sifted = sieve.feed(_raw(_segment(0), HELLO, _tick(0), _tick(1), _segment(2), _tick(99)))
    assert [line["type"] for _, line in sifted.lines] == ["hello", "tick", "tick"]
    assert (sifted.next_seq, sifted.doubt) == (2, False)
    sieve.begin(2)
    assert _fed(sieve, _segment(2), {**HELLO, "t_wall_ns": 2}, _tick(2)) == [_tick(2)]


def test_read_again_from_its_start_it_gives_what_is_new_alone() -> None:
    sieve = TickLines()
    err = {"type": "err", "t_mono_ns": 1, "code": "blocked"}
    head = [_segment(0), HELLO, _tick(0), err, _tick(1)]
    assert len(_fed(sieve, *head)) == 4
    sieve.begin(0)
    again = {"type": "err", "t_mono_ns": 2, "code": "blocked"}
    assert _fed(sieve, *head, again, _gap(2, 5, "late"), _tick(6)) == [again, _gap(2, 5, "late"), _tick(6)]


def test_a_changed_hello_is_kept_before_what_stands_under_it_and_only_once() -> None:
    sieve = TickLines()
    other = {**HELLO, "backend": "nvidia-smi"}
    lines = [_segment(0), HELLO, _tick(0), other, _tick(1)]
    assert _fed(sieve, *lines) == [HELLO, _tick(0), other, _tick(1)]
    sieve.begin(0)
    assert _fed(sieve, *lines, _tick(2)) == [_tick(2)]


def test_what_the_server_did_not_keep_is_declared() -> None:
    sieve = TickLines()
    sieve.begin(40)
    assert _fed(sieve, _segment(40), HELLO, _tick(40)) == [HELLO, _gap(0, 39), _tick(40)]
    sieve.begin(90)
    assert _fed(sieve, _segment(90), HELLO, _tick(90, from_seq=85, n=3)) == [
        _gap(41, 84),
        _tick(90, from_seq=85, n=3),
    ]


def test_a_hole_within_a_segment_is_doubted_first_and_then_declared() -> None:
    sieve = TickLines()
    assert len(_fed(sieve, _segment(0), HELLO, _tick(0))) == 2
    sifted = sieve.feed(_raw(_tick(5), _tick(6)))
    assert (sifted.lines, sifted.doubt) == ([], True)
    sieve.begin(0)
    assert _fed(sieve, _segment(0), HELLO, _tick(0), _tick(5), sure=True) == [_gap(1, 4), _tick(5)]


@pytest.mark.parametrize("torn", [b'8,"util":0.5}]}\n', b"\x00\xff\n", b"[]\n", b"7\n"])
def test_bytes_that_do_not_continue_are_doubted(torn: bytes) -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, _tick(0))
    assert sieve.feed(torn + _raw(_tick(1))).doubt
    sieve.begin(0)
    assert _fed(sieve, _segment(0), HELLO, _tick(0), torn, _tick(1), sure=True) == [_tick(1)]


def test_a_thinned_tick_that_speaks_of_more_than_is_here_is_taken() -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, *(_tick(i) for i in range(15)))
    sieve.begin(0)
    thin = [_tick(9, from_seq=0, n=10), _tick(19, from_seq=10, n=10), _tick(29, from_seq=20, n=10)]
    assert _fed(sieve, {**_segment(0), "every_s": 1}, HELLO, *thin) == thin[1:]


def test_a_gap_is_told_as_far_as_it_is_new() -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, *(_tick(i) for i in range(10)))
    # a power cut took the last ticks from the server, and the next agent counts on from what was left
    sieve.begin(0)
    new = {**HELLO, "agent_id": "c"}
    lines = [*(_tick(i) for i in range(6)), new, _gap(6, 30, "the agent was away"), _tick(31)]
    assert _fed(sieve, _segment(0), HELLO, *lines) == [new, _gap(10, 30, "the agent was away"), _tick(31)]


def test_ticks_of_another_agent_with_numbers_that_were_used_are_no_duplicates() -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, *(_tick(i) for i in range(10)))
    sieve.begin(0)
    new = {**HELLO, "agent_id": "c"}
    lines = [_segment(0), HELLO, *(_tick(i) for i in range(8)), new, _tick(8, t_wall_ns=999)]
    assert _fed(sieve, *lines) == [new, _tick(8, t_wall_ns=999)]
    sieve.begin(0)
    assert _fed(sieve, *lines) == []


def test_it_learns_from_what_is_on_disk() -> None:
    first = TickLines()
    err = {"type": "err", "t_mono_ns": 5, "code": "gone"}
    lines = [_segment(0), HELLO, _tick(0), err, _gap(1, 3, "late"), _tick(4)]
    kept = b"".join(raw for raw, _ in first.feed(_raw(*lines)).lines)
    clock = {"type": "clock", "t_wall_ns": 1, "offset_s": 0.1, "error_s": 0.1}
    for cut in range(0, len(kept), 7):
        sieve = TickLines()
        known = [*sieve.known(kept[:cut]), *sieve.known(kept[cut:]), *sieve.known(_raw(clock) + b'{"type":"ti')]
        assert [line["type"] for line in known] == ["hello", "tick", "err", "gap", "tick", "clock"]
        assert sieve.last == 4
        sieve.begin(0)
        assert _fed(sieve, *lines, _tick(5)) == [_tick(5)]


def test_a_plain_file_of_an_older_agent_is_followed_to_its_bound() -> None:
    sieve = TickLines()
    bound = {"type": "gap", "from_seq": 2, "to_seq": None, "reason": "the file reached its bound"}
    lines = [HELLO, _tick(0), _tick(1), bound]
    assert _fed(sieve, *lines) == lines
    sieve.begin(0)
    assert _fed(sieve, *lines) == []


def test_what_is_missing_at_the_end_of_a_run_is_told_once() -> None:
    sieve = TickLines()
    hello = {**HELLO, "hz": 10.0}
    assert sieve.missing_until(9.0) is None
    lines = [hello, _tick(0, t_wall_ns=100 * 10**9), _tick(1, t_wall_ns=round(100.1e9))]
    kept = b"".join(raw for raw, _ in sieve.feed(_raw(_segment(0), *lines)).lines)
    assert sieve.missing_until(101.0) is None
    gap = sieve.missing_until(130.1)
    assert gap == _gap(2, 301)
    assert sieve.missing_until(130.1) is None
    again = TickLines()
    list(again.known(kept + _raw(gap)))
    assert again.missing_until(130.1) is None
    assert again.missing_until(140.1) == _gap(302, 401)


# --- hostile


@pytest.mark.parametrize(
    "line",
    [
        _tick(-1),
        _tick(1 << 60),
        _tick(10**12),
        _tick(1) | {"seq": "1"},
        _tick(1) | {"seq": 1.0},
        _tick(1) | {"seq": True},
        _tick(1) | {"seq": None},
        _tick(1, from_seq=2),
        _tick(1, from_seq=-1),
        _tick(1, t_mono_ns="x"),
        _tick(1, t_wall_ns=1 << 64),
        _tick(1, t_wall_ns=-1),
        _tick(1, devices={"0": {}}),
        _tick(1, devices=[1]),
        _tick(1, devices=[{"index": "0"}]),
        _tick(1, devices=[{}]),
        _tick(1, host=[]),
        _gap(5, 4),
        _gap(1, 10**12 + 1),
        {"type": "gap"},
        {"type": "clock", "t_wall_ns": 1, "offset_s": 9.0, "error_s": 0.0},
        {"type": ["tick"]},
        {"seq": 1},
        {"type": "segment", "first_seq": -5},
        {"type": "segment", "first_seq": "9"},
        {"type": "segment", "first_seq": 0},
    ],
)
def test_a_line_that_cannot_be_is_passed_over(line: dict[str, Any]) -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, _tick(0))
    sifted = sieve.feed(_raw(line, _tick(1)))
    assert ([kept for _, kept in sifted.lines], sifted.next_seq) == ([_tick(1)], None)


def test_deep_and_huge_values_are_passed_over() -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, _tick(0))
    deep = b'{"type":' + b"[" * 100_000 + b"\n"
    digits = b'{"type":"tick","seq":' + b"9" * 10_000 + b"}\n"
    assert _fed(sieve, deep, digits, _tick(1), sure=True) == [_tick(1)]
    assert sieve.bad == 2


def test_a_line_without_end_does_not_fill_the_memory_and_the_next_one_counts() -> None:
    sieve = TickLines()
    _fed(sieve, _segment(0), HELLO, _tick(0))
    for _ in range(40):
        assert sieve.feed(b"x" * (256 << 10)).lines == []
        assert len(sieve._rest) <= LINE_BY
    assert _fed(sieve, b'"}\n', _tick(1)) == [_tick(1)]


def test_agents_and_lines_without_number_are_remembered_within_bounds() -> None:
    sieve = TickLines()
    for i in range(6000):
        _fed(sieve, {**HELLO, "agent_id": f"{i}"}, {"type": "err", "t_mono_ns": i}, _tick(i))
    assert len(sieve._marks) <= 256
    assert len(sieve._others) <= 4096


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.just(_raw(_tick(3))), max_size=20), st.integers(1, 50))
def test_whatever_comes_raises_nothing(pieces: list[bytes], size: int) -> None:
    sieve = TickLines()
    data = b"\n".join(pieces)
    for at in range(0, len(data), size):
        for raw, _ in sieve.feed(data[at : at + size], sure=True).lines:
            assert raw.endswith(b"\n")
    list(TickLines().known(data))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_cuts_and_block_borders_give_each_line_once(data: st.DataObject) -> None:
    lines: list[Any] = [_segment(0), HELLO]
    seq = 0
    for _ in range(data.draw(st.integers(1, 20))):
        if data.draw(st.booleans()):
            lines.append(_gap(seq, seq + 2, "late"))
            seq += 3
        if data.draw(st.booleans()):
            lines.append({"type": "err", "t_mono_ns": seq, "code": "failed"})
        lines.append(_tick(seq))
        seq += 1
    whole = _raw(*lines)
    kept = b""
    for life in range(data.draw(st.integers(1, 4))):  # a cockpit that is killed each time
        sieve = TickLines()
        list(sieve.known(kept))
        sieve.begin(0)
        end = len(whole) if life == 3 else data.draw(st.integers(0, len(whole)))
        at = 0
        while at < end:
            step = data.draw(st.integers(1, 400))
            sifted = sieve.feed(whole[at : min(at + step, end)])
            assert not sifted.doubt
            kept += b"".join(raw for raw, _ in sifted.lines)
            at += step
        known = data.draw(st.integers(0, 30))
        kept = kept[: len(kept) - known] if life < 3 else kept  # what a crash took
        kept = kept[: kept.rfind(b"\n") + 1]
    found = [json.loads(raw) for raw in kept.splitlines()]
    assert found == lines[1 : 1 + len(found)]
    spans = [(x.get("from_seq", x.get("seq")), x.get("to_seq", x.get("seq"))) for x in found if x["type"] != "hello"]
    numbered = [span for span in spans if span[0] is not None]
    assert all(b[0] == a[1] + 1 for a, b in pairwise(numbered))
