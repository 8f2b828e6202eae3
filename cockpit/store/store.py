"""The runs folder as a whole: groups and runs, listed, found by id, tagged, deleted."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from cockpit.core.errors import StoreError, UsageError
from cockpit.core.events import State
from cockpit.core.records import GroupPlan
from cockpit.store import folders, layout
from cockpit.store.errors import DiskFull, explain, explained
from cockpit.store.groups import GroupFiles
from cockpit.store.layout import runs_root
from cockpit.store.lock import GroupLock
from cockpit.store.records import GroupRecord, group_plan, group_record, run_meta
from cockpit.store.resolve import LAST, Resolved, Want, nearest_id, resolve
from cockpit.store.rows import RunRow, parse_filter, sort_rows
from cockpit.store.rundir import RunDir

__all__ = ["DiskFull", "GroupRecord", "Resolved", "RunRow", "Store", "runs_root"]

_TAG = re.compile(r"[A-Za-z0-9][\w.:+-]{0,63}")
_LIVE = {s.value for s in State if not s.ended} - {State.PLANNED.value}


class Store:
    """A runs folder. `readonly` opens one that is not ours to change: no lock, no index, nothing written."""

    def __init__(self, root: Path | str, *, readonly: bool = False) -> None:
        self.root = Path(root)
        self.readonly = readonly
        self._groups = GroupFiles(self.root)
        self.problems: tuple[StoreError, ...] = ()  # what the last listing could not read
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def open_readonly(cls, path: Path | str) -> Self:
        """A recorded runs folder, or a zip file of one, for replay and comparison.

        A zip is unpacked into a temporary folder that `close` removes. Raises StoreError where there is none.
        """
        path = Path(path)
        if path.is_dir():
            return cls(path, readonly=True)
        temporary = tempfile.TemporaryDirectory(prefix="ekvi-", ignore_cleanup_errors=True)
        try:
            folders.unpack(path, Path(temporary.name))
        except BaseException:
            temporary.cleanup()
            raise
        inner = list(Path(temporary.name).iterdir())
        lone = len(inner) == 1 and inner[0].is_dir() and (inner[0] / layout.GROUPS).is_dir()
        store = cls(inner[0] if lone else Path(temporary.name), readonly=True)
        store._temporary = temporary
        return store

    def close(self) -> None:
        """Remove what was unpacked. May be called twice."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- making

    def create(
        self,
        plan: GroupPlan,
        provenance: Mapping[str, Mapping[str, Any]],
        *,
        queues: Iterable[Mapping[str, Any]] = (),
        totals: Mapping[str, int | None] | None = None,
        **more: Any,
    ) -> GroupRecord:
        """Make the group's file and its runs' folders; all of them or none.

        `provenance` is by queue key and goes into the queue's runs; `queues` add keys of their own to the queue of
        the same `key`; `totals` are the iterations a run is to do; `more` are further fields of GroupRecord (theme,
        tags). Raises DiskFull or StoreError.
        """
        self._writable()
        record = group_record(plan, time.time(), queues, **more)
        path = self._groups.path(record.id)
        self._groups.make_folder()
        if path.exists():
            raise StoreError(f"{path} is there already: a group's id is used once.")
        with self._made(plan, provenance, totals or {}, record.tags):
            self._groups.write(record)  # last, so that a group that can be seen is whole
        return record

    def extend(
        self,
        plan: GroupPlan,
        provenance: Mapping[str, Mapping[str, Any]],
        *,
        replaced: Mapping[str, str],
        queues: Iterable[Mapping[str, Any]] = (),
        totals: Mapping[str, int | None] | None = None,
    ) -> GroupRecord:
        """Add the plan's runs and queues to a group that is there; see create.

        `replaced` maps a run of the group to the new one that takes its place; the old one stays in the store, out
        of the group's list. The group has no state again.
        """
        self._writable()
        before, new = self.group(plan.group), group_record(plan, time.time(), queues)
        places = set(replaced.values())
        runs = (*(replaced.get(r, r) for r in before.runs), *(r for r in new.runs if r not in places))
        servers = {**before.servers, **new.servers}
        record = dataclasses.replace(
            before, runs=runs, servers=servers, queues=(*before.queues, *new.queues), state=None
        )
        with self._made(plan, provenance, totals or {}, before.tags):
            self._groups.write(record)
        return record

    @contextlib.contextmanager
    def _made(
        self,
        plan: GroupPlan,
        provenance: Mapping[str, Mapping[str, Any]],
        totals: Mapping[str, int | None],
        tags: Iterable[str],
    ) -> Iterator[None]:
        """The folders of the plan's runs; taken away again where the body, or making one of them, fails."""
        now, made = time.time(), list[Path]()
        try:
            for queue in plan.queues:
                facts = provenance.get(queue.key, {})
                for run in queue.runs:
                    run_dir = self._new_run(run.run, made)
                    meta = run_meta(run, queue.key, plan.servers[run.server], plan.profile, now, facts)
                    run_dir.write_meta({**meta, "total": totals.get(run.run), "tags": list(tags)})
            yield
        except BaseException:
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _new_run(self, run: str, made: list[Path]) -> RunDir:
        folder = self.root / layout.checked_id(run)
        if folder.exists():
            raise StoreError(f"{folder} is there already: a run's id is used once.")
        with explained("make the folder", folder):
            folder.mkdir()
        made.append(folder)
        return RunDir(folder)

    # -- groups

    def group(self, ident: str) -> GroupRecord:
        """A group by its full id. Raises UsageError where there is none, StoreError where its file is damaged."""
        return self._groups.read(ident)

    def groups(self) -> list[GroupRecord]:
        """All groups, newest first; those that cannot be read are left out and stand in `problems`."""
        found, problems = [], []
        for ident in self._groups.ids():
            try:
                found.append(self.group(ident))
            except StoreError as error:
                problems.append(error)
            except UsageError:
                continue  # deleted since
        self.problems = tuple(problems)
        return sorted(found, key=lambda g: (g.created or 0.0, g.id), reverse=True)

    def update_group(self, ident: str, **changes: Any) -> GroupRecord:
        """Change some fields of a group's file, atomically, and return it as it is now."""
        self._writable()
        record = dataclasses.replace(self.group(ident), **changes)
        self._groups.write(record)
        return record

    def plan(self, ident: str) -> GroupPlan:
        """The plan that a group was made from, read back; runs that were deleted since are left out."""
        record = self.group(ident)
        metas = {run: self.run_dir(run).meta() for run in record.runs if self._has_run(run)}
        try:
            return group_plan(record, metas)
        except (KeyError, TypeError):
            raise StoreError(
                f"{self._groups.path(ident)}: its plan, or that of one of its runs, is damaged."
            ) from None

    def lock_group(self, ident: str) -> GroupLock:
        """Be the one cockpit of a group, until the lock is closed or this process ends.

        Raises LaunchRefused naming the pid that holds it.
        """
        self._writable()
        return self._groups.lock(ident)

    # -- runs

    def run_dir(self, ident: str) -> RunDir:
        """A run's directory by its full id. Raises UsageError where there is none."""
        if not self._has_run(ident):
            raise UsageError(f"there is no run {ident!r} in {self.root}.", hint=nearest_id(ident, self._run_ids()))
        return RunDir(self.root / ident, readonly=self.readonly)

    def runs(
        self,
        filter: str | Iterable[str] | Mapping[str, str] = (),  # noqa: A002 the word that the command line has
        *,
        sort: str = "created",
        reverse: bool = False,
        limit: int | None = None,
        sizes: bool = False,
    ) -> list[RunRow]:
        """Runs that pass `filter` (rows.parse_filter), by `sort`; with `sizes`, each with its bytes on disk.

        Runs that cannot be read are left out and stand in `problems`. Raises UsageError on an unknown key.
        """
        from cockpit.store.index import load_rows  # sqlite3 is only for listings

        test = parse_filter(filter)
        rows, problems = load_rows(self.root, use_index=not self.readonly)
        self.problems = tuple(problems)
        rows = [r for r in rows if test(r)]
        if sort == "size":
            rows = [self._sized(r) for r in rows]
        rows = sort_rows(rows, sort, reverse=reverse)[:limit]
        return [self._sized(r) for r in rows] if sizes and sort != "size" else rows

    def _sized(self, r: RunRow) -> RunRow:
        return dataclasses.replace(r, size_by=folders.size(self.root / r.id))

    def _has_run(self, ident: str) -> bool:
        return layout.is_id(ident) and (self.root / ident).is_dir()

    def _run_ids(self) -> list[str]:
        try:
            return sorted(p.name for p in self.root.iterdir() if layout.is_id(p.name) and p.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, "read", self.root) from error

    def size(self, ident: str) -> int:
        """Bytes on disk of a run, or of a group with its runs."""
        kind, ident = self.exact(ident)
        if kind == "run":
            return folders.size(self.root / ident)
        return sum(folders.size(self.root / run) for run in self.group(ident).all_runs if self._has_run(run))

    def tag(self, ident: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
        """Add tags to a run, or to a group and all its runs, or take them away; return what it has now.

        Raises UsageError on a tag that could not be typed in a filter.
        """
        self._writable()
        plus, minus = list(add), set(remove)
        for word in plus:
            if not _TAG.fullmatch(word):
                raise UsageError(
                    f"{word!r} is no tag.", hint="A tag has letters, digits and . : _ + - and at most 64 of them."
                )
        kind, ident = self.exact(ident)
        if kind == "run":
            return self._tag_run(ident, plus, minus)
        record = self.group(ident)
        for run in record.runs:
            if self._has_run(run):
                self._tag_run(run, plus, minus)
        return self.update_group(ident, tags=_tags(record.tags, plus, minus)).tags

    def _tag_run(self, run: str, plus: list[str], minus: set[str]) -> tuple[str, ...]:
        run_dir = self.run_dir(run)
        tags = _tags(run_dir.meta().get("tags") or (), plus, minus)
        run_dir.update_meta(tags=list(tags))
        return tags

    # -- ids

    def exact(self, ident: str) -> Resolved:
        """The run or group whose full id is `ident`. Raises UsageError where there is none."""
        if self._groups.has(ident):
            return Resolved("group", ident)
        if self._has_run(ident):
            return Resolved("run", ident)
        known = [*self._groups.ids(), *self._run_ids()]
        raise UsageError(f"there is no run or group {ident!r} in {self.root}.", hint=nearest_id(ident, known))

    def resolve(self, token: str, want: Want = "any") -> Resolved:
        """What `token` stands for: a full id, a unique prefix of one, or `last`, the newest group.

        `last.left.r1` is that run of the newest group. Where a run is wanted, a group stands for its run if it has
        just one. Raises UsageError where nothing matches (with the nearest ids) or several do (naming up to five).
        """
        if token.partition(".")[0] == LAST:
            token = self._newest() + token.removeprefix(LAST)
        return resolve(token, want, groups=self._groups.ids(), runs=self._run_ids(), where=str(self.root))

    def _newest(self) -> str:
        groups = self.groups()
        if not groups:
            raise UsageError(f"there is no group in {self.root} yet.", hint="`ekvi-cockpit run` makes one.")
        return groups[0].id

    # -- deleting

    def delete(self, ident: str, *, force: bool = False) -> list[str]:
        """Delete a run, or a group with all its runs; return the ids of the runs that went.

        Never leaves the runs folder and follows no links. Raises LaunchRefused while a cockpit follows the group,
        and StoreError on a run that has not ended, unless `force` says so.
        """
        self._writable()
        kind, ident = self.exact(ident)
        runs = [ident] if kind == "run" else [r for r in self.group(ident).all_runs if self._has_run(r)]
        group = ident if kind == "group" else self._group_of(ident)
        with self.lock_group(group) if group else contextlib.nullcontext():
            for run in runs:
                self._check_deletable(run, force=force)
            folders.sweep_trash(self.root)
            for run in runs:
                folders.delete(self.root / run)
            self._forget(group, runs, whole=kind == "group")
        return runs

    def _group_of(self, run: str) -> str | None:
        """The group that knows the run; None where there is none, or where the run cannot say it."""
        try:
            group = str(self.run_dir(run).meta().get("group") or "")
        except StoreError:
            return None  # a damaged run may be deleted too
        return group if self._groups.has(group) else None

    def _check_deletable(self, run: str, *, force: bool) -> None:
        folder = self.root / run
        if folder.is_symlink():
            raise StoreError(f"{folder} is a link: it is not deleted.", hint="Remove the link by hand.")
        try:
            state = self.run_dir(run).meta().get("state")
        except StoreError:
            return
        if state in _LIVE and not force:
            raise StoreError(
                f"run {run} is {state}: it is not deleted.",
                hint=f"`ekvi-cockpit stop {run}` first, or `ekvi-cockpit attach` to see how it ended.",
            )

    def _forget(self, group: str | None, runs: list[str], *, whole: bool) -> None:
        if group is None:
            return
        record = self.group(group)
        left = tuple(r for r in record.runs if r not in runs)
        if left and not whole:
            queues = tuple({**q, "runs": [r for r in q["runs"] if r in left]} for q in record.queues)
            self.update_group(group, runs=left, queues=queues)
            return
        self._groups.remove(group)

    def check_writable(self) -> None:
        """Raise StoreError where the store was opened for reading only."""
        self._writable()

    def _writable(self) -> None:
        if self.readonly:
            raise StoreError(f"{self.root} was opened for reading only.")


def _tags(before: Iterable[str], plus: list[str], minus: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t for t in [*before, *plus] if t not in minus))
