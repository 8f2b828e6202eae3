"""Words and files as a POSIX shell reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

PLACES = ("RUN_DIR", "OUT_DIR", "CODE_DIR", "CACHE_DIR", "WORK_DIR")  # what the agent fills in
_PLACE = re.compile(r"(\$\{(?:" + "|".join(PLACES) + r")\})")
_END = "EKVI_END"

quote = shlex.quote


def fill(word: str) -> str:
    """A word in which the agent's places stay variables for the shell, and all else means itself."""
    parts = [f'"{part}"' if _PLACE.fullmatch(part) else quote(part) for part in _PLACE.split(word) if part]
    return "".join(parts) or "''"


def comment(text: str) -> Iterator[str]:
    """`text` as lines that a shell passes over, also where a word of it holds a newline."""
    for line in text.split("\n"):
        yield f"#   {line}"


def write(path: str, text: str) -> Iterator[str]:
    """Lines that write `text`, which ends with a newline, to `path`, a shell word already."""
    end = _END
    while end in text.split("\n"):
        end += "_"
    yield f"cat > {path} <<'{end}'"
    yield from text.removesuffix("\n").split("\n")
    yield end
