"""Documents: the same bytes for the same configuration."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.data import corpus, sources
from runners.data.corpus import Document
from runners.errors import ConfigurationError
from runners.schema import Data


def documents(data: Data) -> list[Document]:
    return list(sources.documents(data, Path("/none")))


def test_pydoc_topics_are_sorted_and_bounded_by_samples() -> None:
    found = documents(Data())
    assert [document.name for document in found] == sorted(document.name for document in found)
    assert len(found) > 50
    assert documents(Data(samples=7)) == found[:7]


@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(0, 2**31), st.integers(0, 2**31))
def test_synthetic_documents_follow_from_the_seed_alone(count: int, seed: int, other: int) -> None:
    found = list(corpus.synthetic(count, seed))
    assert len(found) == count
    assert found == list(corpus.synthetic(count, seed))
    assert list(corpus.synthetic(count + 1, seed))[:count] == found
    assert (found == list(corpus.synthetic(count, other))) == (seed == other)


def test_files_keep_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("text of b.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text of a.txt"))
    found = documents(Data(source="files", paths=(str(tmp_path / "b.txt"), str(tmp_path / "a.txt.gz"))))
    assert found == [Document("b.txt", "text of b.txt"), Document("a.txt", "text of a.txt")]


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file"), (b"\xff\xfe", "no UTF-8 text"), (b"", "holds no text")],
)
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "doc.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told):
        documents(Data(source="files", paths=(str(path),)))


def test_documents_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_count: int, _seed: int) -> Iterator[Document]:
        while True:
            yield Document("x", "y")

    monkeypatch.setattr(corpus, "synthetic", endless)
    found = sources.documents(Data(source="synthetic", samples=10**9), Path("/none"))
    assert [next(found).text for _ in range(3)] == ["y", "y", "y"]
