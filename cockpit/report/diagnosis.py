"""What an examination of servers found, for a terminal: a table a server, a mend on a line of its own."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from cockpit.core.text import printable

_COMMAND = re.compile(r"`[^`]*`|\bssh [^';]*'[^']*'")
_KEPT = "\N{NO-BREAK SPACE}"
_WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
_COLORS = {"ok": "32", "warn": "33", "fail": "1;31", "bold": "1", "dim": "2"}


def diagnosis_text(document: Mapping[str, Any], *, width: int | None = None, color: bool | None = None) -> str:
    """An `ekvi.doctor/1` document for a terminal, ending in a newline.

    `width` in columns is the terminal's (120 where there is none), `color` None asks the terminal and NO_COLOR.
    """
    tty = sys.stdout.isatty()
    wanted = color if color is not None else tty and not os.environ.get("NO_COLOR")
    columns = width or (shutil.get_terminal_size((80, 24)).columns if tty else 120)
    lines: list[str] = []
    for server in document["servers"]:
        lines += [*_server(server, max(50, columns), wanted), ""]
    verdict = _paint(document["verdict"], "ok" if document["fit"] else "fail", wanted)
    return "\n".join([*lines, verdict]) + "\n"


def _server(server: Mapping[str, Any], width: int, color: bool) -> Iterator[str]:
    where = " + ".join(server["nodes"]) or server["address"]
    head = f"{server['name']}  {where}  {server['vendor'] or 'vendor unknown'}"
    yield _paint(printable(head), "bold", color)
    checks = max((len(f["check"]) for f in server["findings"]), default=0)
    indent = " " * (2 + 4 + 2 + checks + 2)
    for finding in server["findings"]:
        level = finding["level"]
        word = _paint(_WORDS[level].ljust(4), level, color)
        first, *more = _wrapped(finding["text"], width - len(indent))
        yield f"  {word}  {finding['check'].ljust(checks)}  {first}"
        yield from (indent + line for line in more)
        if finding["mend"] and level != "ok":
            for i, line in enumerate(_wrapped(finding["mend"], width - len(indent) - 2)):
                yield indent + _paint(("→ " if i == 0 else "  ") + line, "dim", color)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width`; commands and paths are not broken, so that they can be copied."""
    clean = " ".join(printable(text).split())
    kept = _COMMAND.sub(lambda found: found[0].replace(" ", _KEPT), clean)
    lines = textwrap.wrap(kept, max(20, width), break_long_words=False, break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines] or [""]


def _paint(text: str, style: str, color: bool) -> str:
    return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if color else text
