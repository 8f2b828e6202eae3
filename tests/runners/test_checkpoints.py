"""The folder of checkpoints: what `latest` names is whole, whatever was killed when; and what is refused, and why."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from runners import checkpoints
from runners.checkpoints import Shelf
from runners.errors import ConfigurationError, RunnerError
from runners.schema import Model

ABOUT: dict[str, Any] = {"schema": checkpoints.SCHEMA, "step": 0}


def saved(shelf: Shelf, *steps: int) -> None:
    for step in steps:
        part = shelf.begin(step)
        (part / "data").write_text(str(step))
        shelf.commit(part, step, ABOUT | {"step": step})


def names(shelf: Shelf) -> list[str]:
    return sorted(path.name for path in shelf.folder.iterdir())


def test_the_newest_is_the_latest_and_older_ones_go(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "c")
    assert shelf.latest() is None
    saved(shelf, 5, 10, 15, 100)
    shelf.prune(100, 2)
    assert names(shelf) == ["latest", "step-100", "step-15"]
    assert shelf.latest() == shelf.path(100)


def test_another_course_is_replaced_where_it_meets_and_else_left(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    saved(shelf, 5, 10, 20)
    (shelf.path(10) / "old").touch()
    saved(shelf, 10)
    shelf.prune(10, 1)
    assert names(shelf) == ["latest", "step-10", "step-20"]
    assert not (shelf.path(10) / "old").exists()
    assert shelf.latest() == shelf.path(10)


def test_one_that_proves_bad_goes_and_the_one_before_is_the_latest(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    saved(shelf, 3, 5, 10)
    shelf.withdraw(10, shelf.path(5))
    assert names(shelf) == ["latest", "step-3", "step-5"]
    assert shelf.latest() == shelf.path(5)
    shelf.withdraw(5, None)  # the training began anew: the other is not of its course
    assert names(shelf) == ["step-3"]
    saved(shelf, 10)
    shelf.withdraw(10, tmp_path / "elsewhere/step-5")
    assert shelf.latest() is None


@pytest.mark.parametrize("call", ["rename", "replace", "fsync"])
def test_a_commit_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    shelf = Shelf(tmp_path)
    saved(shelf, 5)
    part = shelf.begin(10)

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(f"runners.checkpoints.os.{call}", full)
        with pytest.raises(OSError, match="No space left"):
            shelf.commit(part, 10, ABOUT)
    assert shelf.latest() == shelf.path(5)
    shelf.clear()
    assert [name for name in names(shelf) if name.startswith(".")] == []


def test_what_a_killed_process_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    saved(shelf, 5)
    for name in (".step-7.part", ".step-3.gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").touch()
    (tmp_path / ".latest.part").touch()
    (tmp_path / "mine").touch()
    shelf.clear()
    assert names(shelf) == ["latest", "mine", "step-5"]


def test_auto_never_and_a_folder(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "out/checkpoints")
    assert checkpoints.find("auto", shelf) is None
    saved(shelf, 5, 10)
    assert checkpoints.find("auto", shelf) == shelf.path(10)
    assert checkpoints.find("never", shelf) is None
    for named in (shelf.path(5), shelf.folder, tmp_path / "out"):
        found = checkpoints.find(str(named), Shelf(tmp_path / "elsewhere"))
        assert found == (shelf.path(5) if named == shelf.path(5) else shelf.path(10))


@pytest.mark.parametrize(
    ("given", "told"),
    [("{0}/none", "does not exist"), ("{0}", "holds no checkpoint"), ("{0}/file", "does not exist")],
)
def test_a_folder_without_a_checkpoint_is_refused_by_name(tmp_path: Path, given: str, told: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=told) as caught:
        checkpoints.find(given.format(tmp_path), Shelf(tmp_path / "elsewhere"))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", ["step-9", "../step-5", "", "\0"])
def test_a_latest_that_names_nothing_whole_says_what_is_there(tmp_path: Path, text: str) -> None:
    shelf = Shelf(tmp_path)
    saved(shelf, 5)
    (tmp_path / "latest").write_text(text)
    with pytest.raises(ConfigurationError, match="not a whole checkpoint") as caught:
        checkpoints.find("auto", shelf)
    assert str(shelf.path(5)) in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "ekvi.checkpoint/9", "step": 1}', '{"step": 1}'])
def test_a_checkpoint_that_says_nothing_usable_of_itself_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoints.ABOUT).write_text(text)
    with pytest.raises(ConfigurationError, match=r"checkpoint\.json"):
        checkpoints.about(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layers": 8}, r"has model\.layers=4, this run has model\.layers=8"),
        ({"kv_heads": 4}, r"model\.kv_heads=2, .* model\.kv_heads=4"),
        ({"tied_embeddings": True}, r"model\.tied_embeddings=false, .*=true"),
    ],
)
def test_another_shape_is_refused_by_its_key(change: dict[str, Any], told: str) -> None:
    model = Model().model_dump(mode="json")
    about = {"config": {"model": model}, "words": 1000}
    checkpoints.refuse_other_model(Path("c"), about, model, 1000)
    checkpoints.refuse_other_model(Path("c"), about, model | {"name": "renamed", "vocab_multiple": 128}, 1000)
    with pytest.raises(ConfigurationError, match=told):
        checkpoints.refuse_other_model(Path("c"), about, model | change, 1000)
    with pytest.raises(ConfigurationError, match=r"model\.vocab=1000, this run has model\.vocab=999"):
        checkpoints.refuse_other_model(Path("c"), about, model, 999)


def test_a_checkpoint_beyond_the_training_is_refused() -> None:
    checkpoints.refuse_later(Path("c"), 10, 10)
    with pytest.raises(ConfigurationError, match=r"is of iteration 10, but training\.train_iters is 9"):
        checkpoints.refuse_later(Path("c"), 10, 9)


def test_other_data_is_told_by_key() -> None:
    course = {"data": "a" * 64, "training.global_batch": 8}
    assert checkpoints.drifted({"course": course}, course) == []
    told = checkpoints.drifted({"course": course}, {"data": "b" * 64, "training.global_batch": 16})
    assert told == ["data (aaaaaaaaaaaa, now bbbbbbbbbbbb)", "training.global_batch (8, now 16)"]


def test_a_full_disk_is_known_however_it_is_said() -> None:
    assert checkpoints.is_full(OSError(errno.ENOSPC, "x"))
    assert checkpoints.is_full(RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"))
    wrapped = RunnerError("x")
    wrapped.__cause__ = OSError(errno.EDQUOT, "x")
    assert checkpoints.is_full(wrapped)
    assert not checkpoints.is_full(OSError(errno.EACCES, "x"))
