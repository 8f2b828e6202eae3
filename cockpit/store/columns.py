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


def _table(blocks: list[NDArray[np.float64]]) -> Columns:
    import numpy as np

    whole = np.concatenate([np.empty((0, len(NAMES))), *blocks])
    return {name: np.ascontiguousarray(whole[:, i]) for i, name in enumerate(NAMES)}


def _load(copy: Path, mark: list[int]) -> Columns | None:
    """The cached columns, or None where there are none, or others."""
    import numpy as np

    try:
        with copy.open("rb") as file, np.load(file, allow_pickle=False) as stored:
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


def _blocks(journal: Path) -> Iterator[NDArray[np.float64]]:
    """Rows of the iterations, block by block: a block is decoded as one JSON array, which is the fastest way."""
    done = 0  # lines before this block
    try:
        with journal.open("rb", buffering=0) as file:
            rest = b""
            while data := file.read(_BLOCK):
                data = rest + data
                stop = data.rfind(b"\n") + 1
                block, rest = data[:stop], data[stop:]
                lines = [line for line in block.split(b"\n") if _MARK in line]
                if lines:
                    yield _rows(journal, block, lines, done)
                done += block.count(b"\n")
    except OSError as error:
        raise explain(error, "read", journal) from error


_HARM = (ValueError, KeyError, TypeError, RecursionError, OverflowError)


def _rows(journal: Path, block: bytes, lines: list[bytes], done: int) -> NDArray[np.float64]:
    """`lines` are those of `block` that may be iterations; `done` is the number of lines before it."""
    try:
        return _array(json.loads(b"[" + b",".join(lines) + b"]"))
    except _HARM:
        pass
    for number, line in enumerate(block.split(b"\n"), done + 1):  # once more, to name the line that is damaged
        if _MARK in line:
            try:
                _array([json.loads(line)])
            except _HARM:
                raise damaged(journal, number) from None
    raise damaged(journal, done + 1)


def _array(records: list[dict[str, Any]]) -> NDArray[np.float64]:
    """[iterations, NAMES]; None becomes NaN."""
    import numpy as np

    rows = [(o["step"], *map(o.get, NAMES[1:])) for o in records if o["type"] == "iteration"]
    return np.array(rows, dtype=np.float64).reshape(-1, len(NAMES))
