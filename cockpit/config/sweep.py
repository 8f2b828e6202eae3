"""Words of the command line: `SERVER:` cut off, and sweeps, in which what is of the whole group cannot vary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runners import sweep
from runners.compose import Origin, Word

if TYPE_CHECKING:
    from runners.compose import Composer

GROUP_KEYS = ("description", "repeats", "stage", "theme")  # of the whole group: no sweep and no server changes them
_ADDRESSED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*):([^:].*|)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Addressed:
    """A word for one server, `text` without the prefix."""

    server: str
    text: str
    origin: Origin


def split(words: Sequence[str]) -> tuple[list[str], list[Addressed]]:
    """Words for all servers, and those for one: `SERVER:` stands before any "="."""
    common, addressed = [], []
    for word in words:
        head = word.split("=", 1)[0]
        found = _ADDRESSED.fullmatch(word) if ":" in head else None
        if found:
            addressed.append(Addressed(found[1], found[2], Origin(word)))
        else:
            common.append(word)
    return common, addressed


def refuse_sweeps(words: Sequence[Word], why: str, hint: str | None) -> None:
    """Raise ComposeError on the first word that names several values."""
    for word in words:
        if word.is_sweep:
            raise word.error(why, hint)


def expand(composer: Composer, words: Sequence[Word]) -> list[tuple[tuple[Word, ...], dict[str, str]]]:
    """Each point's words and the values that it takes from the sweeps (`runners.sweep.expand`)."""
    return sweep.expand(composer, words, fixed=GROUP_KEYS)
