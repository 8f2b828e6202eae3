"""CSV files as records: the first row names the columns, as JSONL's keys do."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from runners.data.files import COMPRESSED, opened, unreadable
from runners.data.records import Fields, OnError, Record, RecordError, Skips, record, wrong
from runners.errors import ConfigurationError

_FIELD_MOST = 1 << 30  # characters of one field; csv's own bound of 128 Ki is less than a document


def read(
    paths: Sequence[str], on_error: OnError = "refuse", *, fields: Fields | None = None, skips: Skips | None = None
) -> Iterator[Record]:
    """The rows of CSV files (.tsv: by tabs), in order, as `records.read` gives lines; `line` is where a row ends.

    Raises ConfigurationError for a file that cannot be read or names no columns, and for a row that is no record.
    """
    csv.field_size_limit(_FIELD_MOST)
    for path in paths:
        with opened(path) as raw, unreadable(path):
            stream = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            rows = csv.DictReader(stream, delimiter="\t" if _tabs(path) else ",", strict=True)
            try:
                _named(rows, path)
                for row in rows:
                    try:
                        yield _record(row, path, rows.line_num, fields)
                    except RecordError as error:
                        wrong(f"{path}:{rows.line_num}: {error}", on_error, skips)
            except (csv.Error, UnicodeDecodeError) as error:  # nothing after it can be told apart
                told = "the row is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"no CSV: {error}"
                raise ConfigurationError(f"{path}:{rows.line_num + 1}: {told}.", every_rank=True) from error


def _tabs(path: str) -> bool:
    name = path.lower()
    return next((name.removesuffix(e) for e in COMPRESSED if name.endswith(e)), name).endswith(".tsv")


def _named(rows: csv.DictReader[str], path: str) -> None:
    if not rows.fieldnames or not any(rows.fieldnames):
        raise ConfigurationError(f"{path} is empty: its first row must name the columns.", every_rank=True)


def _record(row: dict[str, str], path: str, line: int, fields: Fields | None) -> Record:
    if None in row:
        raise RecordError("the row has more fields than the first row has names.")
    cells = {name: value for name, value in row.items() if value is not None}
    if len(cells) < len(row):
        raise RecordError("the row has fewer fields than the first row has names.")
    # An empty cell is none: a file may hold prompts in some rows and texts in others.
    return record({name: value for name, value in cells.items() if value or name == "prompt"}, path, line, fields)
