"""The byte-level tokenizer: nothing is lost, and the same text trains the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.data import corpus, sources, tokenizer
from runners.data.corpus import Document
from runners.schema import Data


@pytest.fixture(scope="module")
def trained() -> Any:
    return tokenizer.train(list(corpus.synthetic(20, 1)), 300)


@settings(max_examples=50)
@given(text=st.text())
def test_any_text_survives_encoding(trained: Any, text: str) -> None:
    (ids,) = tokenizer.encode(trained, [Document("x", text)])
    assert ids[-1] == trained.token_to_id(tokenizer.END_OF_TEXT)
    assert trained.decode(ids[:-1]) == text


def test_the_mark_inside_a_text_does_not_end_a_document(trained: Any) -> None:
    (ids,) = tokenizer.encode(trained, [Document("x", f"a{tokenizer.END_OF_TEXT}b")])
    assert ids.count(trained.token_to_id(tokenizer.END_OF_TEXT)) == 1


def test_the_same_corpus_trains_the_same_tokenizer() -> None:
    found = list(sources.documents(Data(samples=20), Path()))
    first, second = (tokenizer.train(found, 700).to_str() for _ in range(2))
    assert first == second


def test_the_vocabulary_is_the_mark_the_bytes_and_merges(trained: Any) -> None:
    assert trained.get_vocab_size() == 300
    assert trained.token_to_id(tokenizer.END_OF_TEXT) == 0
