"""The prepared entry: complete or absent, made once, found again without torch."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from runners.data import entry, prepare, quiet, sources, tokenizer
from runners.errors import ConfigurationError, RunnerError
from runners.schema import Data
from tests.runners.support import Place, Result

SMALL = Data(source="synthetic", samples=12, tokenizer_vocab=300)


@pytest.fixture
def stack() -> None:
    """The training stack imported without what it warns of."""
    quiet.silence()
    import megatron.core.datasets.indexed_dataset  # noqa: F401


@pytest.mark.train
def test_the_first_call_prepares_and_says_what(prepared: Result, cache: Path) -> None:
    assert prepared.rc == 0, prepared.err
    assert prepared.stages == [("data", "start"), ("data", "done")]
    data = prepared.diagnostic("data")["data"]
    (folder,) = (cache / "data").glob("*/")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert data["sha256"] == manifest["sha256"] == hashlib.sha256((folder / "tokens.bin").read_bytes()).hexdigest()
    assert manifest["idx_sha256"] == hashlib.sha256((folder / "tokens.idx").read_bytes()).hexdigest()
    assert manifest["tokenizer_sha256"] == tokenizer.load(folder).fingerprint
    for name, said in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert (said["bytes"], said["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert {path.name for path in folder.iterdir()} == {*manifest["files"], "manifest.json"}
    assert data["tokens"] * 2 == (folder / "tokens.bin").stat().st_size  # uint16
    assert data["vocab"] == 1024
    assert data["documents"] == len(list(sources.documents(Data(), cache)))


@pytest.mark.train
def test_the_second_call_finds_it_without_torch(prepared: Result, cache: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, cache)
    command = place.command({}, "stage=data")
    command[1:1] = ["-X", "importtime"]
    done = subprocess.run(command, env=place.environment(), capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "numpy", "megatron.core", "tokenizers"}
    result = Result(0, done.stdout, done.stderr)
    assert result.stages == [("data", "start"), ("data", "skipped")]
    assert result.diagnostic("data")["data"] == prepared.diagnostic("data")["data"]


@pytest.mark.train
@pytest.mark.usefixtures("stack")
def test_of_many_at_once_one_prepares_and_all_find_the_same(tmp_path: Path) -> None:
    found: list[tuple[prepare.Entry, bool]] = []
    threads = [threading.Thread(target=lambda: found.append(prepare.ensure(SMALL, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made for _entry, made in found) == [False, False, False, True]
    assert len({entry.path for entry, _made in found}) == 1


@pytest.mark.train
@pytest.mark.usefixtures("stack")
def test_a_damaged_entry_is_made_anew_and_leftovers_are_cleared(tmp_path: Path) -> None:
    entry, _ = prepare.ensure(SMALL, tmp_path)
    (entry.path / "tokens.bin").write_bytes(b"")
    left = tmp_path / "data" / f".{entry.path.name}.1.part"
    left.mkdir()
    with pytest.raises(ConfigurationError, match="stage=data"):
        prepare.find(SMALL, tmp_path)
    again, made = prepare.ensure(SMALL, tmp_path)
    assert made
    assert again.manifest == entry.manifest
    assert not left.exists()
    assert prepare.find(SMALL, tmp_path) == again


@pytest.mark.train
@pytest.mark.usefixtures("stack")
def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(entry, "digest", full)
    with pytest.raises(RunnerError, match=r"cache .* cannot be written: No space left on device"):
        prepare.ensure(SMALL, tmp_path)
    assert not [path for path in (tmp_path / "data").iterdir() if path.suffix != ".lock"]


def test_a_cache_that_is_no_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunnerError, match=r"cache .*file cannot be written: Not a directory"):
        prepare.ensure(SMALL, tmp_path / "file")


@pytest.mark.train
@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("change", [{"seed": 2}, {"samples": 13}, {"tokenizer_vocab": 301}])
def test_what_changes_the_bytes_makes_another_entry(tmp_path: Path, change: dict[str, int]) -> None:
    first, _ = prepare.ensure(SMALL, tmp_path)
    second, made = prepare.ensure(SMALL.model_copy(update=change), tmp_path)
    assert made
    assert second.path != first.path


@pytest.mark.train
@pytest.mark.usefixtures("stack")
def test_what_does_not_change_the_bytes_finds_the_same_entry(tmp_path: Path) -> None:
    first, _ = prepare.ensure(SMALL, tmp_path)
    second, made = prepare.ensure(SMALL.model_copy(update={"name": "other", "train_split": 0.5}), tmp_path)
    assert not made
    assert second == first


@pytest.mark.train
@pytest.mark.usefixtures("stack")
def test_an_entry_that_was_copied_here_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = prepare.ensure(SMALL, tmp_path / "there")
    assert (tmp_path / "there" / "data" / f"{SMALL.request}.entry").read_text() == entry.path.name
    other = SMALL.model_copy(update={"seed": 7})
    assert other.request != SMALL.request
    monkeypatch.setenv(prepare.GIVEN, entry.path.name)
    with pytest.raises(ConfigurationError, match="is not whole"):
        prepare.ensure(other, tmp_path / "here")
    shutil.copytree(entry.path, tmp_path / "here" / "data" / entry.path.name)
    assert prepare.ensure(other, tmp_path / "here") == (prepare.find(other, tmp_path / "here"), False)
    assert prepare.find(other, tmp_path / "here").manifest == entry.manifest
