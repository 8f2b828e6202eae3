"""Sweeps (`--multirun training.learning_rate=1e-4,3e-4`), expanded as Hydra's own basic sweeper expands them.

The cockpit makes a side of each point; `python -m runners --multirun` works them off one after another, each in a
process and a folder of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import wire
from runners.compose import DEFAULT_GROUPS, Composer, Word, shipped_folder, user_folder
from runners.errors import RunnerError, writing
from runners.schema import RunConfig

MAX_POINTS = 10_000
_NAME_BY = 200  # of a folder; file systems take 255
_UNSAFE = re.compile(r"[^\w.,=+-]+")


def expand(
    composer: Composer, words: Sequence[Word], fixed: Sequence[str] = ()
) -> list[tuple[tuple[Word, ...], dict[str, str]]]:
    """Each point's words and the values that it takes from the sweeps, in the order of Hydra's basic sweeper.

    No key of `fixed` may vary. The last word that sets a key replaces an earlier sweep over it, in whose place it
    then varies. Raises ComposeError on interval(), on a sweep without values and on more than MAX_POINTS points.
    """
    for word in words:
        if word.is_sweep and word.path[0] in fixed:
            raise word.error(f"{word.key} is of the whole group and cannot vary in it.")
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


# -- python -m runners --multirun


@dataclass(frozen=True)
class Point:
    """One configuration of a sweep; `sweep` maps the swept keys to their values as text."""

    config: RunConfig
    sweep: Mapping[str, str]

    @property
    def name(self) -> str:
        """`training.learning_rate=1e-4,training.seed=2` as a folder may be called; empty where nothing varies."""
        return _UNSAFE.sub("_", ",".join(f"{key}={value}" for key, value in self.sweep.items()))[:_NAME_BY]


def points(words: Sequence[str], folders: Sequence[Path] | None = None) -> list[Point]:
    """The points of `python -m runners --multirun WORD...`, all composed and checked; raises ComposeError.

    `folders` stand in place of the user's and the shipped profiles, as for compose.compose_run.
    """
    own = user_folder()
    with Composer(folders or [*([own] if own.is_dir() else []), shipped_folder()], RunConfig) as composer:
        given = composer.parse(words)
        chosen = {w.key for w in given if w.is_group}
        rest = composer.parse([f"{group}={name}" for group, name in DEFAULT_GROUPS.items() if group not in chosen])
        return [
            Point(composer.validate(composer.compose(None, [*rest, *some]), RunConfig), sweep)
            for some, sweep in expand(composer, given)
        ]


def run(found: Sequence[Point], stage: str, out: Path) -> None:
    """Work the points off, each in a process of its own with a folder below `out` as its $EKVI_OUT.

    A point that fails costs none of those after it. Raises RunnerError in the end, with the worst exit code.
    """
    failed: dict[str, int] = {}
    for number, (folder, point) in enumerate(_places(found, out), 1):
        message = f"point {number} of {len(found)}: {point.name or 'nothing varies'}"
        data = {"sweep": dict(point.sweep), "folder": str(folder)}
        wire.emit("diagnostic", level="info", code="point", message=message, data=data)
        path = folder / "config.json"
        with writing(str(path)):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(point.config.model_dump(mode="json"), indent=1) + "\n")
        words = [sys.executable, "-m", "runners", "--config", str(path), f"stage={stage}"]
        code = subprocess.run(words, env={**os.environ, "EKVI_OUT": str(folder)}, check=False).returncode
        if code:
            failed[point.name or str(number)] = code
    if failed:
        which = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
        error = RunnerError(f"{len(failed)} of {len(found)} points failed: {which}.", hint="Each says why, above.")
        error.exit_code = max(code if code > 0 else 1 for code in failed.values())
        raise error


def _places(found: Sequence[Point], out: Path) -> Iterator[tuple[Path, Point]]:
    """Each point with its folder; names that came out alike are numbered."""
    seen: dict[str, int] = {}
    for point in found:
        count = seen[point.name] = seen.get(point.name, 0) + 1
        yield out / (point.name if count == 1 else f"{point.name}.{count}"), point
