"""Documents to .bin and .idx: a plain reference tokenisation, whatever the number of workers; bounded memory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.data import corpus, encode, prepare, quiet, sources, tokenizer
from runners.data.corpus import Document
from runners.errors import ConfigurationError, RunnerError
from runners.schema import Data, RunConfig, Training

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def stack(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet.silence()
    monkeypatch.setattr(encode, "_CHUNK", 4000)


@pytest.fixture(scope="module")
def oscar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of web text, in the shape of the oscar file: an id and a text."""
    path = tmp_path_factory.mktemp("oscar") / "oscar.jsonl"
    texts = [document.text for document in corpus.pydoc()][:40]
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory, oscar: Path) -> Path:
    """GPT-2's two files, of a vocabulary trained here."""
    folder = tmp_path_factory.mktemp("gpt2")
    data = Data(source="jsonl", paths=(str(oscar),))
    made = tokenizer.trained((d.text for d in sources.documents(data, folder)), 600)
    made.backend.model.save(str(folder), "gpt2")
    return folder


def reference(texts: list[str], folder: Path) -> list[list[int]]:
    """One text at a time, by the library's own class for such files."""
    from tokenizers import ByteLevelBPETokenizer

    plain = ByteLevelBPETokenizer(str(folder / "gpt2-vocab.json"), str(folder / "gpt2-merges.txt"))
    return [[*plain.encode(text).ids, plain.token_to_id("<|endoftext|>")] for text in texts]


def test_bin_and_idx_are_the_reference_whatever_the_workers(oscar: Path, gpt2: Path, tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    texts = [json.loads(line)["text"] for line in oscar.read_text().splitlines()]
    expected = reference(texts, gpt2)
    entries = []
    for workers in (1, 2):
        data = Data(source="jsonl", paths=(str(oscar),), tokenizer=str(gpt2), workers=workers)
        entry, made = prepare.ensure(data, tmp_path / str(workers))
        assert made
        entries.append(entry)
        indexed = IndexedDataset(str(entry.prefix))
        assert [indexed[at].tolist() for at in range(len(indexed))] == expected
        assert indexed.document_indices.tolist() == list(range(len(texts) + 1))
    assert entries[0].manifest == entries[1].manifest
    stream = np.fromfile(f"{entries[0].prefix}.bin", dtype=np.uint16)
    assert stream.tolist() == [token for ids in expected for token in ids]
    assert entries[0].manifest["tokens"] == len(stream)


def test_no_more_than_a_window_is_read_ahead() -> None:
    made = tokenizer.trained(["some words here"], 300)
    read = 0

    def endless() -> Iterator[Document]:
        nonlocal read
        while True:
            read += 1
            yield Document(str(read), "word " * 100)

    found = encode.encoded(made, endless(), 2)
    for _ in range(100):
        next(found)
    assert read - 100 < 12 * 8  # chunks of eight documents
    found.close()  # type: ignore[attr-defined]


def test_a_worker_that_is_killed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer.trained(["some words here"], 300)
    monkeypatch.setattr(encode, "_work", os.kill)
    monkeypatch.setattr(encode, "_in_turn", lambda pool, *_: iter([pool.submit(_die).result()]))
    with pytest.raises(RunnerError, match="a process that tokenizes was killed") as error:
        list(encode.encoded(made, [Document("", "word " * 1000)] * 3, 2))
    assert "data.workers=1" in str(error.value.hint)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_broken_lines_are_counted_in_the_manifest_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\nnonsense\n{"text": "two"}\n')
    data = Data(source="jsonl", paths=(str(path),), tokenizer_vocab=257)
    with pytest.raises(ConfigurationError, match=r"a\.jsonl:2"):
        prepare.ensure(data, tmp_path / "cache")
    entry, _ = prepare.ensure(data.model_copy(update={"on_error": "skip"}), tmp_path / "cache")
    assert (entry.manifest["skipped"], entry.manifest["documents"]) == (1, 2)
    assert "a.jsonl:2" in entry.manifest["first_skipped"]
    assert "(1 broken records left out)" in entry.diagnostic()["message"]
    assert entry.diagnostic()["data"]["skipped"] == 1


# -- a user's own indexed files, and none at all


@pytest.fixture(scope="module")
def own(oscar: Path, gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> prepare.Entry:
    quiet.silence()
    data = Data(source="jsonl", paths=(str(oscar),), tokenizer=str(gpt2))
    return prepare.ensure(data, tmp_path_factory.mktemp("own"))[0]


def test_indexed_files_are_taken_as_they_are(own: prepare.Entry, gpt2: Path, tmp_path: Path) -> None:
    data = Data(source="indexed", paths=(str(own.prefix),))
    entry, _ = prepare.ensure(data, tmp_path)
    same = ("sha256", "idx_sha256", "tokens", "documents")
    assert [entry.manifest[key] for key in same] == [own.manifest[key] for key in same]
    assert entry.vocab <= own.vocab
    named, _ = prepare.ensure(data.model_copy(update={"tokenizer": str(gpt2)}), tmp_path)
    assert named.vocab == own.vocab
    config = RunConfig(data=data, training=Training(train_iters=2, sequence_length=32))
    train = _datasets(config, entry, tmp_path)[0]
    own_train = _datasets(config, own, tmp_path)[0]
    assert [train[i]["tokens"].tolist() for i in range(16)] == [own_train[i]["tokens"].tolist() for i in range(16)]


def _datasets(config: RunConfig, entry: prepare.Entry, cache: Path) -> tuple[Any, Any]:
    from runners.data import samples

    return samples.datasets(config, entry, samples.index(config, entry, cache))


def test_indexed_files_that_are_none_are_named(own: prepare.Entry, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.bin cannot be read"):
        prepare.ensure(Data(source="indexed", paths=(str(tmp_path / "none"),)), tmp_path / "cache")
    (tmp_path / "x.bin").write_bytes(own.prefix.with_suffix(".bin").read_bytes()[:100])
    (tmp_path / "x.idx").write_bytes(own.prefix.with_suffix(".idx").read_bytes())
    with pytest.raises(ConfigurationError, match="the tokens are fewer than the index says"):
        prepare.ensure(Data(source="indexed", paths=(str(tmp_path / "x"),)), tmp_path / "cache")
    index = own.prefix.with_suffix(".idx").read_bytes()
    for content, told in ((b"something else entirely", "another header"), (index[:-9], "cut short"), (b"", "header")):
        (tmp_path / "x.idx").write_bytes(content)
        with pytest.raises(ConfigurationError, match=f"are no indexed data set of Megatron: the .idx .*{told}"):
            prepare.ensure(Data(source="indexed", paths=(str(tmp_path / "x"),)), tmp_path / "cache")


def test_mock_data_needs_no_preparation(tmp_path: Path) -> None:
    config = RunConfig(
        data=Data(source="mock", train_split=0.9), training=Training(train_iters=2, sequence_length=32)
    )
    entry, made = prepare.ensure(config.data, tmp_path)
    assert not made
    assert entry == prepare.find(config.data, tmp_path)
    assert not list(tmp_path.iterdir())
    train, validation = _datasets(config, entry, tmp_path)
    assert train[0]["tokens"].shape == (32,)
    assert int(max(train[i]["tokens"].max() for i in range(16))) < entry.vocab
    assert len(validation) > 100
