"""Rows as a table on stdout: columns as wide as they need, cut to a terminal and never to a pipe."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

_LEAST = 9  # characters of a column on a narrow terminal: SUCCEEDED


def print_table(
    rows: Sequence[Mapping[str, object]], empty: str, *, spare: Sequence[str] = (), folded: Sequence[str] = ()
) -> None:
    """Print rows of equal keys; where there are none, `empty` on stderr.

    On a terminal that is too narrow the columns `spare` are left out, in that order, until the others fit; those of
    `folded` go on in further lines. What then does not fit is cut.
    """
    if not rows:
        sys.stderr.write(empty + "\n")
        return
    heads = [h for h in rows[0] if any(row[h] is not None for row in rows)]  # a column without a value says nothing
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if limit is not None:
        for head in spare:
            if head in heads and sum(_widths(rows, heads)) + 2 * (len(heads) - 1) > limit:
                heads.remove(head)
    widths = _widths(rows, heads)
    if limit is not None:
        widths = _fit(widths, limit)
    lines = [[h.upper() for h in heads], *([_cell(row[h]) for h in heads] for row in rows)]
    for line in lines:
        cells = [
            _folded(value, width) if limit is not None and head in folded else [_cut(value, width)]
            for head, value, width in zip(heads, line, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            text = "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
            sys.stdout.write((text if limit is None else _cut(text, limit)) + "\n")


def _widths(rows: Sequence[Mapping[str, object]], heads: Sequence[str]) -> list[int]:
    return [max(len(head), *(len(_cell(row[head])) for row in rows)) for head in heads]


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width), break_on_hyphens=False) or [""]


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
