"""Records: what is read is what was written, and what is broken is named by file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.data import records
from runners.data.records import Fields, Record, Skips, read
from runners.errors import ConfigurationError

CHAT = [{"role": "user", "content": "Ping"}, {"role": "assistant", "content": "Pong"}]
GOOD = (
    {"messages": CHAT},
    {"prompt": "Hello", "completion": " World"},
    {"text": "Grüße"},
)


def _write(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_the_three_shapes_keep_their_texts_and_lines(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", GOOD[0], "", GOOD[1], "   ", GOOD[2])
    assert list(read([path])) == [
        Record(path, 1, messages=tuple(CHAT)),
        Record(path, 3, prompt="Hello", completion=" World"),
        Record(path, 5, text="Grüße"),
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"conversations": [{"from": "human", "value": "Ping"}, {"from": "gpt", "value": "Pong"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Pi"}, {"text": "ng"}]}, CHAT[1]]},
         "messages"),
        ({"messages": CHAT, "text": "other", "id": 1}, "messages"),
        ({"messages": None, "text": "only this"}, "text"),
        ({"input": "Hello", "output": "World"}, "prompt"),
        ({"prompt": "", "completion": "World"}, "prompt"),
    ],
)  # fmt: skip
def test_other_spellings_are_understood(found: dict[str, Any], expected: str) -> None:
    made = records.record(found, "f", 1)
    assert [name for name in ("messages", "prompt", "text") if getattr(made, name) is not None] == [expected]
    if expected == "messages":
        assert list(made.messages or ()) == CHAT


def test_other_names_by_fields() -> None:
    row = {"report": "long", "summary": "short", "text": "x"}
    made = records.record(row, "f", 1, Fields(prompt="report", completion="summary"))
    assert (made.prompt, made.completion, made.text) == ("long", "short", None)
    assert records.record(row, "f", 1, Fields(text="summary")).text == "short"
    with pytest.raises(records.RecordError, match="'report'"):
        records.record({"report": "x"}, "f", 1, Fields(text="body"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"text": "a', r"Unterminated string starting"),
        ('{"text": "a"} x', r"Extra data \(column 15\)"),
        ("[" * 100_000, "nests too deep"),
        ("[1]", "a list, not an object"),
        ("null", "null, not an object"),
        ('{"body": "a"}', "neither messages, prompt and completion, nor text, but 'body'"),
        ('{"prompt": "a"}', "has 'prompt' but no completion"),
        ('{"output": "a"}', "has 'output' but no prompt"),
        ('{"text": 1}', "text is a number, not text"),
        ('{"text": " "}', "text is empty"),
        ('{"prompt": "a", "completion": ""}', "completion is empty"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ('{"messages": []}', "messages is empty"),
        ('{"messages": "hi"}', "messages is a text, not a list"),
        ('{"messages": [1]}', r"messages\[0\] is a number"),
        ('{"messages": [{"content": "x"}]}', r"messages\[0\] has no role"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\]\.content is null"),
        ('{"messages": [{"role": "user", "content": ""}]}', "messages holds no text"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', r"content\[0\] is no text"),
    ],
)
def test_a_broken_line_is_refused_or_counted(tmp_path: Path, line: str, told: str) -> None:
    path = _write(tmp_path / "a.jsonl", {"text": "one"}, line, {"text": "three"})
    with pytest.raises(ConfigurationError, match=told) as refused:
        list(read([path]))
    assert refused.value.message.startswith(f"{path}:2: ")
    assert "data.on_error=skip" in str(refused.value.hint)
    skips = Skips()
    assert [r.line for r in read([path], "skip", skips=skips)] == [1, 3]
    assert skips.count == 1
    assert str(skips.first).startswith(f"{path}:2: ")


def test_bytes_that_are_no_text_are_a_broken_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text":"a mark in front"}\n{"text":"\xff"}\n')
    with pytest.raises(ConfigurationError, match=r"a\.jsonl:2: the line is no UTF-8 text \(byte 10\)"):
        list(read([str(tmp_path / "a.jsonl")]))


def _zst(path: Path, data: bytes) -> None:
    import pyarrow

    with path.open("wb") as sink, pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)


@pytest.mark.parametrize(
    ("ending", "write"),
    [
        (".gz", lambda path, data: path.write_bytes(gzip.compress(data))),
        (".bz2", lambda path, data: path.write_bytes(bz2.compress(data))),
        (".xz", lambda path, data: path.write_bytes(lzma.compress(data))),
        (".zst", _zst),
    ],
)
def test_compressed_files_read_as_they_are_and_damaged_ones_are_named(
    tmp_path: Path, ending: str, write: Callable[[Path, bytes], Any]
) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    lines = b"".join(json.dumps({"text": str(at)}).encode() + b"\n" for at in range(2000))
    write(path, lines)
    assert [r.text for r in read([str(path)])] == [str(at) for at in range(2000)]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigurationError, match=f"a.jsonl{ending}"):
        list(read([str(path)]))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"/none/x\.jsonl cannot be read: No such file.*\. It must be on the machine"
    ):
        list(read(["/none/x.jsonl"]))


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_bytes(raw)
    assert list(read([str(path)], "skip")) == []


@given(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = _write(tmp_path_factory.mktemp("any") / "a.jsonl", {"text": text})
    assert [r.text for r in read([path])] == [text]
