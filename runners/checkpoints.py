"""The folder of a run's checkpoints: `step-<N>/` complete or absent, and `latest`, a file with the newest one's name.

A checkpoint is written into a hidden folder beside, flushed to the disk, and renamed; only then `latest` is replaced,
and only then an old one goes. So whatever is killed when, `latest` names a whole one. No torch here.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runners.errors import ConfigurationError

SCHEMA = "ekvi.checkpoint/1"
LATEST = "latest"
ABOUT = "checkpoint.json"  # what a checkpoint is of; written last
_SHAPE = ("architecture", "layers", "hidden", "heads", "kv_heads", "ffn", "tied_embeddings", "qkv_bias")
_STEP = re.compile(r"step-(\d+)")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# How torch's writer of tensors says that the disk took fewer bytes than it gave.
_FULL_SAID = re.compile(r"PytorchStreamWriter failed|file write failed|unexpected pos \d+ vs \d+|No space left")


def name_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step}"


class Shelf:
    """One folder of checkpoints. Everything that writes here is called by one process of the run, the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Where the checkpoint of `step` stands, or would."""
        return self.folder / name_of(step)

    def steps(self) -> list[int]:
        """The iterations of which a whole checkpoint stands here, rising."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        return sorted(int(found[1]) for name in names if (found := _STEP.fullmatch(name)))

    def clear(self) -> None:
        """Remove what a killed process left half written or half removed."""
        for stale in (*self.folder.glob(".step-*.part"), *self.folder.glob(".step-*.gone")):
            shutil.rmtree(stale, ignore_errors=True)
        with suppress(OSError):
            (self.folder / f".{LATEST}.part").unlink(missing_ok=True)

    def begin(self, step: int) -> Path:
        """An empty hidden folder for the checkpoint of `step`. Raises OSError where it cannot be made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clear()
        part = self.folder / f".{name_of(step)}.part"
        part.mkdir()
        return part

    def commit(self, part: Path, step: int, about: dict[str, Any]) -> Path:
        """Put the written `part` in its place and name it the latest; its path.

        Raises OSError where that cannot be done: then the checkpoints from before are as they were.
        """
        (part / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        _flush(part / ABOUT)  # whoever wrote the others has flushed them
        _flush(part)
        target = self.path(step)
        if target.exists():  # of a training that went on from before it
            self._remove(target)
        os.rename(part, target)
        _flush(self.folder)
        self._name(target)
        return target

    def _name(self, target: Path) -> None:
        """Have `latest` name `target`."""
        hidden = self.folder / f".{LATEST}.part"
        hidden.write_text(target.name + "\n")
        _flush(hidden)
        os.replace(hidden, self.folder / LATEST)
        _flush(self.folder)

    def prune(self, step: int, keep: int) -> None:
        """Remove the checkpoints before `step` but for the `keep` - 1 newest of them. Later ones are of another
        course, and stay.
        """
        older = [s for s in self.steps() if s < step]
        for s in older[: max(0, len(older) - (keep - 1))]:
            self._remove(self.path(s))

    def withdraw(self, step: int, back_to: Path | None) -> None:
        """Take the checkpoint of `step` away: it proved no good. `latest` names `back_to`, where that is one of here;
        what else stands here is of another course.
        """
        if back_to is not None and back_to.parent == self.folder:
            self._name(back_to)
        else:
            (self.folder / LATEST).unlink(missing_ok=True)
        self._remove(self.path(step))

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint: hidden first, so that it is never there in part."""
        gone = self.folder / f".{path.name}.gone"
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def latest(self) -> Path | None:
        """The checkpoint that `latest` names, or None where nothing was ever saved here.

        Raises ConfigurationError where it names one that is not there: a user removed it.
        """
        try:
            name = (self.folder / LATEST).read_text().strip()
        except OSError:
            return None
        path = self.folder / name
        if not _STEP.fullmatch(name) or not (path / ABOUT).is_file():
            whole = self.steps()
            hint = f"Set training.checkpoint.resume={self.path(whole[-1])}" if whole else f"Remove {self.folder}"
            raise ConfigurationError(
                f"{self.folder / LATEST} names {name[:80]!r}, which is not a whole checkpoint there.",
                hint=f"{hint}, or training.checkpoint.resume=never.",
                every_rank=True,
            )
        return path


def find(resume: str, shelf: Shelf) -> Path | None:
    """The checkpoint that `training.checkpoint.resume` stands for: None for never, and for auto without one.

    A folder may be a checkpoint or hold a `latest`. Raises ConfigurationError for one that is neither.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return shelf.latest()
    folder = Path(os.path.abspath(os.path.expanduser(resume)))
    if (folder / ABOUT).is_file():
        return folder
    for place in (folder, folder / "checkpoints"):
        found = Shelf(place).latest()
        if found is not None:
            return found
    what = "holds no checkpoint" if folder.is_dir() else "does not exist"
    raise ConfigurationError(
        f"training.checkpoint.resume={resume}: {folder} {what}.",
        hint="Name a step-N folder, or the folder with `latest` in it.",
        every_rank=True,
    )


def about(path: Path) -> dict[str, Any]:
    """What the checkpoint at `path` says of itself; ConfigurationError where it cannot be read."""
    try:
        told = json.loads((path / ABOUT).read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path / ABOUT} cannot be read: {why}.", every_rank=True) from error
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        raise ConfigurationError(f"{path / ABOUT} is not of {SCHEMA}, the only one known here.", every_rank=True)
    return told


def refuse_other_model(path: Path, told: Mapping[str, Any], model: Mapping[str, Any], words: int) -> None:
    """Raise ConfigurationError that names the first key in which the checkpoint at `path` is of another shape.

    `told` is its `about`, `model` this run's section of the configuration, `words` its vocabulary before padding.
    """
    saved = told["config"]["model"]
    keys = [key for key in _SHAPE if key in saved and key in model]
    if "gpt" in (model.get("architecture"), saved.get("architecture")):
        keys.append("max_sequence")  # its positions are weights
    pairs = [(key, saved.get(key), model.get(key)) for key in keys]
    for key, before, now in [*pairs, ("vocab", told["words"], words)]:
        if before != now:
            raise ConfigurationError(
                f"the checkpoint {path} has model.{key}={_said(before)}, this run has model.{key}={_said(now)}.",
                hint="Train the model it is of, or set training.checkpoint.resume=never.",
                every_rank=True,
            )


def refuse_later(path: Path, step: int, iterations: int) -> None:
    """Raise ConfigurationError for a checkpoint of an iteration that this training does not have."""
    if step > iterations:
        raise ConfigurationError(
            f"the checkpoint {path} is of iteration {step}, but training.train_iters is {iterations}.",
            hint=f"Set training.train_iters to {step} or more, or training.checkpoint.resume=never.",
            every_rank=True,
        )


def drifted(told: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys of `course`, that decide which samples a step has, in which `told`'s differs from `now`."""
    before = told.get("course") or {}
    return [f"{key} ({_said(before[key])}, now {_said(now[key])})" for key in now if before.get(key) != now[key]]


def _said(value: Any) -> str:
    return value[:12] if isinstance(value, str) else json.dumps(value)


def size_by(path: Path) -> int:
    """Bytes of all files below `path`."""
    return sum(Path(root, name).stat().st_size for root, _folders, names in os.walk(path) for name in names)


def is_full(error: BaseException) -> bool:
    """Whether a disk without room is behind `error`, or behind what it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if isinstance(seen, RuntimeError) and _FULL_SAID.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _flush(path: Path) -> None:
    """Have the disk hold a file's content, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
