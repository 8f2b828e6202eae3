"""index.sqlite: rows of all runs, so that a listing of thousands need not read thousands of files.

Never the truth: an entry holds for as long as its run.json has the size, time and inode that it was read with; the
file may be deleted at any time, and is made anew where it is missing, damaged or of another version. Where it cannot
be written, the listing does without.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cockpit.core.errors import StoreError
from cockpit.store import layout
from cockpit.store.errors import explain
from cockpit.store.files import read_json
from cockpit.store.rows import RunRow, row

_VERSION = 1
_BUSY_S = 2.0
Mark = tuple[int, int, int]  # size, mtime_ns, inode


def load_rows(root: Path, *, use_index: bool) -> tuple[list[RunRow], list[StoreError]]:
    """Rows of all runs under `root`, in no order, and what kept others from being read."""
    marks = _marks(root)
    if not use_index or not marks:
        return _read(root, marks, {})[:2]
    try:
        return _indexed(root, marks)
    except sqlite3.OperationalError:
        return _read(root, marks, {})[:2]  # read-only, busy, full: go without
    except sqlite3.DatabaseError:
        return _anew(root, marks)


def _anew(root: Path, marks: dict[str, Mark]) -> tuple[list[RunRow], list[StoreError]]:
    with contextlib.suppress(OSError):
        (root / layout.INDEX).unlink()
    try:
        return _indexed(root, marks)
    except sqlite3.Error:
        return _read(root, marks, {})[:2]


def _marks(root: Path) -> dict[str, Mark]:
    """Every run's run.json as it is now."""
    found: dict[str, Mark] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if layout.is_id(entry.name) and entry.is_dir(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        stat = os.stat(os.path.join(entry.path, layout.META))  # noqa: PTH116, PTH118 thousands of them
                        found[entry.name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise explain(error, "read", root) from error
    return found


def _read(
    root: Path, marks: dict[str, Mark], known: dict[str, RunRow]
) -> tuple[list[RunRow], list[StoreError], dict[str, RunRow]]:
    """All rows, the problems, and those rows that were not in `known`."""
    rows, problems, fresh = list(known.values()), [], {}
    for name in marks.keys() - known.keys():
        path = root / name / layout.META
        try:
            fresh[name] = row({**read_json(path, layout.RUN_SCHEMA), "id": name})
        except FileNotFoundError:
            continue  # deleted since
        except StoreError as error:
            problems.append(error)
        except (KeyError, TypeError, ValueError, AttributeError):
            problems.append(StoreError(f"{path}:1: damaged: a value has a wrong type."))
    rows += fresh.values()
    return rows, sorted(problems, key=str), fresh


def _indexed(root: Path, marks: dict[str, Mark]) -> tuple[list[RunRow], list[StoreError]]:
    with _open(root / layout.INDEX) as db:
        known: dict[str, RunRow] = {}
        stale: list[str] = []
        for name, size, mtime_ns, inode, body in db.execute("SELECT id, size, mtime_ns, inode, body FROM runs"):
            if marks.get(name) == (size, mtime_ns, inode):
                known[name] = _from_body(body)
            else:
                stale.append(name)
        rows, problems, fresh = _read(root, marks, known)
        if stale or fresh:
            with db:
                db.executemany("DELETE FROM runs WHERE id = ?", [(name,) for name in stale])
                db.executemany(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)",
                    [(name, *marks[name], json.dumps(r.to_json())) for name, r in fresh.items()],
                )
    return rows, problems


def _from_body(body: str) -> RunRow:
    try:
        return row(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise sqlite3.DatabaseError("a row of the index is damaged") from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    """The index, of our version; raises sqlite3.DatabaseError where the file is no index."""
    db: Any = sqlite3.connect(path, timeout=_BUSY_S)
    try:
        if db.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            with db:
                db.execute("DROP TABLE IF EXISTS runs")
                db.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, size INT, mtime_ns INT, inode INT, body TEXT)")
                db.execute(f"PRAGMA user_version = {_VERSION}")
        yield db
    finally:
        db.close()
