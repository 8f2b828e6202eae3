"""What a run made, brought home: by the profile's patterns, inside its limits, each file's checksum compared.

A server's names and sizes are its own word: a name may not lead out of the run's folder, and no file may be longer
than what is left of the bound.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, ServerError, StoreError
from cockpit.core.records import Limits
from cockpit.core.text import printable, size
from cockpit.core.within import within
from cockpit.hosts.base import ServerLost, ServerTimeout
from cockpit.store.errors import DiskFull

if TYPE_CHECKING:
    from cockpit.hosts.base import Entry, Host
    from cockpit.store.rundir import RunDir

_FETCH_TIMEOUT_S = 24 * 3600.0
_LIST_TIMEOUT_S = 600.0
_NOTE_S = 10.0  # between two notes of what is home
_MOST_SENTENCES = 5
# A name that this machine's disk cannot have, or has for something else: no reason to leave the others there.
_OF_A_NAME = (
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL, errno.EILSEQ,
)  # fmt: skip
# What a training goes on from, by the runners' own layouts, and what a killed one left half written: many times a
# model's size, and of use on its server.
_TO_GO_ON = ("checkpoints/**", "epoch-*/state/**", "step-*/state/**", ".*.part/**")
# Prints the SHA-256 of each file named on standard input, one a line, or `-`.
_SUMS = """
import hashlib, sys
for name in sys.stdin.buffer.read().split(b"\\0"):
    digest = hashlib.sha256()
    try:
        with open(name, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
        print(digest.hexdigest(), flush=True)
    except OSError:
        print("-", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which files come home: those that one of `patterns` names, together at most `max_by` bytes and `max_files`.

    `asked` says that a user named them for this time, over what a command's profile says of its artifacts. What a
    training goes on from comes only where a pattern that says more than `**` names it, or with `states`.
    """

    patterns: tuple[str, ...] = ("**",)
    max_by: int = Limits().fetch_by
    max_files: int = Limits().fetch_files
    asked: bool = False
    states: bool = False

    def names(self, path: str) -> bool:
        """Whether the file `path` of a run's folder is to come home, where there is room."""
        meant = self.states or not matches(path, _TO_GO_ON)
        return matches(path, self.patterns if meant else [p for p in self.patterns if p.strip("*/")])

    def of_run(self, config: Mapping[str, Any]) -> Wanted:
        """The same for one run: what its runner names as `artifacts`, unless a user asked for others."""
        own = tuple((config.get("runner") or {}).get("artifacts") or ())
        return replace(self, patterns=own) if own and not self.asked else self


@dataclass(frozen=True, slots=True)
class Source:
    """The folder `out` of a machine; its files come into `prefix` below the run's artifacts."""

    host: Host
    out: str
    prefix: str = ""


@dataclass(slots=True)
class Left:
    """What stayed on the server: (files, bytes) that no pattern names, that a training goes on from, and beyond the
    limits; and what failed.
    """

    unnamed: tuple[int, int] = (0, 0)
    states: tuple[int, int] = (0, 0)
    beyond: tuple[int, int] = (0, 0)
    sentences: list[str] = field(default_factory=list)

    def add(self, other: Left) -> None:
        """Count another run's too; its sentences are told at once and not kept."""
        self.unnamed = _both(self.unnamed, other.unnamed)
        self.states = _both(self.states, other.states)
        self.beyond = _both(self.beyond, other.beyond)

    @property
    def total(self) -> tuple[int, int]:
        """All files and bytes that stayed."""
        return _both(_both(self.unnamed, self.states), self.beyond)

    def told(self, server: str, group: str) -> list[str]:
        """A sentence each for what was left out on purpose, and how to get it."""
        out = []
        for (files, by), why, how in (
            (self.unnamed, "the profile's fetch patterns do not name", "--pattern '**'"),
            (self.states, "a training goes on from", "--pattern '**'"),
            (self.beyond, "are beyond limits.fetch_by or fetch_files", f"--max-size {_figure(self.beyond[1])}"),
        ):
            if files:
                out.append(
                    f"Left on {server}: {files} file{'s' if files > 1 else ''} of {size(by)} that {why}. "
                    f"`ekvi-cockpit fetch {group} {how}` brings them."
                )
        return out


def _both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _figure(by: int) -> str:
    return f"{max(1, -(-by // 10**9))}G"


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    """A shell pattern as an expression: `*` and `?` stay in one folder, `**` does not."""
    out = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^]/]+\])", text):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part)
        if known is None and part.startswith("[") and part.endswith("]"):
            inside, no = part[1:-1].removeprefix("!"), "^" if part[1] == "!" else ""
            known = f"[{no}{re.escape(inside).replace(chr(92) + '-', '-')}]"
        out.append(re.escape(part) if known is None else known)
    return re.compile("".join(out), re.DOTALL)


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns names `path`; one without a slash names files of that name in every folder."""
    name = path.rsplit("/", 1)[-1]
    return any(_pattern(p).fullmatch(path if "/" in p or "**" in p else name) for p in patterns)


def bad_name(path: str) -> bool:
    """Whether a server's name for a file would lead out of the folder, or be no name to show."""
    try:
        shown = os.fsencode(path).decode(errors="replace")  # bytes that are no text are a name all the same
    except UnicodeEncodeError:  # half a character, as JSON may spell it
        return True
    return path.startswith("/") or printable(shown) != shown or "\n" in path or "\t" in path or any(
        part in ("", ".", "..") for part in path.split("/")
    )  # fmt: skip


async def fetch(run_dir: RunDir, source: Source, wanted: Wanted, *, again: bool = True) -> Left:
    """Bring a folder's files home, and note each one's size and SHA-256 in run.json.

    A file that came home before, in the size that it has now, is fetched only where its checksum on the server is
    another one by now; without `again` it is passed over. Raises ServerLost where the link breaks, DiskFull where
    there is no room here, StoreError where it cannot be written.
    """
    left = Left()
    entries = await within(_LIST_TIMEOUT_S, source.host.listdir(source.out))
    chosen = _choose(run_dir, source, entries, wanted, left, again)
    arrived = _known(run_dir, source, chosen)
    old = [entry for entry in chosen if entry.path in arrived]
    # What is fetched now is summed at both ends on its way: only what is home already is asked for.
    asking = asyncio.ensure_future(_sums(source, old))
    try:
        await _arrive(run_dir, source, [entry for entry in chosen if entry.path not in arrived], left, arrived)
        there = await asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    changed = [entry for entry in old if there.get(entry.path, arrived[entry.path]) != arrived[entry.path]]
    for entry in changed:
        del arrived[entry.path]
    await _arrive(run_dir, source, changed, left, arrived)
    home: dict[str, Any] = {}
    for path, sha256 in arrived.items():
        name = source.prefix + path
        home[name] = {"by": run_dir.artifact(name).stat().st_size, "sha256": sha256}
    await _note(run_dir, home, gone={source.prefix + e.path for e in chosen} - set(home))
    return left


def _known(run_dir: RunDir, source: Source, chosen: Sequence[Entry]) -> dict[str, str]:
    """The SHA-256 of files that are home, as run.json says, in the size that they have on the server."""
    noted = run_dir.meta().get("artifacts") or {}
    found = {}
    for entry in chosen:
        name = source.prefix + entry.path
        before = noted.get(name) or {}
        if before.get("by") == entry.size and _home(run_dir, name, entry.size):
            found[entry.path] = before["sha256"]
    return found


async def _arrive(
    run_dir: RunDir, source: Source, entries: Sequence[Entry], left: Left, arrived: dict[str, str]
) -> None:
    """Bring files home, into `arrived` with their SHA-256. What a break or a kill interrupts goes on at its file."""
    fresh: dict[str, Any] = {}
    noted = time.monotonic()
    try:
        for entry in entries:
            if (got := await _get(run_dir, source, entry, left)) is not None:
                arrived[entry.path] = got
                fresh[source.prefix + entry.path] = {"by": entry.size, "sha256": got}
            if fresh and time.monotonic() - noted > _NOTE_S:
                await _note(run_dir, fresh)
                noted = time.monotonic()
    except (CockpitError, TimeoutError):
        await _note(run_dir, fresh)
        raise


async def _note(run_dir: RunDir, home: Mapping[str, Any], gone: Set[str] = frozenset()) -> None:
    """Note in run.json what is home, and forget what is not."""
    before = run_dir.meta().get("artifacts") or {}
    after = {k: v for k, v in before.items() if k not in gone} | dict(home)
    if after != before:
        await asyncio.to_thread(run_dir.update_meta, artifacts=after)


def _choose(
    run_dir: RunDir, source: Source, entries: Sequence[Entry], wanted: Wanted, left: Left, again: bool
) -> list[Entry]:
    chosen, room, files = [], wanted.max_by, wanted.max_files
    for entry in entries:
        if bad_name(entry.path):
            _fail(left, f"{entry.path!r} is no name for a file here.")
        elif not wanted.names(entry.path):
            if matches(entry.path, wanted.patterns):
                left.states = _both(left.states, (1, entry.size))
            else:
                left.unnamed = _both(left.unnamed, (1, entry.size))
        elif not again and _home(run_dir, source.prefix + entry.path, entry.size):
            continue
        elif entry.size > room or not files:
            left.beyond = _both(left.beyond, (1, entry.size))
        else:
            room, files = room - entry.size, files - 1
            chosen.append(entry)
    return chosen


def _home(run_dir: RunDir, path: str, by: int) -> bool:
    target = run_dir.artifacts / path
    return target.is_file() and target.stat().st_size == by


async def _get(run_dir: RunDir, source: Source, entry: Entry, left: Left) -> str | None:
    """The SHA-256 of a file that came home, or None."""
    try:
        target = run_dir.artifact(source.prefix + entry.path)
        path, most = f"{source.out}/{entry.path}", max(entry.size, 1)
        return await within(_FETCH_TIMEOUT_S, source.host.get(path, target, max_by=most))
    except StoreError as error:
        number = getattr(error.__cause__, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(error.message, hint=error.hint) from error
        if number not in _OF_A_NAME:
            raise
        _fail(left, str(error))
        return None
    except (ServerLost, ServerTimeout):  # the copy goes on where it was
        raise
    except ServerError as error:  # one file that cannot be read must not keep the rest from coming home
        _fail(left, str(error))
        return None


def _fail(left: Left, sentence: str) -> None:
    if len(left.sentences) < _MOST_SENTENCES:
        left.sentences.append(sentence)
    elif len(left.sentences) == _MOST_SENTENCES:
        left.sentences.append("and more.")


async def _sums(source: Source, entries: Sequence[Entry]) -> dict[str, str]:
    """What the server says of its files' checksums, while others travel; empty where it cannot."""
    if not entries:
        return {}
    names = b"\0".join(f"{source.out}/{e.path}".encode(errors="surrogateescape") for e in entries)
    try:
        argv = [source.host.access.python, "-I", "-c", _SUMS]
        done = await source.host.run(argv, input=names, timeout=_FETCH_TIMEOUT_S)
    except ServerError:
        return {}
    lines = done.stdout.decode(errors="replace").split()
    if done.rc != 0 or len(lines) != len(entries):
        return {}
    return {e.path: line for e, line in zip(entries, lines, strict=True) if line != "-"}
