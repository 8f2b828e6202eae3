"""Atomic writes, schemas, mirrors, and where the runs folder is."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.core.errors import StoreError, UsageError
from cockpit.store.errors import DiskFull
from cockpit.store.files import Mirror, read_json, write_atomic, write_json
from cockpit.store.layout import checked_id, runs_root


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, full_at: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "run.json"
    write_atomic(path, b"old")
    with full_at(100), pytest.raises(DiskFull, match=r"cannot write .*run\.json: the disk"):
        write_atomic(path, b"x" * 1000)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_an_interrupted_write_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run.json"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("run.json", b"old")]


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", "ekvi.run/2", {"id": "x"})
    with pytest.raises(StoreError, match=r"run\.json has schema ekvi\.run/2.*reads ekvi\.run/1\. Upgrade"):
        read_json(tmp_path / "run.json", "ekvi.run/1")


@pytest.mark.parametrize("schema", ["ekvi.group/1", "", None, 3])
def test_another_schema_is_refused(schema: object, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": %s}' % ("null" if schema is None else f'"{schema}"'))
    with pytest.raises(StoreError, match=r"is not a file of schema ekvi\.run/1"):
        read_json(tmp_path / "run.json", "ekvi.run/1")


@pytest.mark.parametrize(
    ("text", "line"),
    [(b'{\n"schema": "ekvi.run/1",\n"id": }\n', 3), (b"", 1), (b"{}x", 1), (b'{\n"a": "\xff"}', 2), (b"[]", 1)],
)
def test_damaged_json_names_file_and_line(text: bytes, line: int, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(StoreError, match=rf"run\.json:{line}: damaged"):
        read_json(tmp_path / "run.json", "ekvi.run/1")


def test_json_that_is_nested_without_end_is_damaged_too(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 200_000)
    with pytest.raises(StoreError, match="damaged"):
        read_json(tmp_path / "run.json", "ekvi.run/1")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), moves=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=12))
def test_overlapping_appends_give_the_original(data: bytes, moves: list[tuple[int, int]], tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.unlink(missing_ok=True)
    mirror = Mirror(path)
    for back, length in moves:
        start = max(0, mirror.size - back)
        assert mirror.append(data[start : start + length], start) == mirror.size
    assert mirror.append(data, 0) == len(data)
    assert path.read_bytes() == data
    mirror.close()


def test_a_hole_is_refused(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "stdout.log")
    mirror.append(b"abc", 0)
    with pytest.raises(StoreError, match="has 3 bytes, and byte 5 was to follow"):
        mirror.append(b"x", 5)
    mirror.close()


def test_what_a_full_disk_took_is_kept_and_the_same_bytes_go_on(
    tmp_path: Path, full_at: Callable[[int], AbstractContextManager[None]]
) -> None:
    mirror = Mirror(tmp_path / "stdout.log")
    mirror.append(b"a" * 50, 0)
    with full_at(70), pytest.raises(DiskFull):
        mirror.append(b"b" * 40, 50)
    assert mirror.size == 70
    assert mirror.append(b"b" * 40, 50) == 90
    assert (tmp_path / "stdout.log").read_bytes() == b"a" * 50 + b"b" * 40
    assert mirror.read(48, 4) == b"aabb"
    assert mirror.read(90, 4) == b""
    mirror.close()


def test_the_runs_folder_is_the_flags_then_the_environments_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME")
    assert runs_root() == tmp_path / ".local/share/ekvi-cockpit/runs"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert runs_root() == tmp_path / "data/ekvi-cockpit/runs"
    monkeypatch.setenv("EKVI_RUNS_DIR", "~/mine")
    assert runs_root() == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    assert runs_root("here") == tmp_path / "here"


@pytest.mark.parametrize("ident", ["", "..", "a/b", "../x", ".hidden", "groups", "index.sqlite", "a\0", "x" * 300])
def test_an_id_cannot_lead_elsewhere(ident: str) -> None:
    with pytest.raises(UsageError, match="is not an id"):
        checked_id(ident)


def test_half_a_character_does_not_keep_a_document_from_being_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, "ekvi.run/1", {"reason": "no \ud800 such"})
    assert read_json(path, "ekvi.run/1")["reason"] == "no ? such"
