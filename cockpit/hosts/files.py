"""File work of the local machine, as plain blocking functions that LocalHost runs in threads."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cockpit.core.errors import ServerError
from cockpit.core.records import Chunk
from cockpit.hosts.base import BLOCK_BY, Entry, ServerDiskFull

FULL = (errno.ENOSPC, errno.EDQUOT)
MOST_BLOCKS = 16  # a look holds at most 4 MiB, so that a long backlog of many files does not fill the memory


def resolve(path: str) -> str:
    """`path` absolute, with `~` and links resolved; it need not exist. Raises ServerError on an unknown `~user`."""
    try:
        return str(Path(path).expanduser().resolve())
    except RuntimeError as e:
        raise ServerError(f"The work folder {path!r} names no home folder: {e}.") from e


def read(path: str, offset: int, limit: int) -> bytes:
    """At most `limit` bytes from `offset` on; empty at the end and where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        return _pread(fd, offset, limit)
    except OSError as e:
        e.filename = path  # a descriptor does not know its name
        raise
    finally:
        os.close(fd)


def _pread(fd: int, offset: int, limit: int) -> bytes:
    first = os.pread(fd, limit, offset)
    if not first or len(first) == limit:
        return first
    parts, have = [first], len(first)  # a file of /proc hands itself out in pieces
    while have < limit and (more := os.pread(fd, limit - have, offset + have)):
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def make_folders(server: str, path: str) -> None:
    """Make a folder and those above it, each new one 0700. Raises ServerDiskFull."""
    missing = []
    at = Path(path)
    while not at.exists():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            if e.errno in FULL:
                raise ServerDiskFull(server, str(at)) from e
            raise


def write_atomic(server: str, data: bytes, path: str, mode: int) -> None:
    """Write beside `path`, force it to the disk, rename. Raises ServerDiskFull and leaves the old file whole."""
    target = Path(path)
    make_folders(server, str(target.parent))
    temporary = None
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(fd, "wb") as f:
            os.fchmod(f.fileno(), mode)
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        Path(temporary).replace(target)
        temporary = None
        _sync_folder(target.parent)
    except OSError as e:
        if e.errno in FULL:
            raise ServerDiskFull(server, str(target.parent)) from e
        raise
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename last over a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def list_files(path: str) -> list[Entry]:
    """All regular files below `path`, by path. Links are left out: a run must not hand out what is not its own."""
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            full = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):  # a temporary file that was just renamed
                info = full.lstat()
                if stat.S_ISREG(info.st_mode):
                    found.append(Entry(full.relative_to(path).as_posix(), info.st_size))
    return sorted(found, key=lambda e: e.path)


def look(cursors: Iterable[tuple[str, int]]) -> tuple[list[Chunk], tuple[str, int] | None]:
    """One block at most of each file that has news, and the (path, size) of one that is shorter than its cursor."""
    found: list[Chunk] = []
    cut: tuple[str, int] | None = None
    for path, offset in cursors:
        try:
            size = os.stat(path).st_size  # noqa: PTH116  twenty looks a second at dozens of files: a Path each shows
        except (FileNotFoundError, NotADirectoryError):
            continue
        if size < offset:
            cut = cut or (path, size)
        elif size > offset and len(found) < MOST_BLOCKS:
            data = read(path, offset, min(BLOCK_BY, size - offset))
            if data:
                found.append(Chunk(path, offset, data))
    return found, cut


def remove_tree(server: str, path: str, roots: frozenset[str]) -> None:
    """Remove a folder strictly below one of `roots`; links in the way are seen through, links below only unlinked."""
    at = Path(path)
    resolved = at.parent.resolve() / at.name
    if at.name in ("", "..") or not any(Path(root) in resolved.parents for root in roots):
        raise ServerError(f"{path} on {server} is not below a work folder of the cockpit and is left alone.")
    if resolved.is_symlink() or resolved.is_file():
        resolved.unlink()
    elif resolved.exists():
        for folder, _, _ in os.walk(resolved):
            Path(folder).chmod(0o700)  # the runners' source stands read-only
        shutil.rmtree(resolved)
