"""Override words: Hydra's grammar, read by Hydra's own parser and checked against the configuration's schema.

A word is what a user types (`training.learning_rate=1e-3`, `model=tiny`, `~data.paths`). It is checked before Hydra
composes anything, so that a key needs no `+` if only the schema knows it, and an unknown one gets its nearest name.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from pydantic import BaseModel

from runners.errors import ConfigurationError

Kind = Literal["set", "add", "force", "delete"]
_KINDS: dict[OverrideType, Kind] = {
    OverrideType.CHANGE: "set",
    OverrideType.ADD: "add",
    OverrideType.FORCE_ADD: "force",
    OverrideType.DEL: "delete",
}
# Hydra's grammar has no key element that begins with a digit, yet a server may be called 8xh200.
_DIGIT_SERVER = re.compile(r"(?<![\w.$-])servers\.(?=\d)")
MARK = "$"
_ENV = re.compile(r"(\benv(?:\.\w+)*\s*[=:]).+")  # values of environment variables are not repeated
_KEY = re.compile(r"(~|\+{0,2})[\w$][\w$./@-]*")


class ComposeError(ConfigurationError):
    """A configuration that cannot be composed or does not fit its schema.

    `file`, `line` and `column` (both from 1) say where it stands, None where that is the command line.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: Path | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint, every_rank=True)
        self.file = file
        self.line = line
        self.column = column

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = super().__str__()
        return f"{where}: {text}" if where else text


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a word was said: `shown` as the user wrote it, on the command line unless `file` is given."""

    shown: str
    file: Path | None = None
    line: int | None = None

    def error(self, message: str, hint: str | None = None) -> ComposeError:
        """`message` with the word and the place that it stands at."""
        shown = _ENV.sub(r"\1...", self.shown)
        place = f"override {shown!r}" if self.file else f"on the command line, {shown!r}"
        return ComposeError(f"{place}: {message}", hint=hint, file=self.file, line=self.line)


@dataclass(frozen=True, slots=True)
class Word:
    """One override. `key` is a dotted key or a group, `value` as Hydra reads it (None for a sweep)."""

    origin: Origin
    key: str
    package: str | None
    kind: Kind
    text: str  # what follows "=", as typed
    value: Any
    is_group: bool
    override: Override

    @property
    def is_sweep(self) -> bool:
        """Whether the word names several values."""
        return bool(self.override.is_sweep_override())

    @property
    def choice(self) -> str:
        """A group's key as a defaults list names it: `group@package`, or `group` where that is its own place."""
        if self.package is None or self.package == self.key.replace("/", "."):
            return self.key
        return f"{self.key}@{self.package}"

    @property
    def path(self) -> tuple[str, ...]:
        """The key's elements, without the mark of a server whose name begins with a digit."""
        return tuple(part.removeprefix(MARK) for part in self.key.split("."))

    def error(self, message: str, hint: str | None = None) -> ComposeError:
        """An error that names this word."""
        return self.origin.error(message, hint)


def parse(text: str, groups: Callable[[str], bool], origin: Origin | None = None) -> Word:
    """The word that `text` is; `groups` says whether a name is a config group. Raises ComposeError."""
    origin = origin or Origin(text)
    if "=" not in text and not text.startswith("~"):
        raise origin.error("an override needs a '='.", "Write KEY=VALUE, or ~KEY to delete one.")
    if not _KEY.match(text):
        raise origin.error("there is no key before the '='." if "=" in text else "there is no key.", _KEYS)
    marked = _DIGIT_SERVER.sub(f"servers.{MARK}", text.split("=", 1)[0]) + text[len(text.split("=", 1)[0]) :]
    try:
        override = OverridesParser.create().parse_override(marked)
    except HydraException as error:
        raise _unreadable(text, origin, error) from None
    except (ValueError, TypeError, AssertionError):
        raise origin.error("the value cannot be read.", _QUOTE) from None
    value = None if override.is_sweep_override() else override.value()
    return Word(
        origin=origin,
        key=override.key_or_group,
        package=override.package,
        kind=_KINDS[override.type],
        text=marked.split("=", 1)[1] if "=" in marked else "",
        value=value,
        is_group=not isinstance(value, dict) and groups(override.key_or_group),
        override=override,
    )


_KEYS = "Keys are names with dots between, as training.learning_rate."
_QUOTE = "Quote a text that holds special characters: KEY='VALUE' (and once more for your shell)."


def _unreadable(text: str, origin: Origin, error: HydraException) -> ComposeError:
    """Say where Hydra's parser stopped; its own words speak of tokens."""
    key = text.split("=", 1)[0]
    if not _KEY.fullmatch(key):
        return origin.error(f"{key!r} is not a key.", _KEYS)
    call = re.match(r"\s*([A-Za-z_]\w*)\s*\(", text.split("=", 1)[-1])
    if call and call[1] not in _FUNCTIONS:
        return origin.error(f"there is no function {call[1]}().", did_you_mean(call[1], _FUNCTIONS))
    if call:
        return origin.error(f"{call[1]}() does not take these arguments.", _USAGE.get(call[1]))
    cause = error.__cause__ or error.__context__
    token = getattr(cause, "offendingToken", None)
    column = getattr(token, "column", getattr(cause, "startIndex", None))
    where = f" near column {column + 1}" if isinstance(column, int) else ""
    return origin.error(f"the override cannot be read{where}.", _QUOTE)


_FUNCTIONS = ("choice", "range", "glob", "sort", "shuffle", "interval", "int", "float", "str", "bool", "tag")
_USAGE = {
    "range": "Write range(START,STOP,STEP) with numbers.",
    "choice": "Write choice(VALUE,VALUE,...).",
    "glob": "Write glob(PATTERN), or glob([PATTERN,...],exclude=[PATTERN,...]).",
}


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint with the nearest of the known names, or with all of them where they are few, else None."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(repr(name) for name in close)}?"
    return f"Known: {', '.join(names)}." if 0 < len(names) <= 12 else None


# -- keys ---------------------------------------------------------------------------------------------------------


def check_key(word: Word, schema: type[BaseModel]) -> None:
    """Raise ComposeError with the nearest key unless `schema` knows the word's key."""
    if word.is_group:
        return
    if word.package is not None:
        raise word.error(f"{word.key!r} is no config group, so '@{word.package}' cannot stand behind it.")
    if word.path[0] == "hydra":
        raise word.error("Hydra's own settings do nothing here.", "Leave the word out.")
    known: Any = schema
    for depth, part in enumerate(word.path):
        below = list(_below(known))
        names = {name for names, _ in below for name in names}
        fits = [child for members, child in below if part in members or "*" in members]
        if not fits:
            raise word.error(unknown_key(word.path[: depth + 1], names, schema), near_key(word.path, depth, schema))
        known = Union[tuple(fits)] if len(fits) > 1 else fits[0]  # noqa: UP007  (built at run time)


def unknown_key(path: tuple[str, ...], names: Iterable[str], schema: type[BaseModel]) -> str:
    """The sentence for a key that is not there; `names` are its known siblings."""
    if not list(names):
        return f"unknown key {'.'.join(path)!r}: {'.'.join(path[:-1])!r} is a value and has no keys."
    return f"unknown key {'.'.join(path)!r}."


def near_key(path: tuple[str, ...], depth: int, schema: type[BaseModel]) -> str | None:
    """The hint with the nearest key: a sibling, else the same or a near name anywhere in the schema."""
    keys = list(all_keys(schema))
    parent = path[:depth]
    siblings = sorted({key[depth] for key in keys if len(key) > depth and _fits(key[:depth], parent)} - {"*"})
    leaf = path[-1]
    exact = [".".join(key) for key in keys if key[-1] == leaf and "*" not in key]
    close = difflib.get_close_matches(path[depth], siblings, n=1, cutoff=0.8 if exact else 0.6)
    if close:
        return f"Did you mean {'.'.join((*parent, close[0]))!r}?"
    if exact:
        return f"Did you mean {' or '.join(repr(key) for key in exact[:3])}?"
    if depth == 0:
        by_leaf = {key[-1]: ".".join(key) for key in reversed(keys) if "*" not in key}
        close = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.75)
        if close:
            return f"Did you mean {by_leaf[close[0]]!r}?"
    return f"Known here: {', '.join(siblings)}." if 0 < len(siblings) <= 24 else None


def _fits(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(p in ("*", q) for p, q in zip(pattern, path, strict=True))


def all_keys(schema: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Every key of `schema`, parents before children; "*" stands for a name that the user chooses."""
    for names, child in _below(schema):
        for name in names:
            yield (name,)
            yield from ((name, *rest) for rest in all_keys(child))


def _below(known: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What may stand below a type: names (or "*") and the type under each."""
    origin = get_origin(known)
    if origin is Annotated:
        yield from _below(get_args(known)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(known):
            yield from _below(member)
    elif isinstance(known, type) and issubclass(known, BaseModel):
        for name, field in known.model_fields.items():
            yield (name,), field.annotation
    elif origin is dict:
        yield ("*",), get_args(known)[1]
    elif origin in (tuple, list):
        yield ("*",), get_args(known)[0]  # an index
