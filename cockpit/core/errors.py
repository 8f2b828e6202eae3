"""The one tree of errors that a user can cause; each is one clear sentence and an exit code.

CockpitError                 exit 1
├── UsageError               exit 2   the command line, a profile, an id
│   └── ConfigError          exit 2   says file and line
├── StoreError               exit 2   a runs folder that cannot be read or written, a newer schema
├── ServerError              exit 3   a server unreachable, a launch refused
│   └── LaunchRefused        exit 3
└── ComparisonRefused        exit 4   --strict
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

_LISTED = 120  # characters of names that a hint may list


class Exit(IntEnum):
    """Exit codes of every command; of several the largest below 130 wins."""

    OK = 0
    RUN_FAILED = 1
    USAGE = 2
    SERVER = 3
    REFUSED = 4
    SLOWER = 5
    INTERRUPTED = 130


class CockpitError(Exception):
    """Base of all errors shown to a user as one sentence.

    `hint` says how to fix it and is printed after the sentence.
    """

    exit_code: Exit = Exit.RUN_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class UsageError(CockpitError):
    """Something on the command line that cannot be done."""

    exit_code = Exit.USAGE


class ConfigError(UsageError):
    """A profile, server file or override that cannot be used; names where."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: Path | str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        where = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.file = Path(file) if file is not None else None
        self.line = line
        self.column = column


class StoreError(CockpitError):
    """A runs folder or a file in it that cannot be used."""

    exit_code = Exit.USAGE


class ServerError(CockpitError):
    """A server that cannot be reached or does not answer as it should."""

    exit_code = Exit.SERVER


class LaunchRefused(ServerError):
    """A launch that is refused before anything was started."""


class ComparisonRefused(CockpitError):
    """An unfair comparison under --strict."""

    exit_code = Exit.REFUSED


def nearest(word: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Names that a user may have meant, best first; empty where nothing is near."""
    return difflib.get_close_matches(word, list(known), n=limit, cutoff=0.5)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint sentence with the nearest names, or with all of them where that is short, else None."""
    names = sorted(set(known))
    close = nearest(word, names)
    if close:
        return f"Did you mean {' or '.join(repr(n) for n in close)}?"
    listed = ", ".join(names)
    if names and len(listed) <= _LISTED:
        return f"Known: {listed}."
    return None
