"""The sieve never says that a needle cannot be there when it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cockpit.parse.sieve import LEAST_BY, Sieve
from cockpit.parse.stream import FORMATS, StreamParser

NEEDLES = [needle for form in FORMATS for needle in form.NEEDLES]


@given(before=st.binary(max_size=40), after=st.binary(max_size=40), which=st.sampled_from(range(len(NEEDLES))))
def test_a_needle_that_is_there_is_possible(before: bytes, after: bytes, which: int) -> None:
    assert Sieve(NEEDLES).possible(before + NEEDLES[which] + after)[which]


@given(block=st.binary(max_size=200), needles=st.lists(st.binary(min_size=3, max_size=9), min_size=1, max_size=20))
def test_it_errs_on_one_side_only(block: bytes, needles: list[bytes]) -> None:
    possible = Sieve(needles).possible(block)
    assert all(may for needle, may in zip(needles, possible, strict=True) if needle in block)


def test_a_block_without_any_is_ruled_out() -> None:
    assert not any(Sieve(NEEDLES).possible(b"nothing of note in here\n" * 20))


def test_large_blocks_and_small_ones_give_the_same_events() -> None:
    wire = b'@ekvi {"type":"iteration","step":%d,"total":9,"loss":1.5,"step_s":0.01}\n'
    log = b"".join(b"padding %06d\n" % n * 1000 + wire % (n + 1) for n in range(60))
    assert len(log) > 4 * LEAST_BY
    whole, pieces = StreamParser(), StreamParser()
    at_once = whole.feed(log, 0) + whole.finish()
    in_pieces = [e for at in range(0, len(log), 4096) for e in pieces.feed(log[at : at + 4096], at)] + pieces.finish()
    assert at_once == in_pieces
    assert len(at_once) == 60
