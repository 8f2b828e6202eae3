"""Runs as rows of a listing: filter words, free text, sort keys."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cockpit.core.errors import UsageError, did_you_mean
from cockpit.core.events import State

_KEYS = ("id", "group", "profile", "server", "vendor", "state", "reason", "repeat", "tag")
_WORD = re.compile(r"(?P<key>[A-Za-z_][\w.]*)(?P<op>!?=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as a listing shows it. Times are wall clock in seconds; `size_by` is bytes on disk where it was asked."""

    id: str
    group: str = ""
    profile: str = ""
    server: str = ""
    vendor: str = ""
    state: str = ""
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    repeat: int = 0
    sweep: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    size_by: int | None = None

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end; None where either is unknown."""
        return None if self.started is None or self.ended is None else self.ended - self.started

    def to_json(self) -> dict[str, Any]:
        """The row as `runs --output json` prints it."""
        names = (*self.__dataclass_fields__, "duration_s")
        out = {name: getattr(self, name) for name in names}
        return {**out, "sweep": dict(self.sweep), "tags": list(self.tags)}


def row(meta: Mapping[str, Any]) -> RunRow:
    """The row of a run.json. Raises KeyError, TypeError or ValueError where it is none."""
    get = meta.get
    return RunRow(
        id=str(meta["id"]),
        group=str(get("group") or ""),
        profile=str(get("profile") or ""),
        server=str(get("server") or ""),
        vendor=str(get("vendor") or ""),
        state=str(get("state") or ""),
        reason=get("reason"),
        exit_code=get("exit_code"),
        signal=get("signal"),
        repeat=int(get("repeat") or 0),
        sweep={str(k): str(v) for k, v in (get("sweep") or {}).items()},
        tags=tuple(str(t) for t in get("tags") or ()),
        created=_seconds(get("created")),
        started=_seconds(get("started")),
        ended=_seconds(get("ended")),
    )


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value)


Test = Callable[[RunRow], bool]


def parse_filter(words: str | Iterable[str] | Mapping[str, str]) -> Test:
    """A test of rows: all words must hold.

    `key=value` and `key!=value` compare without case; the value may be a glob, and several with commas are
    alternatives. Keys are those of a row, `tag`, or a sweep's own (`training.learning_rate=1e-4`). Any other word is
    free text, found in id, profile, server, state, reason or a tag. Raises UsageError on an unknown key.
    """
    if isinstance(words, Mapping):
        words = [f"{key}={value}" for key, value in words.items()]
    elif isinstance(words, str):
        words = words.split()
    tests = [_test(word) for word in words if word]
    return lambda r: all(test(r) for test in tests)


def _test(word: str) -> Test:
    match = _WORD.fullmatch(word)
    if match is None:
        text = word.casefold()
        return lambda r: any(text in t.casefold() for t in _texts(r))
    key, negative = match["key"], match["op"] == "!="
    patterns = [p.casefold() for p in match["value"].split(",")]
    if key not in _KEYS and "." not in key:
        raise UsageError(f"a run has no {key!r} to filter by.", hint=did_you_mean(key, _KEYS))
    if key == "state":
        _check_states(match["value"].split(","))

    def holds(r: RunRow) -> bool:
        values = [v.casefold() for v in _values(r, key)]
        found = any(fnmatch.fnmatchcase(v, p) for v in values for p in patterns)
        return found is not negative

    return holds


def _check_states(patterns: Iterable[str]) -> None:
    """Raise UsageError on a state that no run can have: an empty list would read as good news."""
    names = [state.value for state in State]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern.upper()) for name in names):
            raise UsageError(f"no run can be in state {pattern!r}.", hint=did_you_mean(pattern.upper(), names))


def _values(r: RunRow, key: str) -> Sequence[str]:
    if key == "tag":
        return r.tags or ("",)
    if key in _KEYS:
        value = getattr(r, key)
        return ("" if value is None else str(value),)
    return (r.sweep.get(key, ""),)


def _texts(r: RunRow) -> Sequence[str]:
    return (r.id, r.profile, r.server, r.state, r.reason or "", *r.tags, *r.sweep.values())


_SORTS: dict[str, Callable[[RunRow], Any]] = {
    "created": lambda r: r.created,
    "started": lambda r: r.started,
    "ended": lambda r: r.ended,
    "duration": lambda r: r.duration_s,
    "id": lambda r: r.id,
    "group": lambda r: r.group,
    "profile": lambda r: r.profile,
    "server": lambda r: r.server,
    "vendor": lambda r: r.vendor,
    "state": lambda r: r.state,
    "repeat": lambda r: r.repeat,
    "size": lambda r: r.size_by,
}


def sort_rows(rows: Iterable[RunRow], key: str = "created", *, reverse: bool = False) -> list[RunRow]:
    """Rows by `key`, equal ones by id, the unknown ones last. Raises UsageError on an unknown key."""
    pick = _SORTS.get(key)
    if pick is None:
        raise UsageError(f"runs cannot be sorted by {key!r}.", hint=did_you_mean(key, _SORTS))
    rows = sorted(rows, key=lambda r: r.id, reverse=reverse)
    known = sorted((r for r in rows if pick(r) is not None), key=pick, reverse=reverse)
    return known + [r for r in rows if pick(r) is None]
