"""Writing so that an interruption never leaves a file that cannot be read, and reading with a schema."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cockpit.core.errors import StoreError
from cockpit.store.errors import explain, explained

_BLOCK = 1 << 16
_SCHEMA = re.compile(r"(ekvi\.[a-z]+)/(\d+)")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a file beside it, fsync, rename, fsync of the folder.

    Raises DiskFull or StoreError; the file that stood there is then untouched.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with explained("write", path):
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                _write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            beside.replace(path)
        except BaseException:  # Ctrl-C too must leave nothing behind
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` outlive a power cut, where the file system can."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse fsync of a folder
            os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_json(path: Path, schema: str, body: Mapping[str, Any]) -> None:
    """Write `body` as a readable JSON document with `schema` first; see write_atomic."""
    document = {"schema": schema, **{k: v for k, v in body.items() if k != "schema"}}
    text = json.dumps(document, indent=1, ensure_ascii=False, default=_plain) + "\n"
    write_atomic(path, text.encode(errors="replace"))  # half a character, as JSON may spell it, is no UTF-8


def _plain(value: object) -> object:
    """Mappings, sets and paths of the records as JSON values."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a JSON document")


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """The document in `path`, which must be of `schema` ("ekvi.run/1") or an older number of it.

    Raises StoreError naming the file, and the line where the JSON is damaged; FileNotFoundError where there is none.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explain(error, "read", path) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise StoreError(f"{path}:{line}: damaged: not UTF-8.", hint=_REMEDY) from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise StoreError(f"{path}:{error.lineno}: damaged JSON: {error.msg}.", hint=_REMEDY) from None
    except RecursionError:
        raise StoreError(f"{path}:1: damaged JSON: nested too deeply.", hint=_REMEDY) from None
    if not isinstance(document, dict):
        raise StoreError(f"{path}:1: damaged JSON: an object is expected.", hint=_REMEDY)
    check_schema(path, document.get("schema"), schema)
    return document


_REMEDY = "Restore the file, or delete the run's folder."


def check_schema(path: Path, found: object, wanted: str) -> None:
    """Raise StoreError unless `found` names the schema `wanted`, at its number or an older one."""
    known = _SCHEMA.fullmatch(wanted)
    match = _SCHEMA.fullmatch(found) if isinstance(found, str) else None
    assert known
    if match is None or match[1] != known[1]:
        raise StoreError(f"{path} is not a file of schema {wanted}: it says {found!r}.", hint=_REMEDY)
    if int(match[2]) > int(known[2]):
        raise StoreError(
            f"{path} has schema {found}, made by a newer ekvi-cockpit; this one reads {wanted}.",
            hint="Upgrade ekvi-cockpit, or point --runs-dir at another folder.",
        )


class Mirror:
    """A file that grows at its end: the copy of a server's file, byte for byte.

    `size` is how many bytes it has. Not for two writers at once: the group's lock keeps a second cockpit away.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def size(self) -> int:
        """How many bytes stand in the file; 0 where there is none."""
        if self._fd is not None:
            return os.fstat(self._fd).st_size
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise explain(error, "read", self.path) from error

    def append(self, data: bytes, offset: int) -> int:
        """Write `data`, whose first byte is byte `offset` of the original; return the file's size.

        Bytes that stand there already are not written again, so that the same call may be repeated after DiskFull:
        what a full disk took is kept, and `size` tells how much that is. Raises StoreError on a hole before `offset`.
        """
        with explained("write", self.path):
            if self._fd is None:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._fd).st_size
            if offset > size:
                raise StoreError(f"{self.path} has {size} bytes, and byte {offset} was to follow: a hole.")
            if size - offset < len(data):
                _write_all(self._fd, data[size - offset :])
                size = offset + len(data)
        return size

    def read(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on; empty at the end, or where there is no file."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(offset)
                return file.read(limit) or b""
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise explain(error, "read", self.path) from error

    def sync(self) -> None:
        """Bring what was appended to the disk itself."""
        if self._fd is not None:
            with explained("write", self.path):
                os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class LineMirror(Mirror):
    """A file of whole lines, chosen from what a server sends: opening cuts what a crash left of the last one."""

    def append_lines(self, lines: bytes) -> int:
        """Write whole lines, all of them or none, and return the file's size. Raises DiskFull."""
        with explained("write", self.path):
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                os.ftruncate(self._fd, _whole_lines_by(self._fd))
            size = os.fstat(self._fd).st_size
            try:
                _write_all(self._fd, lines)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, size)
                raise
        return size + len(lines)


def _whole_lines_by(fd: int) -> int:
    """Where the last whole line of a file ends."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
