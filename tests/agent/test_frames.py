"""Frames: however they are cut, whatever is in them, and whether or not there is room for them."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent.gpu import frames

TEXTS = st.text(max_size=20)
ROWS = st.dictionaries(
    st.integers(0, 99),
    st.dictionaries(TEXTS, st.none() | st.floats() | TEXTS | st.lists(TEXTS), max_size=4),
    max_size=4,
)


@given(ROWS, TEXTS, st.lists(st.integers(1, 40), max_size=60))
def test_what_is_written_is_read_however_it_is_cut(
    rows: dict[int, dict[str, Any]], text: str, cuts: list[int]
) -> None:
    data = b"".join(
        (
            frames.opening("nvml"),
            frames.hello({"a": text, "hz": 10.0, "devices": []}),
            frames.tick(5, 7, 2, rows),
            frames.BEAT,
            frames.err({"b": text}),
        )
    )
    reader, found = frames.Reader(), []
    for cut in cuts:
        found += list(reader.feed(data[:cut]))
        data = data[cut:]
    found += list(reader.feed(data))
    opening, hello, tick, beat, err = found
    assert (opening, beat) == (frames.Opening("nvml"), frames.Beat())
    assert (hello, err) == (frames.Hello({"a": text, "hz": 10.0, "devices": []}), frames.Err({"b": text}))
    assert isinstance(tick, frames.Tick)
    assert tick[:3] == (5, 7, 2)
    assert tick.devices.keys() == rows.keys()
    for body in tick.devices.values():
        json.loads(body, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize(
    "data",
    [b"X 1\n", b"T 1 2 3\n", b"T 1 2 3 x\n", b"T 1 2 3 1\nx {}\n", b"T 1 2 -3 0\n", b"T 1 2 3 -1\n", b"T 1 2 3 0 0\n",
     b"H [1]\n", b"E {\n", b"H {}\n", b'H {"devices":[]}\n', b'H {"devices":[],"hz":0}\n',
     b'H {"devices":[],"hz":NaN}\n', b'H {"devices":[{"uuid":"a"}],"hz":10}\n'],
)  # fmt: skip
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        list(frames.Reader().feed(data))


def test_a_frame_without_end_is_an_error_and_not_all_the_memory() -> None:
    reader = frames.Reader()
    assert list(reader.feed(b"E " + b"x" * (frames.MOST_BY - 2))) == []
    with pytest.raises(frames.FrameError):
        list(reader.feed(b"x"))


@pytest.mark.parametrize("frame", [frames.BEAT, b"O x\n", b"T 1 2 0 0\n", b"T 1 2 0 1\n0 {}\n"])
def test_a_flood_of_frames_takes_no_longer_than_its_bytes(frame: bytes) -> None:
    begun, count = time.process_time(), (1 << 20) // len(frame)
    assert sum(1 for _ in frames.Reader().feed(frame * count)) == count
    assert time.process_time() - begun < 4.0


def test_a_full_pipe_drops_whole_frames_and_blocks_nobody() -> None:
    read, write = os.pipe()
    try:
        writer = frames.Writer(write)
        sizes = [9000 + i for i in range(40)]  # of a pipe's 64 KiB
        written = [writer.write(b"E %s\n" % json.dumps({"x": "y" * size}).encode()) for size in sizes]
        assert written.count(False) == writer.dropped > 20
        reader, found = frames.Reader(), []
        found += list(reader.feed(os.read(read, 1 << 20)))
        assert writer.write(frames.BEAT)
        found += list(reader.feed(os.read(read, 1 << 20)))
        told = [len(frame.line["x"]) for frame in found if isinstance(frame, frames.Err)]
        assert told == [size for size, done in zip(sizes, written, strict=True) if done]
        assert isinstance(found[-1], frames.Beat)
    finally:
        os.close(read)
        os.close(write)
