"""The spool: whatever the disk does, bytes are kept in order or counted, and the gaps say how many are missing."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import wire
from runners.agent import spool
from runners.agent.spool import MARGIN_BY, RESUME_BY, Spool

MARK = re.compile(rb"\n?@ekvi [^\n]*\n")
PLENTY = 1 << 30
_blocks = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40).map(lambda b: b.replace(b"@", b"\n")), st.booleans()), max_size=30
)


def _gaps(data: bytes) -> list[int]:
    found = [wire.parse(line.strip()) for line in MARK.findall(data)]
    return [line["data"]["missing_by"] for line in found if line is not None]


def _fits(output: bytes, pieces: list[bytes], gaps: list[int]) -> bool:
    """Whether `output` is the pieces with gaps between them, each later piece from a line start on.

    The newline before a mark may be the output's own or the mark's: both are tried.
    """
    piece, *more = pieces
    if not more:
        return output == piece
    for own in (piece, piece + b"\n"):
        rest = output[len(own) + gaps[0] :]
        at_line_start = not rest or output[len(own) + gaps[0] - 1 :][:1] == b"\n"
        if output.startswith(own) and at_line_start and _fits(rest, more, gaps[1:]):
            return True
    return False


@given(_blocks)
def test_every_byte_is_kept_in_order_or_counted_at_its_place(blocks: list[tuple[bytes, bool]]) -> None:
    """The file is the output with pieces cut out; each cut says its length; a kept piece starts at a line start."""
    output = b"".join(data for data, _ in blocks)
    free = PLENTY
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(spool, "CHECK_S", 0.0),
        mock.patch.object(spool, "free_by", side_effect=lambda path: free),
    ):
        path = Path(folder) / "spool.log"
        kept = Spool(str(path), 1 << 20)
        for data, full in blocks:
            free = 0 if full else PLENTY
            kept.feed(data)
        free = PLENTY
        kept.close()
        file = path.read_bytes()
    assert kept.written + kept.dropped == len(output)
    gaps = _gaps(file)
    assert sum(gaps) == kept.dropped
    pieces = MARK.split(file)
    assert len(pieces) == len(gaps) + 1
    assert _fits(output, pieces, gaps)


def test_the_bound_cuts_after_a_whole_line_and_says_so_once(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "spool.log"), 4096)
    line = b"x" * 99 + b"\n"
    for _ in range(100):
        kept.feed(line)
    kept.close()
    data = (tmp_path / "spool.log").read_bytes()
    head, mark, tail = data.partition(b"@ekvi ")
    assert head == line * 40
    assert mark
    assert tail.count(b"\n") == 1
    assert b"bound of 4096 bytes" in tail
    assert (kept.written, kept.dropped, kept.state) == (4000, 6000, "capped")


def test_a_little_room_is_left_to_the_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the resume bound the spool stays stopped: what the ballast frees belongs to the states."""
    free = MARGIN_BY + 50
    monkeypatch.setattr(spool, "CHECK_S", 0.0)
    monkeypatch.setattr(spool, "free_by", lambda path: free)
    kept = Spool(str(tmp_path / "spool.log"), PLENTY)
    kept.feed(b"0123456789\n" * 10)
    assert (kept.written, kept.state) == (44, "full")
    free = RESUME_BY - 1
    kept.feed(b"more\n")
    assert kept.state == "full"
    free = RESUME_BY + 1
    kept.feed(b"again\n")
    assert kept.state == "ok"
    kept.close()
    data = (tmp_path / "spool.log").read_bytes()
    assert data.startswith(b"0123456789\n" * 4 + b"@ekvi ")
    assert data.endswith(b"\nagain\n")
    assert _gaps(data) == [71]


def test_a_spool_that_cannot_be_made_drops_and_counts(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "missing" / "spool.log"), PLENTY)
    kept.feed(b"one\ntwo\n")
    kept.close()
    assert (kept.written, kept.dropped, kept.state) == (0, 8, "full")


def test_a_later_stage_goes_on_behind_the_first(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        kept = Spool(str(tmp_path / "spool.log"), PLENTY)
        kept.feed(text)
        kept.close()
    assert (tmp_path / "spool.log").read_bytes() == b"first\nsecond\n"
