"""Training from Energon: the same bytes on any machine, each document once an epoch, the same order in any layout."""

from __future__ import annotations

import itertools
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.data import make, prepare, quiet, shards, sources, tokenizer
from runners.data.entry import Entry
from runners.errors import ConfigurationError, RunnerError
from runners.schema import Data, RunConfig, Training

pytestmark = pytest.mark.train
pytest.importorskip("megatron.energon")

DATA = Data(source="synthetic", samples=60, tokenizer_vocab=300, format="energon", train_split=0.8, workers=1)
CONFIG = RunConfig(
    data=DATA, training=Training(train_iters=24, sequence_length=48, global_batch=8, micro_batch=2, warmup_steps=2)
)


@pytest.fixture(autouse=True)
def stack() -> None:
    quiet.silence()


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("deeper") / "two"


@pytest.fixture(scope="module")
def entry(caches: tuple[Path, Path]) -> Entry:
    quiet.silence()
    return prepare.ensure(DATA, caches[0])[0]


def datasets(entry: Entry, config: RunConfig = CONFIG) -> tuple[Any, Any]:
    from runners.data import samples

    return samples.datasets(config, entry, samples.index(config, entry, entry.path))


def changed(config: RunConfig, **changes: Any) -> Training:
    return Training.model_validate(config.training.model_dump() | changes)


def test_two_machines_make_the_same_bytes(entry: Entry, caches: tuple[Path, Path], monkeypatch: Any) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 1e6)
    before = os.umask(0o077)
    try:
        other, made = prepare.ensure(DATA.model_copy(update={"workers": 2}), caches[1])
    finally:
        os.umask(before)
    assert made
    assert other.path != entry.path
    assert other.manifest["files"] == entry.manifest["files"]
    assert other.manifest["sha256"] == entry.manifest["sha256"]
    assert other.diagnostic() == entry.diagnostic()


def test_the_shards_hold_every_document_in_order_with_nothing_of_this_machine(entry: Entry) -> None:
    held = shards.validation(60, 0.8, DATA.seed)
    assert len(held) == 12
    found: dict[str, list[str]] = {"train": [], "val": []}
    for path in sorted((entry.path / "shards").glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                assert (member.mtime, member.uid, member.gid, member.uname, member.mode) == (0, 0, 0, "", 0o644)
                stream = tar.extractfile(member)
                assert stream is not None
                found[path.name.partition("-")[0]].append(stream.read().decode())
    texts = [document.text for document in sources.documents(DATA, entry.path)]
    assert found["val"] == [text for number, text in enumerate(texts) if number in held]
    assert found["train"] == [text for number, text in enumerate(texts) if number not in held]
    assert entry.manifest["parts"]["train"]["shards"] >= 10


def test_each_document_comes_once_an_epoch_over_two_ranks(entry: Entry) -> None:
    from runners.data.energon import stream

    for part, count in (("train", 48), ("val", 12)):
        ranks = [
            [s.__key__ for s in stream(entry.path / "shards", part, rank=r, ranks=2, repeat=False)] for r in (0, 1)
        ]
        assert all(ranks)
        assert len(set(ranks[0]) | set(ranks[1])) == len(ranks[0]) + len(ranks[1]) == count


def test_the_hash_is_over_the_tokens_that_an_indexed_file_would_hold(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "describe", lambda *_: None)  # seconds, and no token
    whole = DATA.model_copy(update={"train_split": 1.0})
    indexed = make.make(whole.model_copy(update={"format": "indexed"}), tmp_path, tmp_path)
    (tmp_path / "e").mkdir()
    sharded = make.make(whole, tmp_path, tmp_path / "e")
    assert sharded["sha256"] == indexed["sha256"] != entry.manifest["sha256"]
    assert (sharded["tokens"], sharded["documents"]) == (indexed["tokens"], indexed["documents"])
    assert sharded["tokenizer_sha256"] == indexed["tokenizer_sha256"] == entry.manifest["tokenizer_sha256"]


def test_sequences_are_the_documents_end_to_end(entry: Entry) -> None:
    train, validation = datasets(entry)
    tokens = tokenizer.load(entry.path)
    texts = {d.text for d in sources.documents(DATA, entry.path)}
    lane = [train[i] for i in range(0, 192, 8)]  # the first lane's sequences
    for one, two in itertools.pairwise(lane):
        assert one["tokens"].shape == one["labels"].shape == (48,)
        assert one["tokens"][1:].tolist() == one["labels"][:-1].tolist()
        assert one["labels"][-1] == two["tokens"][0]
    joined = np.concatenate([one["tokens"].numpy() for one in lane])
    ends = (joined == tokens.eos_id).nonzero()[0]
    assert len(ends) >= 2
    assert tokens.decode(joined[: ends[0]].tolist()) in texts
    assert tokens.decode(joined[ends[0] + 1 : ends[1]].tolist()) in texts
    assert len(validation) == (entry.manifest["parts"]["val"]["tokens"] - 1) // 48


@pytest.mark.parametrize("lanes", [8, 64])  # 64: more than there are documents
def test_a_layout_or_a_later_start_changes_nothing(entry: Entry, lanes: int) -> None:
    training = changed(CONFIG, global_batch=lanes, train_iters=96 // lanes + 1)
    config = CONFIG.model_copy(update={"training": training})
    whole = [item["tokens"].tolist() for item in map(datasets(entry, config)[0].__getitem__, range(96))]
    part = datasets(entry, config)[0]
    assert [part[i]["tokens"].tolist() for i in range(96) if i % 8 in (2, 3)] == [
        whole[i] for i in range(96) if i % 8 in (2, 3)
    ]
    late = datasets(entry, config)[0]
    assert [late[i]["tokens"].tolist() for i in range(64, 96)] == whole[64:]
    assert late[5]["tokens"].tolist() == whole[5]  # and back
    assert len({tuple(one) for one in whole}) == 96


def test_another_tokenizer_than_the_one_that_counted_is_noticed(entry: Entry) -> None:
    train, _ = datasets(entry)
    train._lanes[0] = train._open(0)
    train._lanes[0].lengths = train._lanes[0].lengths + 1
    with pytest.raises(RunnerError, match="where it was prepared"):
        train[0]


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"sequence_length": 100_000}, r"with \d+ tokens for training, less than one sequence of 100000"),
        ({"evaluate": True, "global_batch": 512}, r"leaves \d+ sequences of 48 to validate on"),
    ],
)
def test_what_is_too_little_is_said(entry: Entry, training: dict[str, Any], told: str) -> None:
    config = CONFIG.model_copy(update={"training": changed(CONFIG, **training)})
    with pytest.raises(ConfigurationError, match=told):
        datasets(entry, config)


def test_a_split_without_a_training_document_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"train_split=0\.5 leaves no document for training: there is 1"):
        shards.validation(1, 0.5, 1)
    assert shards.validation(3, 1.0, 1) == set()
    assert shards.validation(1000, 0.9, 1) == shards.validation(1000, 0.9, 1) != shards.validation(1000, 0.9, 2)


def test_without_energon_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(package: str) -> str:
        if package == "megatron-energon":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(prepare, "version", missing)
    with pytest.raises(ConfigurationError, match="needs megatron-energon") as refused:
        prepare.find(DATA, tmp_path)
    assert "`data` extra" in str(refused.value.hint)
