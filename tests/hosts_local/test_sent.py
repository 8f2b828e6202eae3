"""The programs that are sent to servers, and the frames that come back."""

from __future__ import annotations

import ast
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.hosts.base import BLOCK_BY, Completed
from cockpit.hosts.far_call import source
from cockpit.hosts.following import Following


@pytest.mark.parametrize("name", ["far", "tail"])
def test_what_is_sent_runs_on_an_old_python_with_nothing_else(name: str) -> None:
    length, _, text = source(name).partition(b"\n")
    assert int(length) == len(text)
    tree = ast.parse(text, feature_version=(3, 8))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {n.partition(".")[0] for n in names} <= sys.stdlib_module_names


@given(
    st.lists(st.tuples(st.integers(0, 1), st.binary(min_size=1, max_size=50)), max_size=8),
    st.lists(st.integers(1, 60), max_size=40),
)
def test_frames_are_the_same_whatever_the_borders_of_what_arrives(
    blocks: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    cursors = {"a": 3, "b": 0}
    following = Following("server", cursors)
    following.changes()
    offsets = [3, 0]
    wire = b""
    for id_, data in blocks:
        wire += b"[%d,%d,%d]\n" % (id_, offsets[id_], len(data)) + data
        offsets[id_] += len(data)
    got = []
    for size in [*sizes, len(wire) + 1]:
        piece, wire = wire[:size], wire[size:]
        got += [("ab".index(c.path), c.data) for c in following.feed(piece)]
    assert got == blocks
    assert cursors == {"a": offsets[0], "b": offsets[1]}


def test_a_full_block_is_handed_out_whole() -> None:
    following = Following("server", {"a": 0})
    following.changes()
    (chunk,) = following.feed(b"[0,0,%d]\n" % BLOCK_BY + b"x" * BLOCK_BY)
    assert len(chunk.data) == BLOCK_BY
    assert following.changes() == b""


def test_last_words_are_short_and_fit_to_show() -> None:
    said = Completed(1, b"", b"first\n\x1b]0;gone\x07" + b"x" * 10_000_000 + b"\n \n")
    assert set(said.last_words) == {"x"}
    assert len(said.last_words) < 1000
    assert Completed(1, b"out\n", b"\xff \x1b[2Jwhy\n").last_words == "\ufffd why"
