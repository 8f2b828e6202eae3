"""Words of the command line: `SERVER:` cut off, and sweeps expanded as Hydra's own basic sweeper expands them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runners.compose import Origin, Word

if TYPE_CHECKING:
    from runners.compose import Composer

MAX_POINTS = 10_000
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
    """Each point's words and the values that it takes from the sweeps, in the order of Hydra's basic sweeper.

    The last word that sets a key replaces an earlier sweep over it, in whose place it then varies. Raises
    ComposeError on interval(), on a sweep without values and on more than MAX_POINTS points.
    """
    last = {_identity(word): at for at, word in enumerate(words)}
    order = {key: None for key in map(_identity, words) if words[last[key]].is_sweep}
    values = {key: _values(words[last[key]]) for key in order}
    size = 1
    for key in order:
        size *= len(values[key])
        if size > MAX_POINTS:
            raise words[last[key]].error(
                f"the sweep has more than {MAX_POINTS:,} points.", "Sweep over fewer values."
            )
    points = []
    for combination in itertools.product(*(values[key] for key in order)):
        picked = dict(zip(order, combination, strict=True))
        out: list[Word] = []
        for at, word in enumerate(words):
            key = _identity(word)
            if at == last[key] and key in picked:
                out += composer.parse([f"{_prefix(word)}{word.choice}={picked[key][0]}"])
            elif not word.is_sweep:
                out.append(word)
        points.append((tuple(out), {words[last[key]].choice: shown for key, (_, shown) in picked.items()}))
    return points


def _identity(word: Word) -> tuple[bool, str]:
    return word.kind == "delete", word.choice


def _prefix(word: Word) -> str:
    return {"set": "", "add": "+", "force": "++", "delete": "~"}[word.kind]


def _values(word: Word) -> list[tuple[str, str]]:
    """What a sweep runs through: each value in Hydra's grammar, and as text to show."""
    if word.path[0] in GROUP_KEYS:
        raise word.error(f"{word.key} is of the whole group and cannot vary in it.")
    if word.override.is_interval_sweep():
        raise word.error(
            "interval() names no values to run.", "Write choice(A,B,...) or range(START,STOP,STEP) instead."
        )
    if word.override.value_type.name == "GLOB_CHOICE_SWEEP" and not word.is_group:
        raise word.error(f"glob() chooses files of a config group, and {word.key} is none.")
    try:
        out = [(_grammar(word, value), _shown(word, value)) for value in _iterate(word)]
    except (ValueError, TypeError, ArithmeticError):
        raise word.error(
            "the range cannot be counted.", "Write range(START,STOP,STEP) with a STEP other than 0."
        ) from None
    if not out:
        raise word.error("the sweep has no values.")
    return out


def _iterate(word: Word) -> Iterator[Any]:
    from hydra.errors import HydraException

    try:
        values = list(itertools.islice(word.override.sweep_iterator(), MAX_POINTS + 1))
    except HydraException:
        raise ValueError from None
    if len(values) > MAX_POINTS:
        raise word.error(f"the sweep has more than {MAX_POINTS:,} points.", "Sweep over fewer values.")
    yield from values


def _grammar(word: Word, value: Any) -> str:
    return str(type(word.override)._get_value_element_as_str(value))


def _shown(word: Word, value: Any) -> str:
    text = getattr(value, "text", value)  # a quoted string without its quotes
    return text if isinstance(text, str) else _grammar(word, value)
