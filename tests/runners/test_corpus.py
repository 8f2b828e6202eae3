"""Documents: the same bytes for the same configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.data import corpus
from runners.data.corpus import Document
from runners.errors import ConfigurationError
from runners.schema import Data


def test_pydoc_topics_are_sorted_and_bounded_by_samples() -> None:
    found = corpus.documents(Data())
    assert [document.name for document in found] == sorted(document.name for document in found)
    assert len(found) > 50
    assert corpus.documents(Data(samples=7)) == found[:7]


@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(0, 2**31), st.integers(0, 2**31))
def test_synthetic_documents_follow_from_the_seed_alone(count: int, seed: int, other: int) -> None:
    found = corpus.synthetic(count, seed)
    assert len(found) == count
    assert found == corpus.synthetic(count, seed)
    assert corpus.synthetic(count + 1, seed)[:count] == found
    assert (found == corpus.synthetic(count, other)) == (seed == other)


def test_files_keep_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    paths = []
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"text of {name}")
        paths.append(str(tmp_path / name))
    found = corpus.documents(Data(source="files", paths=tuple(paths)))
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
        corpus.documents(Data(source="files", paths=(str(path),)))


@given(st.lists(st.builds(Document, st.text(), st.text()), min_size=2, max_size=4, unique=True))
def test_the_digest_changes_with_content_and_order(found: list[Document]) -> None:
    assert corpus.digest(found) != corpus.digest(found[:-1])
    assert corpus.digest(found) != corpus.digest(list(reversed(found)))
