"""The groups' own files in a runs folder: named, read, written, locked and removed."""

from __future__ import annotations

from pathlib import Path

from cockpit.core.errors import UsageError
from cockpit.store import layout
from cockpit.store.errors import explain, explained
from cockpit.store.files import read_json, write_json
from cockpit.store.lock import GroupLock
from cockpit.store.records import GroupRecord
from cockpit.store.resolve import nearest_id


class GroupFiles:
    """The groups below `root`. Names are checked: no id leads out of the folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / layout.GROUPS

    def path(self, ident: str) -> Path:
        """The file of a group. Raises UsageError on what is no id."""
        return self._folder / f"{layout.checked_id(ident)}.json"

    def has(self, ident: str) -> bool:
        """Whether there is such a group, by its full id."""
        return layout.is_id(ident) and self.path(ident).is_file()

    def ids(self) -> list[str]:
        """Every group's id, in order. Raises StoreError where the folder cannot be read."""
        try:
            names = [p.stem for p in self._folder.iterdir() if p.suffix == ".json"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, "read", self._folder) from error
        return sorted(name for name in names if layout.is_id(name))

    def read(self, ident: str) -> GroupRecord:
        """A group by its full id. Raises UsageError where there is none, StoreError where its file is damaged."""
        path = self.path(ident)
        try:
            return GroupRecord.from_json(read_json(path, layout.GROUP_SCHEMA), path)
        except FileNotFoundError:
            known = self.ids()
            raise UsageError(f"there is no group {ident!r} in {self._root}.", hint=nearest_id(ident, known)) from None

    def make_folder(self) -> None:
        """Make the runs folder and this one in it, where they are not there."""
        with explained("make the folder", self._folder):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # what runs print is their user's alone
            self._folder.mkdir(exist_ok=True)

    def write(self, record: GroupRecord) -> None:
        """Write a group's file, atomically."""
        write_json(self.path(record.id), layout.GROUP_SCHEMA, record.to_json())

    def lock(self, ident: str) -> GroupLock:
        """See Store.lock_group."""
        self.make_folder()
        return GroupLock(self.path(ident).with_suffix(".lock"), ident)

    def remove(self, ident: str) -> None:
        """Remove a group's file and its lock's."""
        path = self.path(ident)
        with explained("delete", path):
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
