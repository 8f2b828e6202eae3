"""Rows as a table on stdout: columns as wide as they need, cut to a terminal and never to a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

_LEAST = 9  # characters of a column on a narrow terminal: SUCCEEDED


def print_table(rows: Sequence[Mapping[str, object]], empty: str) -> None:
    """Print rows of equal keys; where there are none, `empty` on stderr."""
    if not rows:
        sys.stderr.write(empty + "\n")
        return
    heads = [h for h in rows[0] if any(row[h] is not None for row in rows)]  # a column without a value says nothing
    cells = [[_cell(row[h]) for h in heads] for row in rows]
    widths = [max(len(head), *(len(row[i]) for row in cells)) for i, head in enumerate(heads)]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if limit is not None:
        widths = _fit(widths, limit)
    for line in [[h.upper() for h in heads], *cells]:
        text = "  ".join(_cut(value, width).ljust(width) for value, width in zip(line, widths, strict=True)).rstrip()
        sys.stdout.write((text if limit is None else _cut(text, limit)) + "\n")


def _fit(widths: Sequence[int], limit: int) -> list[int]:
    """Widths for a terminal: the widest columns give way, so that one long cell hides no other column.

    The first keeps its width: its names are there to be copied.
    """
    fitted = list(widths)
    while sum(fitted) + 2 * (len(fitted) - 1) > limit:
        widest = max(range(1, len(fitted)), key=fitted.__getitem__, default=0)
        if widest == 0 or fitted[widest] <= _LEAST:
            break
        fitted[widest] -= 1
    return fitted


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3g}"
    if isinstance(value, list | tuple):
        return ",".join(str(v) for v in value)
    return str(value)
