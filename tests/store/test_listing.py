"""Listings: filter, sort, and an index that is never the truth."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.core.errors import UsageError
from cockpit.store import index
from cockpit.store.files import read_json
from cockpit.store.rows import RunRow, parse_filter, row, sort_rows
from cockpit.store.store import Store
from tests.store.conftest import make_plan

GROUP = "20260131-093000-duel-4f2a"
ROWS = [
    RunRow(id="a.left.r1", server="left", state="SUCCEEDED", created=1.0, started=1.0, ended=5.0, tags=("x", "y")),
    RunRow(id="b.right.r1", server="right", state="FAILED", created=2.0, reason="exit code 3", repeat=1),
    RunRow(id="c.left.r1", server="left", state="LOST", created=3.0, sweep={"training.lr": "1e-4"}),
]


def ids(words: str) -> str:
    test = parse_filter(words)
    return "".join(r.id[0] for r in ROWS if test(r))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", "abc"),
        ("server=left", "ac"),
        ("server=LEFT state=lost", "c"),
        ("server!=left", "b"),
        ("state=FAILED,LOST", "bc"),
        ("id=*.left.*", "ac"),
        ("tag=y", "a"),
        ("tag!=x", "bc"),
        ("repeat=1", "b"),
        ("training.lr=1e-4", "c"),
        ("training.lr=", "ab"),
        ("reason=*code*", "b"),
        ("right", "b"),
        ("code", "b"),
        ("left succ", "a"),
        ("nothing", ""),
    ],
)
def test_a_filter_finds(words: str, found: str) -> None:
    assert ids(words) == found


def test_a_filter_may_be_a_mapping_or_words() -> None:
    assert [parse_filter({"server": "left", "state": "LOST"})(r) for r in ROWS] == [False, False, True]
    assert [parse_filter(["server=left", "lost"])(r) for r in ROWS] == [False, False, True]


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no 'sever' to filter by\. Did you mean 'server'"):
        parse_filter("sever=left")
    with pytest.raises(UsageError, match=r"sorted by 'creatd'\. Did you mean 'created'"):
        sort_rows(ROWS, "creatd")


def test_sorting_puts_the_unknown_last_either_way() -> None:
    assert [r.id[0] for r in sort_rows(ROWS, "created", reverse=True)] == ["c", "b", "a"]
    assert [r.id[0] for r in sort_rows(ROWS, "duration")] == ["a", "b", "c"]
    assert sort_rows(ROWS, "duration", reverse=True)[0].id == "a.left.r1"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12), max_size=4))
def test_no_words_break_a_filter(words: list[str]) -> None:
    try:
        test = parse_filter(words)
    except UsageError:
        return
    for r in ROWS:
        test(r)


def test_a_row_comes_back_from_its_json() -> None:
    for r in ROWS:
        assert row(r.to_json()) == r


# -- the index


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run.json files that listings read."""
    seen: list[str] = []
    real = read_json

    def read(path: Path, schema: str) -> dict[str, object]:
        seen.append(path.parent.name)
        return real(path, schema)

    monkeypatch.setattr("cockpit.store.index.read_json", read)
    return seen


def test_a_second_listing_reads_only_what_changed(store: Store, reads: list[str]) -> None:
    store.create(make_plan(), {})
    first = store.runs(sort="id")
    assert len(reads) == 4
    reads.clear()
    assert store.runs(sort="id") == first
    assert reads == []
    store.run_dir(f"{GROUP}.left.r2").update_meta(state="FAILED")
    assert [r.id for r in store.runs("state=FAILED")] == [f"{GROUP}.left.r2"]
    assert reads == [f"{GROUP}.left.r2"]


def test_a_change_of_the_same_size_and_time_is_seen(store: Store) -> None:
    store.create(make_plan(), {})
    store.runs()
    run = store.run_dir(f"{GROUP}.left.r1")
    path = run.path / "run.json"
    before = path.stat()
    run.update_meta(server="lift")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert len(store.runs("server=lift")) == 1


def test_deleted_runs_leave_the_listing(store: Store) -> None:
    store.create(make_plan(), {})
    store.runs()
    store.delete(f"{GROUP}.left.r1")
    assert len(store.runs()) == 3


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def _other_version(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.execute("DROP TABLE runs")
    db.execute("CREATE TABLE runs (something TEXT)")
    db.commit()
    db.close()


def _wrong_rows(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE runs SET body = '{}'")
    db.commit()
    db.close()


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize("harm", [Path.unlink, _empty, _garbage, _other_version, _wrong_rows, _torn])
def test_an_index_that_is_missing_or_wrong_is_made_anew(
    harm: Callable[[Path], None], store: Store, reads: list[str]
) -> None:
    store.create(make_plan(), {})
    right = store.runs(sort="id")
    harm(store.root / "index.sqlite")
    assert store.runs(sort="id") == right
    reads.clear()
    assert store.runs(sort="id") == right
    assert reads == []


def test_an_index_that_another_holds_is_done_without(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create(make_plan(), {})
    store.runs()
    store.run_dir(f"{GROUP}.left.r1").update_meta(state="FAILED")
    monkeypatch.setattr(index, "_BUSY_S", 0.01)
    db = sqlite3.connect(store.root / "index.sqlite")
    db.execute("BEGIN EXCLUSIVE")
    assert len(store.runs("state=FAILED")) == 1
    db.close()


def test_damaged_runs_are_told_and_the_others_listed(store: Store) -> None:
    store.create(make_plan(), {})
    (store.root / f"{GROUP}.left.r1" / "run.json").write_text('{\n"schema')
    path = store.root / f"{GROUP}.right.r1" / "run.json"
    path.write_text(path.read_text().replace("ekvi.run/1", "ekvi.run/7"))
    (store.root / "not-a-run").mkdir()
    assert len(store.runs()) == 2
    damaged, newer = map(str, store.problems)
    assert "left.r1/run.json:2: damaged JSON" in damaged
    assert "ekvi.run/7, made by a newer ekvi-cockpit" in newer


def test_sizes_and_limits(store: Store) -> None:
    store.create(make_plan(), {})
    store.run_dir(f"{GROUP}.left.r2").append_stdout(b"x" * 9999, 0)
    assert all(r.size_by is None for r in store.runs())
    biggest, *others = store.runs(sort="size", reverse=True, limit=2)
    assert (biggest.id, len(others)) == (f"{GROUP}.left.r2", 1)
    assert biggest.size_by is not None
    assert biggest.size_by > 9999
    assert all(r.size_by for r in store.runs(sizes=True))
