"""What shim and agent share: errors, locks, whole-file writes, which boot this is. Kept lean for the shim."""

from __future__ import annotations

import errno
import fcntl
import os
import sys

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class AgentError(Exception):
    """Something that a queue or a user got wrong, as one clear sentence."""


def own_argv(module: str, *words: str) -> list[str]:
    """The command that calls `main()` of one of these modules in this Python, from a folder or a .pyz alike.

    Isolated, and without `site`; `words` are its arguments.
    """
    package = __package__ or "agent"
    root = os.path.abspath(__file__)
    for _ in range(package.count(".") + 2):
        root = os.path.dirname(root)
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from %s.%s import main; sys.exit(main())"
    return [sys.executable, "-I", "-S", "-c", code % (package, module), root, *words]


def is_no_space(error: OSError) -> bool:
    """Whether a write failed because the disk or the quota is full."""
    return error.errno in NO_SPACE


def boot_id(proc: str = "/proc") -> str | None:
    """An id of this boot of the machine, or None where the system does not say."""
    try:
        with open(proc + "/sys/kernel/random/boot_id") as f:
            return f.read().strip() or None
    except OSError:
        return None


def start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """When `pid` started, in clock ticks since boot (proc(5), field 22): with it a recycled pid is told apart."""
    try:
        with open("%s/%d/stat" % (proc, pid), "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def free_by(path: str) -> int:
    """Bytes that this user may still write on the file system of `path`. Raises OSError."""
    v = os.statvfs(path)
    return v.f_bavail * v.f_frsize


def try_lock(fd: int) -> bool:
    """Take the exclusive flock of an open file; False where another open file holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: str) -> bool:
    """Whether someone holds the flock of `path`; a missing file is not locked."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_all(fd: int, data: bytes) -> None:
    """Write every byte. Raises OSError, after which a part may stand in the file."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_atomic(path: str, data: bytes) -> None:
    """Replace `path` by `data` (0600): a reader sees the old or the new file, never a part. Raises OSError."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
