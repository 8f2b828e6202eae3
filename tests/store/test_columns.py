"""Columns of a run's iterations, and their cached copy."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from cockpit.core.errors import StoreError
from cockpit.core.events import Diagnostic, Iteration
from cockpit.store import columns as module
from cockpit.store.columns import NAMES, columns
from cockpit.store.journal import Journal


def write(path: Path, steps: int) -> None:
    with Journal(path, "run-1") as journal:
        journal.append([Diagnostic(level="info", code="x", message='"type":"iteration"')])
        journal.append(
            [
                Iteration(
                    step=i,
                    loss=None if i % 3 == 0 else 5.0 - i / 100,
                    step_s=0.5,
                    tokens=1024,
                    samples=8,
                    t=1e9 + i,
                    offset=i,
                    extra={"type": "iteration"},
                )
                for i in range(1, steps + 1)
            ]
        )


def same(a: module.Columns, b: module.Columns) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_CACHE_FROM_BY", 0)
    monkeypatch.setattr(module, "_BLOCK", 4096)  # so that records stand on the border of blocks
    write(tmp_path / "events.jsonl", 100)
    return tmp_path / "events.jsonl"


def test_columns_hold_every_iteration_with_nan_for_the_unknown(journal: Path) -> None:
    found = columns(journal)
    assert tuple(found) == NAMES
    assert found["step"].tolist() == list(range(1, 101))
    assert [math.isnan(x) for x in found["loss"]] == [i % 3 == 0 for i in range(1, 101)]
    assert found["loss"][0] == 4.99
    assert found["t"][-1] == 1e9 + 100
    assert {str(c.dtype) for c in found.values()} == {"float64"}


def test_the_copy_is_used_while_the_journal_is_as_it_was(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = columns(journal)
    monkeypatch.setattr(module, "_blocks", lambda _: pytest.fail("read the journal again"))
    assert same(columns(journal), made)


def test_the_copy_is_made_anew_when_the_journal_grew_or_changed(journal: Path) -> None:
    columns(journal)
    with Journal(journal, "run-1") as writer:
        writer.append([Iteration(step=101)])
    assert len(columns(journal)["step"]) == 101
    data = journal.read_bytes().replace(b'"step":101', b'"step":102')
    journal.write_bytes(data)
    os.utime(journal, ns=(1, 1))
    assert columns(journal)["step"][-1] == 102


@pytest.mark.parametrize("junk", [b"", b"PK", b"\0" * 1000])
def test_a_damaged_copy_is_made_anew(junk: bytes, journal: Path) -> None:
    right = columns(journal)
    copy = journal.with_name("columns.npz")
    for data in (junk, copy.read_bytes()[:-100], copy.read_bytes()[:500] + junk):
        copy.write_bytes(data)
        assert same(columns(journal), right)


def test_a_short_journal_has_no_copy(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", 5)
    assert len(columns(tmp_path / "events.jsonl")["step"]) == 5
    assert not (tmp_path / "columns.npz").exists()


def test_no_journal_has_no_iterations(tmp_path: Path) -> None:
    assert {len(c) for c in columns(tmp_path / "none").values()} == {0}


def test_a_torn_last_record_is_left_out(journal: Path) -> None:
    with journal.open("ab") as file:
        file.write(b'{"seq":101,"type":"iteration","step":10')
    assert len(columns(journal)["step"]) == 100


BAD = [b'{"type":"iteration","step":', b'{"type":"iteration"}', b'{"type":"iteration","step":"x"}']


@pytest.mark.parametrize("bad", BAD)
def test_damage_is_named_with_its_line(bad: bytes, journal: Path) -> None:
    lines = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([*lines[:70], bad, *lines[71:]]) + b"\n")
    with pytest.raises(StoreError, match=r"events\.jsonl:71: damaged"):
        columns(journal)
