"""One file on its way between this machine's folders and a server that is this machine too."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from io import FileIO
from pathlib import Path

from cockpit.core.errors import ServerError, StoreError
from cockpit.hosts.base import ServerDiskFull, too_large
from cockpit.hosts.files import FULL, make_folders

_LONG_NAME_BY = 200  # a file's name has 255 at most


class Transfer(ABC):
    """A file that is written beside its name and is there whole or not at all.

    Each step is one piece of work in whatever thread; a lock keeps `discard`, which may come while a step is still
    under way, from closing files under it. The subclasses say who is to blame for an OSError at either end: a full
    disk of the cockpit is no fault of the server.
    """

    def __init__(
        self, source: Path | str, target: Path, *, max_by: int | None = None, mode: int | None = None
    ) -> None:
        self.path = str(source)
        self.done = 0  # bytes
        self._size = 0  # of the source when the copy began: one that grows for ever has an end so
        self._target = target
        self._max_by = max_by
        self._mode = mode
        self._lock = threading.Lock()
        self._digest = hashlib.sha256()
        self._temporary = target.parent / f"{beside(target)}{secrets.token_hex(4)}"
        self._source: FileIO | None = None
        self._sink: FileIO | None = None

    @abstractmethod
    def make_folder(self, folder: Path) -> None:
        """Make the target's folder."""

    @abstractmethod
    def unreadable(self, why: str) -> Exception:
        """The error of a source that cannot be read."""

    @abstractmethod
    def unwritable(self, e: OSError) -> Exception:
        """The error of a target that cannot be written."""

    @abstractmethod
    def excessive(self) -> Exception:
        """The error of a source that has more than `max_by` bytes."""

    @property
    def sha256(self) -> str:
        """The sum of what arrived so far, in hex."""
        return self._digest.hexdigest()

    def open(self) -> int:
        """Open both ends; returns how many bytes the source has now."""
        with self._lock:
            try:
                self._source = FileIO(self.path)
                info = os.fstat(self._source.fileno())
            except OSError as e:
                raise self.unreadable(f"cannot be read: {e.strerror}") from e
            if not stat.S_ISREG(info.st_mode):
                raise self.unreadable("is not a regular file")
            try:
                self.make_folder(self._target.parent)
                self._sweep()
                self._sink = FileIO(self._temporary, "x")
                if self._mode is not None:
                    os.fchmod(self._sink.fileno(), self._mode)
            except OSError as e:
                raise self.unwritable(e) from e
            self._size = info.st_size
            return info.st_size

    def _sweep(self) -> None:
        """Remove what a killed cockpit left of this very file: it may be large, and nobody else would."""
        parts = re.compile(re.escape(beside(self._target)) + r"[0-9a-f]{8}")
        for path in self._target.parent.iterdir():
            if parts.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def step(self, limit: int) -> int:
        """Copy at most `limit` bytes; returns how many, 0 at the end or once discarded."""
        with self._lock:
            if self._source is None or self._sink is None:
                return 0
            try:
                block = self._source.read(min(limit, self._size - self.done))
            except OSError as e:
                raise self.unreadable(f"cannot be read: {e.strerror}") from e
            self._digest.update(block)
            self.done += len(block)
            if self._max_by is not None and self.done > self._max_by:
                raise self.excessive()
            view = memoryview(block)
            try:
                while view:
                    view = view[self._sink.write(view) :]
            except OSError as e:
                raise self.unwritable(e) from e
            return len(block)

    def commit(self) -> None:
        """Force what arrived to the disk and give it its name."""
        with self._lock:
            assert self._sink is not None
            try:
                os.fsync(self._sink.fileno())
                self._temporary.replace(self._target)
            except OSError as e:
                raise self.unwritable(e) from e

    def discard(self) -> None:
        """Close both ends and forget what was not committed."""
        with self._lock:
            for end in (self._source, self._sink):
                if end is not None:
                    end.close()
            if self._sink is not None:
                self._temporary.unlink(missing_ok=True)
            self._source = self._sink = None


class Fetch(Transfer):
    """From the server to a folder of the cockpit. Raises ServerError for the source, StoreError for the target."""

    def __init__(
        self, server: str, path: str, target: Path, *, sha256: str | None = None, max_by: int | None = None
    ) -> None:
        super().__init__(path, target, max_by=max_by)
        self._server = server
        self._expected = sha256

    def make_folder(self, folder: Path) -> None:
        """As the user's umask wants it."""
        folder.mkdir(parents=True, exist_ok=True)

    def unreadable(self, why: str) -> ServerError:
        """The server's file."""
        return ServerError(f"{self.path} on {self._server} {why}.")

    def unwritable(self, e: OSError) -> StoreError:
        """The cockpit's file."""
        return store_error(self._target, e)

    def excessive(self) -> ServerError:
        """The server's file is longer than it may be."""
        assert self._max_by is not None
        return too_large(self._server, self.path, self._max_by)

    def commit(self) -> None:
        """Only where the sum is the expected one."""
        if self._expected is not None and self.sha256 != self._expected:
            raise ServerError(f"{self.path} arrived from {self._server} with another checksum than it left with.")
        super().commit()


class Bring(Transfer):
    """From the user to the server's folder. Raises StoreError for the source, ServerError for the target."""

    def __init__(self, server: str, source: Path, path: str, mode: int) -> None:
        super().__init__(source, Path(path), mode=mode)
        self._server = server

    def make_folder(self, folder: Path) -> None:
        """New folders are 0700."""
        make_folders(self._server, str(folder))

    def unreadable(self, why: str) -> StoreError:
        """The user's file."""
        return StoreError(f"{self.path} {why}.")

    def unwritable(self, e: OSError) -> ServerError:
        """The server's file."""
        if e.errno in FULL:
            return ServerDiskFull(self._server, str(self._target.parent))
        return ServerError(f"{self._target} on {self._server} cannot be written: {e.strerror}.")

    def excessive(self) -> StoreError:
        """Never: what we send has no bound."""
        return StoreError(f"{self.path} is too large.")


def beside(target: Path) -> str:
    """How the names begin that a file has while it is written: its own, or a sum of one that leaves no room."""
    name = os.fsencode(target.name)
    return f".{target.name if len(name) <= _LONG_NAME_BY else hashlib.sha256(name).hexdigest()}."


def store_error(target: Path, e: OSError) -> StoreError:
    """The sentence for a file of the cockpit that could not be written."""
    if e.errno in FULL:
        return StoreError(f"The disk that holds {target.parent} is full.", hint="Free some space and fetch again.")
    return StoreError(f"{target} cannot be written: {e.strerror}.")
