"""stage=purge: empties the output folder and the cache, and nothing else; says first what it removes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from runners.errors import ConfigurationError, RunnerError
from runners.stages import Context, Outcome


def run(context: Context) -> Outcome:
    """Remove what lies below $EKVI_OUT and $EKVI_CACHE; with `purge.dry_run=true` only list it."""
    if not context.process.first:
        return Outcome("skipped")
    doomed = [
        entry
        for name, folder in (("EKVI_OUT", context.folders.out), ("EKVI_CACHE", context.folders.cache))
        for entry in entries(name, folder)
    ]
    if not doomed:
        return Outcome("skipped", "nothing to remove")
    verb = "would remove" if context.dry_run else "removing"
    for path in doomed:
        print(f"{verb} {path} ({_size(path)} bytes)", flush=True)
    if context.dry_run:
        return Outcome("skipped", f"{len(doomed)} entries would be removed")
    for path in doomed:
        _remove(path)
    return Outcome("done", f"{len(doomed)} entries removed")


def entries(name: str, folder: Path) -> list[Path]:
    """What lies directly in `folder`, sorted; none where it does not exist.

    Raises ConfigurationError where the folder holds the working folder or the home folder: a slip in an
    environment variable must not cost a user their files.
    """
    real = Path(os.path.realpath(folder))
    for what, keep in (("the working folder", Path.cwd()), ("the home folder", Path.home())):
        kept = Path(os.path.realpath(keep))
        if kept == real or real in kept.parents:
            raise ConfigurationError(
                f"{name}={folder} holds {what} {keep}, so purging it is refused.",
                hint="Point it at a folder of its own.",
            )
    try:
        return sorted(real.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunnerError(f"{name}={folder} cannot be listed: {error.strerror}.") from error


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RunnerError(f"{error.filename or path} cannot be removed: {error.strerror}.") from error


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(Path(root, name).lstat().st_size for root, _folders, names in os.walk(path) for name in names)
