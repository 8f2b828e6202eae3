"""Tokenizers: trained ones lose nothing, published ones give what their own libraries give."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.data import corpus, sources, tokenizer
from runners.data.tokenizer import END_OF_TEXT, Tokenizer
from runners.errors import ConfigurationError
from runners.schema import Data

TEXTS = [document.text for document in corpus.synthetic(20, 1)]
SAMPLE = "Hello, world!  Zażółć\n\tgęślą  42 jaźń <|endoftext|> 🙂"


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return tokenizer.resolve(Data(tokenizer_vocab=300), texts=TEXTS)


@pytest.fixture(scope="module")
def pair(trained: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with GPT-2's two files alone."""
    folder = tmp_path_factory.mktemp("pair")
    trained.backend.model.save(str(folder))
    return folder


def resolve(folder: Path) -> Tokenizer:
    return tokenizer.resolve(Data(tokenizer=str(folder)))


def described(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@settings(max_examples=50)
@given(text=st.text())
def test_any_text_survives_encoding(trained: Tokenizer, text: str) -> None:
    (ids,) = trained.encode_batch([text])
    assert trained.decode(ids) == text
    assert all(0 <= i < trained.vocab_size for i in ids)


def test_the_mark_inside_a_text_does_not_end_a_document(trained: Tokenizer, pair: Path) -> None:
    for found in (trained, resolve(pair)):
        (ids,) = found.encode_batch([f"a{END_OF_TEXT}b"])
        assert found.eos_id not in ids


def test_the_same_corpus_trains_the_same_tokenizer() -> None:
    texts = [document.text for document in sources.documents(Data(samples=20), Path())]
    first, second = (tokenizer.trained(texts, 700) for _ in range(2))
    assert first.backend.to_str() == second.backend.to_str()
    assert first.fingerprint == second.fingerprint
    assert tokenizer.trained(texts, 699).fingerprint != first.fingerprint


def test_the_vocabulary_is_the_mark_the_bytes_and_merges(trained: Tokenizer) -> None:
    assert (trained.vocab_size, trained.eos_id) == (300, 0)


def test_what_is_saved_is_loaded_again_and_by_its_workers_too(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    again = tokenizer.load(tmp_path)
    carried = pickle.loads(pickle.dumps(trained))
    for found in (again, carried):
        assert found.fingerprint == trained.fingerprint
        assert found.encode_batch([SAMPLE]) == trained.encode_batch([SAMPLE])
        assert found.eos_id == trained.eos_id
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigurationError, match=f"the tokenizer in {tmp_path} cannot be read"):
        tokenizer.load(tmp_path)


def test_the_fingerprint_is_of_the_content_and_not_of_how_it_is_written(trained: Tokenizer, tmp_path: Path) -> None:
    described(tmp_path, eos_token=END_OF_TEXT)
    content = json.loads(trained.backend.to_str())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]  # as older versions do
    (tmp_path / "tokenizer.json").write_text(json.dumps(content, indent=1))
    assert resolve(tmp_path).fingerprint == trained.fingerprint
    content["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert resolve(tmp_path).fingerprint != trained.fingerprint
    assert Tokenizer(trained.backend, 5).fingerprint != trained.fingerprint


@pytest.mark.parametrize("prefix", ["", "gpt2-"])
def test_gpt_2_s_two_files_give_gpt_2_s_tokens(pair: Path, tmp_path: Path, prefix: str) -> None:
    from transformers import GPT2Tokenizer

    for name in ("vocab.json", "merges.txt"):
        (tmp_path / f"{prefix}{name}").write_bytes((pair / name).read_bytes())
    found = resolve(tmp_path)
    reference = GPT2Tokenizer(vocab=str(pair / "vocab.json"), merges=str(pair / "merges.txt"))
    plain = SAMPLE.replace(END_OF_TEXT, "")
    assert found.encode_batch([plain]) == [reference.encode(plain, add_special_tokens=False)]
    assert (found.eos_id, found.vocab_size) == (0, 300)


def test_a_described_pair_is_read_as_its_class_says(pair: Path, tmp_path: Path) -> None:
    """Qwen's two files look like GPT-2's, but it splits numbers and spaces in another way."""
    from transformers import AutoTokenizer

    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((pair / name).read_bytes())
    described(tmp_path, tokenizer_class="Qwen2Tokenizer", eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)
    found, gpt = resolve(tmp_path), resolve(pair)
    text = "1234567 bana  bana"
    reference = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert found.encode_batch([text]) == [reference.encode(text, add_special_tokens=False)]
    assert [found.decode(ids) for ids in found.encode_batch([text])] == [text]
    assert found.fingerprint != gpt.fingerprint


def test_code_that_a_tokenizer_brings_is_neither_run_nor_asked_about(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _prompt: "y")  # what transformers asks where nothing is said
    (tmp_path / "vocab.json").write_bytes((pair / "vocab.json").read_bytes())
    described(tmp_path, tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    (tmp_path / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nclass Own: ...\n"
    )
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*contains custom code"):
        resolve(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tokenizer_config.json", {"eos_token": "<end>"}),
        ("tokenizer_config.json", {"eos_token": {"content": "<end>", "special": True}}),
        ("config.json", {"eos_token_id": 300}),
        ("generation_config.json", {"eos_token_id": [300, 7]}),
    ],
)
def test_the_folder_says_what_ends_a_document(trained: Tokenizer, tmp_path: Path, name: str, told: Any) -> None:
    content = json.loads(trained.backend.to_str())
    mark = {**content["added_tokens"][0], "id": 300, "content": "<end>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "added_tokens": [mark]}))
    (tmp_path / name).write_text(json.dumps(told))
    found = resolve(tmp_path)
    assert (found.eos_id, found.vocab_size) == (300, 301)


def test_a_folder_that_does_not_say_it_is_refused(trained: Tokenizer, tmp_path: Path) -> None:
    content = json.loads(trained.backend.to_str())
    content["added_tokens"] = []
    content["model"]["vocab"] = {k: v for k, v in content["model"]["vocab"].items() if k != END_OF_TEXT}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=rf"{tmp_path} does not say which token ends a document"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds no tokenizer. It needs tokenizer.json, or vocab.json"),
        ({"vocab.json": "{}"}, "holds no tokenizer"),
        ({"tokenizer.json": "{"}, "cannot be read"),
        ({"vocab.json": "{}", "merges.txt": "one two three\n"}, "cannot be read"),
    ],
)
def test_a_folder_that_holds_none_is_named(tmp_path: Path, files: dict[str, str], told: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        resolve(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert told in str(refused.value)
    assert str(refused.value).startswith("data.tokenizer: ")


def test_a_published_tokenizer_is_not_looked_for_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"data\.tokenizer=a/b: offline mode is on"):
        tokenizer.resolve(Data(tokenizer="a/b", offline=True))
