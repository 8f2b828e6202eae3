"""Runs that are made from files rather than followed: built out of sight, and shown when all of them are whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.core.errors import StoreError
from cockpit.store import layout
from cockpit.store.errors import explained
from cockpit.store.files import sync_folder
from cockpit.store.groups import GroupFiles
from cockpit.store.rundir import RunDir

if TYPE_CHECKING:
    from cockpit.store.records import GroupRecord

_PREFIX = ".import-"  # no id begins with a dot, so no listing sees it


class Staging:
    """A folder in which the runs of one group are built."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder

    def run_dir(self, run: str) -> RunDir:
        """The directory of a new run. Raises UsageError on what is no id, DiskFull or StoreError."""
        path = self._folder / layout.checked_id(run)
        with explained("make the folder", path):
            path.mkdir()
        return RunDir(path)

    def keep(self, record: GroupRecord) -> None:
        """Move the record's runs to their place and write the group. Raises DiskFull or StoreError."""
        moved: list[Path] = []
        try:
            for run in record.runs:
                moved.append(self._move(run))
            GroupFiles(self._root).write(record)  # last, so that a group that can be seen is whole
        except BaseException:
            for target in moved:
                shutil.rmtree(target, ignore_errors=True)
            raise
        sync_folder(self._root)

    def _move(self, run: str) -> Path:
        target = self._root / run
        if target.exists():
            raise StoreError(f"{target} is there already: a run's id is used once.")
        with explained("move the run to", target):
            (self._folder / run).rename(target)
        return target


@contextlib.contextmanager
def staging(root: Path, group: str) -> Iterator[Staging]:
    """Build the runs of `group` below `root`; what was not kept is gone at the end, and so is what a crash left.

    Raises DiskFull or StoreError.
    """
    GroupFiles(root).make_folder()
    _sweep(root)
    folder = root / f"{_PREFIX}{layout.checked_id(group)}"
    with explained("make the folder", folder):
        folder.mkdir()
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield Staging(root, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _sweep(root: Path) -> None:
    """Remove folders whose process is gone."""
    for left in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)
