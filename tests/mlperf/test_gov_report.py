"""Tokenised sequences of a hub's data set, converted into one entry of the cache."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.errors import ConfigurationError
from runners.mlperf import arrays, gov_report
from tests.mlperf.made import Row, folder, rows, table

KEY = "runner.data"
TRAIN, VALIDATION = rows(9, 32, seed=1), rows(3, 32, seed=2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return folder(tmp_path / "scrolls", TRAIN, VALIDATION, shards=2)


def read(entry: gov_report.Entry, split: str) -> list[Row]:
    return [(row["input_ids"].tolist(), row["labels"].tolist()) for row in entry.split(split)]


def test_every_sequence_of_every_file_is_read_in_order(source: Path, tmp_path: Path) -> None:
    entry, made = gov_report.ensure(str(source), tmp_path / "cache", key=KEY)
    assert made
    assert read(entry, "train") == TRAIN
    assert read(entry, "validation") == VALIDATION
    assert sorted(p.name for p in entry.path.iterdir()) == ["manifest.json", "train.npy", "validation.npy"]
    said = entry.manifest
    assert (said["documents"], said["validation"], said["tokens"], said["sequence_length"]) == (9, 3, 288, 32)


def test_the_files_are_what_other_trainers_of_this_task_read(source: Path, tmp_path: Path) -> None:
    entry, _ = gov_report.ensure(str(source), tmp_path / "cache", key=KEY)
    row = np.load(entry.path / "train.npy", allow_pickle=False)[0]
    assert row["input_ids"].tolist() == TRAIN[0][0]
    assert row["loss_mask"].tolist() == [0] * 4 + [1] * 28
    assert row["seq_start_id"].tolist() == [0]


def test_it_is_made_once_and_found_without_its_source(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ConfigurationError, match=r"not prepared .* Run stage=data"):
        gov_report.find(str(source), cache, key=KEY)
    entry, _ = gov_report.ensure(str(source), cache, key=KEY)
    again, made = gov_report.ensure(str(source), cache, key=KEY)
    assert (made, again.path) == (False, entry.path)
    assert gov_report.find(str(source), cache, key=KEY).path == entry.path


def test_a_changed_source_is_another_entry_and_no_stale_one_is_taken(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    entry, _ = gov_report.ensure(str(source), cache, key=KEY)
    folder(source, TRAIN[:6], VALIDATION, shards=2)
    with pytest.raises(ConfigurationError, match="not prepared"):
        gov_report.find(str(source), cache, key=KEY)
    other, made = gov_report.ensure(str(source), cache, key=KEY)
    assert made
    assert other.path != entry.path
    assert len(other.split("train")) == 6


def test_two_machines_make_the_same_entry(source: Path, tmp_path: Path) -> None:
    other = folder(tmp_path / "elsewhere", TRAIN, VALIDATION, shards=2)
    one, _ = gov_report.ensure(str(source), tmp_path / "a", key=KEY)
    two, _ = gov_report.ensure(str(other), tmp_path / "b", key=KEY)
    assert one.path.name == two.path.name
    assert one.manifest["sha256"] == two.manifest["sha256"]
    assert (one.path / "train.npy").read_bytes() == (two.path / "train.npy").read_bytes()


def test_a_damaged_entry_is_made_anew(source: Path, tmp_path: Path) -> None:
    entry, _ = gov_report.ensure(str(source), tmp_path / "cache", key=KEY)
    with (entry.path / "train.npy").open("r+b") as stream:
        stream.truncate(100)
    again, made = gov_report.ensure(str(source), tmp_path / "cache", key=KEY)
    assert made
    assert read(again, "train") == TRAIN


def test_nothing_is_left_of_a_conversion_that_failed(source: Path, tmp_path: Path) -> None:
    table(source / "data" / "validation-00000-of-00001.parquet", [*VALIDATION, rows(1, 31, seed=3)[0]])
    with pytest.raises(ConfigurationError, match=r"sequence 3 has 31 tokens and 31 labels, the first 32"):
        gov_report.ensure(str(source), tmp_path / "cache", key=KEY)
    assert [p.suffix for p in (tmp_path / "cache" / "data").iterdir()] == [".lock"]


def broken(name: str) -> list[Row]:
    (tokens, labels), rest = TRAIN[0], TRAIN[1:]
    odd = {
        "shifted": (tokens, [*labels[1:], -100]),
        "negative": ([-1, *tokens[1:]], labels),
        "short labels": (tokens, labels[1:]),
    }
    return [odd[name], *rest]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shifted", "sequence 0 has labels that are not its tokens"),
        ("negative", "sequence 0 holds the token -1"),
        ("short labels", "32 tokens and 31 labels"),
    ],
)
def test_sequences_that_would_train_something_else_are_refused(tmp_path: Path, name: str, why: str) -> None:
    made = folder(tmp_path / "scrolls", broken(name), VALIDATION)
    with pytest.raises(ConfigurationError, match=why):
        gov_report.ensure(str(made), tmp_path / "cache", key=KEY)


def test_what_is_missing_is_named(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ConfigurationError, match=r"runner.data: the folder .*nowhere is not there"):
        gov_report.ensure(str(tmp_path / "nowhere"), cache, key=KEY)
    (source / "data" / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(ConfigurationError, match=r"neither validation\*.parquet nor validation.npy"):
        gov_report.ensure(str(source), cache, key=KEY)
    table(source / "validation.parquet", VALIDATION, columns=["input_ids"])
    with pytest.raises(ConfigurationError, match=r"validation\.parquet holds no input_ids and labels"):
        gov_report.ensure(str(source), cache, key=KEY)
    (source / "validation.parquet").write_bytes(b"not a table")
    with pytest.raises(ConfigurationError, match=r"validation\.parquet holds no"):
        gov_report.ensure(str(source), cache, key=KEY)
    table(source / "validation.parquet", [])
    with pytest.raises(ConfigurationError, match="holds no sequence"):
        gov_report.ensure(str(source), cache, key=KEY)


def pickled(path: Path, made: list[Row]) -> None:
    """A file as the task's other trainers write it: a list of dictionaries, pickled."""
    listed = [
        {
            "input_ids": np.asarray(tokens, dtype=np.int32),
            "loss_mask": [int(x != -100) for x in labels],
            "seq_start_id": [0],
        }
        for tokens, labels in made
    ]
    np.save(path, np.array(listed, dtype=object), allow_pickle=True)


def test_files_that_others_made_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    pickled(tmp_path / "theirs" / "train.npy", TRAIN)
    pickled(tmp_path / "theirs" / "validation.npy", VALIDATION)
    entry, _ = gov_report.ensure(str(tmp_path / "theirs"), tmp_path / "cache", key=KEY)
    assert read(entry, "train") == TRAIN
    ours, _ = gov_report.ensure(str(entry.path), tmp_path / "cache", key=KEY)
    assert ours.manifest["sha256"] == entry.manifest["sha256"]


class Evil:
    """Unpickled, it would write a file."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.at),)


def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for name in ("train.npy", "validation.npy"):
        np.save(tmp_path / "theirs" / name, np.array([{"input_ids": Evil(tmp_path / "ran")}], dtype=object))
    with pytest.raises(ConfigurationError, match=r"it names posix\.mkdir"):
        gov_report.ensure(str(tmp_path / "theirs"), tmp_path / "cache", key=KEY)
    assert not (tmp_path / "ran").exists()


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200), real=st.booleans())
def test_no_file_ends_a_read_in_anything_but_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, real: bool
) -> None:
    path = tmp_path_factory.mktemp("odd") / "train.npy"
    if real:
        np.save(path, np.array([{}], dtype=object))
        noise = path.read_bytes()[:128] + noise
    path.write_bytes(noise)
    for reader in (lambda p: list(arrays.foreign(p)), lambda p: list(arrays.Arrays(p))):
        with pytest.raises(ConfigurationError, match=r"train\.npy"):
            reader(path)


def test_plain_arrays_of_tokens_count_every_token(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.arange(12, dtype=np.uint16).reshape(3, 4))
    found = arrays.Arrays(tmp_path / "plain.npy")
    assert (len(found), found.sequence) == (3, 4)
    assert found[1]["labels"].tolist() == found[1]["input_ids"].tolist() == [4, 5, 6, 7]
    for odd in (np.zeros(3), np.zeros((0, 4), dtype=int), np.zeros((2, 2)), np.array(5)):
        np.save(tmp_path / "odd.npy", odd)
        with pytest.raises(ConfigurationError, match="not sequences of tokens"):
            arrays.Arrays(tmp_path / "odd.npy")


def test_a_repo_is_named_with_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot(name: str, **options: Any) -> Path:
        asked.append({"name": name, **options})
        return source

    monkeypatch.setattr("runners.hub.folder", snapshot)
    entry, _ = gov_report.ensure("someone/scrolls@21ff123", tmp_path / "cache", key=KEY)
    (call,) = asked
    assert (call["name"], call["revision"], call["dataset"]) == ("someone/scrolls", "21ff123", True)
    assert json.loads((entry.path / "manifest.json").read_text())["source"] == "someone/scrolls@21ff123"
    assert gov_report.find("someone/scrolls@21ff123", tmp_path / "cache", key=KEY).path == entry.path


def test_pickles_of_numbers_only_are_loaded() -> None:
    loaded = pickle.dumps(np.arange(3))
    assert arrays._Numbers(io.BytesIO(loaded)).load().tolist() == [0, 1, 2]
