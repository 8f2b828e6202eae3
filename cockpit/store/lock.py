"""One cockpit a group: an flock with the holder's pid inside. The kernel frees it when the holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

from cockpit.core.errors import LaunchRefused, StoreError
from cockpit.store.errors import explained


class GroupLock:
    """Held from its making until `close`, or until the process ends."""

    def __init__(self, path: Path, group: str) -> None:
        """Take the lock.

        Raises LaunchRefused naming the pid where another holds it, StoreError where there can be no lock.
        """
        self.path = path
        self._fd: int | None = None
        with explained("lock", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.pread(fd, 200, 0).decode(errors="replace").strip()
                os.close(fd)
                raise LaunchRefused(
                    f"group {group} is followed by another cockpit ({who or 'it does not say which'}).",
                    hint="Leave it there (q, detach), or wait until it is done.",
                ) from None
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise StoreError(
                        f"cannot lock {path}: its file system has no locks.",
                        hint="Keep the runs on a local disk: --runs-dir or EKVI_RUNS_DIR.",
                    ) from None
                raise
            self._fd = fd
            # Who holds it is for people only; a full disk must not keep anyone from stopping a group.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def close(self) -> None:
        """Let it go. May be called twice. The file stays: unlinking it could take it from who just opened it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> GroupLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
