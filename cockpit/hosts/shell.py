"""Words and files as a POSIX shell reads them."""

from __future__ import annotations

import itertools
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

from cockpit.core.records import Access

# What the agent fills in.
PLACES = ("RUN_DIR", "OUT_DIR", "CODE_DIR", "CACHE_DIR", "FILES_DIR", "SECRETS_DIR", "WORK_DIR")
_PLACE = re.compile(r"(\$\{(?:" + "|".join(PLACES) + r")\})")
_END = "EKVI_END"

quote = shlex.quote


def fill(word: str) -> str:
    """A word in which the agent's places stay variables for the shell, and all else means itself."""
    parts = [f'"{part}"' if _PLACE.fullmatch(part) else quote(part) for part in _PLACE.split(word) if part]
    return "".join(parts) or "''"


def ssh(access: Access, name: str | None = None) -> list[str]:
    """The system's ssh to a machine as a user types it; `name` in place of its address."""
    words = ["ssh"]
    for flag, value in (("-F", access.config), ("-i", access.identity)):
        words += [flag, str(Path(value).expanduser())] if value is not None else []
    words += ["-p", str(access.port)] if access.port is not None else []
    return [*words, name or access.address]


def comment(text: str) -> Iterator[str]:
    """`text` as lines that a shell passes over, also where a word of it holds a newline."""
    for line in text.split("\n"):
        yield f"#   {line}"


def comment_line(text: str) -> Iterator[str]:
    """`text` as a remark of the script's own, also where a name in it holds a newline."""
    for line in text.split("\n"):
        yield f"# {line}"


def end_of(text: str, end: str = _END) -> str:
    """A word that ends a here-document with `text` in it, since it is no line of it.

    dash 0.5.12 loses the first byte of a character outside ASCII that follows a beginning of this word at a line's
    start: there is no such line either.
    """
    lines = set(text.split("\n"))
    for head in ("", *string.ascii_letters):
        word = f"{head}{end}"
        if not any(_confused(line, word) for line in lines):
            return word
    while end in lines:
        end += "_"
    return end


def _confused(line: str, end: str) -> bool:
    """Whether a shell may take `line` for the end, or damage it while it looks."""
    pairs = zip(line, end, strict=False)
    alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return line == end or (0 < alike < len(line) and not line[alike].isascii())


def write(path: str, text: str) -> Iterator[str]:
    """Lines that write `text`, which ends with a newline, to `path`, a shell word already."""
    yield from _document(f"cat > {path}", text)


def show(text: str) -> Iterator[str]:
    """Lines that print `text`, which ends with a newline."""
    yield from _document("cat", text)


def _document(command: str, text: str) -> Iterator[str]:
    end = end_of(text)
    yield f"{command} <<'{end}'"
    yield from text.removesuffix("\n").split("\n")
    yield end
