"""The directory of one run."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import StoreError, UsageError
from cockpit.core.events import Event
from cockpit.store import layout
from cockpit.store.errors import explained
from cockpit.store.files import LineMirror, Mirror, read_json, write_json
from cockpit.store.journal import Journal, raw_lines, read_events

if TYPE_CHECKING:
    from cockpit.store.columns import Columns

_CLOCK = b'{"type":"clock",'  # the cockpit itself writes these lines
_LINE_END_BLOCK = 1 << 16
_TICK_BY = 4 << 20  # of a line of telemetry: a server may send one that fills the memory


class RunDir:
    """Reads and writes one run's files; what is not there yet reads as empty or None.

    Close it when nothing more is to be appended; it holds a file open for each of its mirrors. Where several nodes
    train together, each has mirrors of its own; `node` counts from 0, and the first one's are the run's.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self.id = path.name
        self._readonly = readonly
        self._mirrors: dict[str, Mirror] = {}
        self._lines: dict[int, LineMirror] = {}

    # -- run.json

    def meta(self) -> dict[str, Any]:
        """run.json: id, group, profile, server, vendor, state, reason, exit_code, signal, repeat, sweep, total, tags,
        created, started, ended (wall clock, s), handle, provenance, plan, config.

        Raises StoreError on a missing or damaged file (with its line) and on a newer schema.
        """
        path = self.path / layout.META
        try:
            return read_json(path, layout.RUN_SCHEMA)
        except FileNotFoundError:
            raise StoreError(
                f"{path} is missing.", hint="It is no run's folder, or the file was deleted; delete the folder."
            ) from None

    def write_meta(self, meta: Mapping[str, Any]) -> None:
        """Replace run.json, atomically. Raises DiskFull or StoreError."""
        self._writable()
        write_json(self.path / layout.META, layout.RUN_SCHEMA, meta)

    def update_meta(self, **changes: Any) -> dict[str, Any]:
        """Change some keys of run.json, atomically, and return it as it is now.

        One at a time, also from several processes: a tag that is added while the run is followed must not bring an
        old state back, nor the other way round.
        """
        with explained("lock", self.path):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            for stray in self.path.glob(f".{layout.META}.*"):  # of a process that was killed while it wrote
                stray.unlink(missing_ok=True)
            meta = {**self.meta(), **changes}
            self.write_meta(meta)
        finally:
            os.close(fd)
        return meta

    # -- mirrors of the server's files

    def _mirror(self, name: str) -> Mirror:
        if name not in self._mirrors:
            self._mirrors[name] = Mirror(self.path / name)
        return self._mirrors[name]

    def _telemetry(self, node: int) -> LineMirror:
        if node not in self._lines:
            self._lines[node] = LineMirror(self.path / layout.telemetry_of(node))
        return self._lines[node]

    @property
    def nodes(self) -> int:
        """How many nodes train together: as many as the handle names, else as have a mirror; 1 on a plain server."""
        handle = self.meta().get("handle")
        listed = handle.get("nodes") if isinstance(handle, Mapping) else None
        if isinstance(listed, list) and listed:
            return len(listed)
        with explained("read", self.path):
            return 1 + max((layout.node_of(file.name) for file in self.path.iterdir()), default=0)

    @property
    def stdout_size(self) -> int:
        """Bytes of the first node's output mirrored so far."""
        return self.stdout_size_of()

    @property
    def telemetry_size(self) -> int:
        """Bytes of the first node's telemetry so far."""
        return self.telemetry_size_of()

    def stdout_size_of(self, node: int = 0) -> int:
        """Bytes of a node's output mirrored so far."""
        return self._mirror(layout.stdout_of(node)).size

    def telemetry_size_of(self, node: int = 0) -> int:
        """Bytes of a node's telemetry so far."""
        return self._telemetry(node).size

    def append_stdout(self, data: bytes, offset: int, node: int = 0) -> int:
        """Mirror output from byte `offset` on; return the mirror's size. Raises DiskFull; see Mirror.append."""
        self._writable()
        return self._mirror(layout.stdout_of(node)).append(data, offset)

    def append_telemetry(self, lines: bytes, node: int = 0) -> int:
        """Add whole lines to a node's telemetry, all or none; return its size. Raises DiskFull."""
        self._writable()
        return self._telemetry(node).append_lines(lines)

    def read_stdout(self, offset: int, limit: int, node: int = 0) -> bytes:
        """At most `limit` bytes of a node's output from `offset` on; empty at its end."""
        return self._mirror(layout.stdout_of(node)).read(offset, limit)

    def read_telemetry(self, offset: int, limit: int, node: int = 0) -> bytes:
        """At most `limit` bytes of a node's telemetry from `offset` on; empty at its end."""
        return self._telemetry(node).read(offset, limit)

    def read_stdout_to_line_end(self, start: int, offset: int, node: int = 0) -> bytes:
        """Output from `start` to the end of the line that byte `offset` is in, its newline included."""
        parts = [self.read_stdout(start, max(0, offset - start), node)]
        at = start + len(parts[0])
        while at >= offset and (block := self.read_stdout(at, _LINE_END_BLOCK, node)):
            newline = block.find(b"\n")
            parts.append(block if newline < 0 else block[: newline + 1])
            if newline >= 0:
                break
            at += len(block)
        return b"".join(parts)

    def ticks(self, node: int = 0) -> Iterator[dict[str, Any]]:
        """A node's lines of telemetry (hello, tick, gap, err, clock) as JSON objects, in order, without torn ones."""
        for _, line in raw_lines(self.path / layout.telemetry_of(node), _TICK_BY):
            tick = _object(line)
            if tick is not None:
                yield tick

    def clock_lines(self, node: int = 0) -> Iterator[dict[str, Any]]:
        """What was measured of a node's clock: `clock` lines of its telemetry; the others are not decoded."""
        for _, line in raw_lines(self.path / layout.telemetry_of(node), _TICK_BY):
            if line.startswith(_CLOCK) and (point := _object(line)) is not None:
                yield point

    # -- the journal

    def journal(self) -> Journal:
        """The journal, opened for appending: what a crash left of its last record is cut. For one writer only."""
        self._writable()
        return Journal(self.path / layout.EVENTS, self.id)

    def journal_events(self) -> Iterator[Event]:
        """The events written so far, without opening the journal for writing; see read_events."""
        return read_events(self.path / layout.EVENTS)

    def columns(self) -> Columns:
        """step, loss, step_s, tokens, samples, t of all iterations as float64 columns; see columns.columns."""
        from cockpit.store.columns import columns

        return columns(self.path / layout.EVENTS, cache=not self._readonly)

    # -- what came of it

    @property
    def has_summary(self) -> bool:
        """Whether summary.json is there."""
        return (self.path / layout.SUMMARY).is_file()

    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None before there is one. Raises StoreError as meta does."""
        try:
            return read_json(self.path / layout.SUMMARY, layout.SUMMARY_SCHEMA)
        except FileNotFoundError:
            return None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json, atomically. Raises DiskFull or StoreError."""
        self._writable()
        write_json(self.path / layout.SUMMARY, layout.SUMMARY_SCHEMA, summary)

    @property
    def artifacts(self) -> Path:
        """The folder of fetched artifacts; it is there once something was fetched."""
        return self.path / layout.ARTIFACTS

    def artifact(self, relative: str) -> Path:
        """Where the artifact `relative` (as the server names it) belongs; makes its folder.

        Raises StoreError on a name that leads out of the artifacts' folder: a server is not trusted that far.
        """
        self._writable()
        pure = PurePosixPath(relative)
        if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in relative:
            raise StoreError(f"{self.id}: an artifact named {relative!r} does not stay in its folder: not fetched.")
        target = self.artifacts.joinpath(*pure.parts)
        with explained("make the folder", target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(self.path.resolve()):
                raise StoreError(f"{target.parent} leads out of the run's folder by a link: not fetched.")
        return target

    def close(self) -> None:
        """Close the mirrors. They open again when they are needed."""
        for mirror in (*self._mirrors.values(), *self._lines.values()):
            mirror.close()

    def _writable(self) -> None:
        if self._readonly:
            raise UsageError(f"{self.id} was opened for reading only.", hint="Copy it into the runs folder first.")


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        obj = json.loads(line)
    except (ValueError, RecursionError):
        return None  # a crash tore it
    return obj if isinstance(obj, dict) else None
