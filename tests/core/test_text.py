"""Nothing of a training's words may steer a terminal."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.text import json_line, printable


@pytest.mark.parametrize(
    "evil",
    ["\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b[2J\x1b[H", "\x1bc", "\x1b(0", "\x9b31m", "\r", "\b", "\x00",
     "\x1bP1$q\x1b\\", "\u202e", "\ud800"],
)  # fmt: skip
def test_escape_sequences_and_controls_are_taken_out(evil: str) -> None:
    cleaned = printable(f"loss{evil}: 1\n\tnext")
    assert cleaned.startswith("loss")
    assert cleaned.endswith(": 1\n\tnext")
    assert not set(cleaned) & set("\x1b\x07\x9b\r\b\x00\u202e")


@given(st.text())
def test_no_control_character_is_left_whatever_the_text(text: str) -> None:
    left = printable(text)
    assert all(c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) for c in left)


@given(st.text(st.characters()))
def test_what_is_left_can_be_written(text: str) -> None:
    printable(text).encode()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_line_of_json_has_null_for_what_is_no_number_of_it(value: float) -> None:
    line = json_line({"a": [{"b": value, "c": 1.5}], "t": "\ud800"})
    assert json.loads(line, parse_constant=pytest.fail) == {"a": [{"b": None, "c": 1.5}], "t": "\ud800"}
    assert line.isascii()


@pytest.mark.parametrize("depth", [300, 700, 10_000])
@pytest.mark.parametrize("core", [1, math.nan])
def test_no_depth_of_nesting_ends_a_line_of_json(depth: int, core: float) -> None:
    deep: Any = core
    for _ in range(depth):
        deep = [deep]
    line = json_line({"a": deep, "b": 1})
    assert line.endswith(', "b": 1}\n')
    assert ("[" in line) or depth > 300


@given(st.text(st.characters(min_codepoint=0xA0, blacklist_categories=["Cs"], max_codepoint=0x2000)))
def test_words_of_any_language_stay_as_they_are(text: str) -> None:
    assert printable(text) == text
