"""A run's iterations as columns, with a cached copy beside a long journal."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import StoreError
from cockpit.store import layout
from cockpit.store.errors import explain
from cockpit.store.files import write_atomic
from cockpit.store.journal import damaged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Columns = dict[str, "NDArray[np.float64]"]

NAMES = ("step", "loss", "step_s", "tokens", "samples", "t")
_MARK = b'"type":"iteration"'
_CACHE_FROM_BY = 2 << 20  # bytes of journal below which reading it anew costs less than a second file is worth
_BLOCK = 8 << 20
_VERSION = 1


def columns(journal: Path, *, cache: bool = True) -> Columns:
    """step, loss, step_s (s), tokens, samples and t (s) of a journal's iterations, in order; NaN where unknown.

    With `cache`, a copy is kept beside a long journal and used for as long as the journal is as it was. Raises
    StoreError naming file and line of a damaged record.
    """
    try:
        stat = journal.stat()
    except FileNotFoundError:
        return _table([])
    except OSError as error:
        raise explain(error, "read", journal) from error
    copy = journal.with_name(layout.COLUMNS)
    mark = [_VERSION, stat.st_size, stat.st_mtime_ns]
    if cache and stat.st_size >= _CACHE_FROM_BY:
        found = _load(copy, mark)
        if found is not None:
            return found
    table = _table(list(_blocks(journal)))
    if cache and stat.st_size >= _CACHE_FROM_BY:
        with contextlib.suppress(StoreError):  # a folder that is full or read-only has no cache, and needs none
            _save(copy, mark, table)
    return table


def _table(blocks: list[list[tuple[Any, ...]]]) -> Columns:
    import numpy as np

    parts = [np.array(rows, dtype=np.float64) for rows in blocks if rows]  # None becomes NaN
    whole = np.concatenate(parts) if parts else np.empty((0, len(NAMES)))
    return {name: np.ascontiguousarray(whole[:, i]) for i, name in enumerate(NAMES)}


def _load(copy: Path, mark: list[int]) -> Columns | None:
    """The cached columns, or None where there are none, or others."""
    import numpy as np

    try:
        with np.load(copy, allow_pickle=False) as stored:
            if stored["mark"].tolist() != mark:
                return None
            found = {name: stored[name] for name in NAMES}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None
    return found if len({len(c) for c in found.values()}) == 1 else None


def _save(copy: Path, mark: list[int], table: Columns) -> None:
    import numpy as np

    out = io.BytesIO()
    arrays: dict[str, Any] = {"mark": np.array(mark, dtype=np.int64), **table}
    np.savez(out, **arrays)
    write_atomic(copy, out.getvalue())


def _blocks(journal: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of the iterations, block by block: a block is decoded as one JSON array, which is the fastest way."""
    done = 0  # lines before this block
    try:
        with journal.open("rb", buffering=0) as file:
            rest = b""
            while data := file.read(_BLOCK):
                data = rest + data
                stop = data.rfind(b"\n") + 1
                block, rest = data[:stop], data[stop:]
                if block:
                    yield _rows(journal, block, done)
                    done += block.count(b"\n")
    except OSError as error:
        raise explain(error, "read", journal) from error


def _rows(journal: Path, block: bytes, done: int) -> list[tuple[Any, ...]]:
    lines = [line for line in block.split(b"\n") if _MARK in line]
    try:
        return [_row(o) for o in json.loads(b"[" + b",".join(lines) + b"]") if o["type"] == "iteration"]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return _rows_one_by_one(journal, block, done)


def _row(o: dict[str, Any]) -> tuple[Any, ...]:
    get = o.get
    return (o["step"], get("loss"), get("step_s"), get("tokens"), get("samples"), get("t"))


def _rows_one_by_one(journal: Path, block: bytes, done: int) -> list[tuple[Any, ...]]:
    """The same, line by line, to name the line that is damaged."""
    rows = []
    for number, line in enumerate(block.split(b"\n"), done + 1):
        if _MARK in line:
            try:
                o = json.loads(line)
                if o["type"] == "iteration":
                    rows.append(tuple(None if v is None else float(v) for v in _row(o)))
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
                raise damaged(journal, number) from None
    return rows
