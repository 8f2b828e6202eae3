"""What travels to a server as archives: WORK/code/<sha16>.zip becomes the read-only folder WORK/code/<sha16>, once.

The same with WORK/files. Everything unpacked is readable for all users, a container's among them, below folders that
are ours alone; what is executable in an archive of files stays so.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import zipfile

from .base import AgentError, free_by
from .queuefile import Queue

BLOCK_BY = 1 << 20
READABLE, PROGRAM = 0o444, 0o555  # PROGRAM also for folders
MEMBERS = 1_000_000
KINDS = {"code": "the code", "files": "a file of this group"}


class Unpacking:
    """All archives of one queue, unpacked in a thread: gigabytes of files hold up no timeout."""

    def __init__(self, queue: Queue) -> None:
        self.work = queue.work
        self.wanted = [("code", queue.code)] if queue.code else []
        self.wanted += [("files", sha16) for sha16 in queue.files]
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def ready(self) -> bool:
        """Whether all is there; False while it is worked on.

        Raises what went wrong, AgentError or OSError; the next call tries again.
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self._thread = None
            if self._error is not None:
                error, self._error = self._error, None
                raise error
        if all(os.path.isdir(os.path.join(self.work, kind, sha16)) for kind, sha16 in self.wanted):
            return True
        self._thread = threading.Thread(target=self._unpack, name="unpack", daemon=True)
        self._thread.start()
        return False

    def _unpack(self) -> None:
        try:
            for kind, sha16 in self.wanted:
                unpack(self.work, sha16, kind)
        except Exception as error:  # noqa: BLE001 (told to whoever asks `ready`)
            self._error = error


def unpack(work: str, sha16: str, kind: str = "code") -> str:
    """The folder of an archive of `kind` (code, files), unpacked if it was not yet.

    Raises AgentError where the archive is missing or damaged, OSError where the disk is full.
    """
    target = os.path.join(work, kind, sha16)
    if os.path.isdir(target):
        return target
    os.makedirs(os.path.join(work, kind), mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(work, kind, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another queue may be at it
        if not os.path.isdir(target):
            _unpack(target + ".zip", target, sha16, KINDS[kind])
    finally:
        os.close(lock)
    return target


def _unpack(archive: str, target: str, sha16: str, what: str) -> None:
    temporary = target + ".tmp"
    _remove(temporary)  # of an agent that was killed here
    try:
        _check_hash(archive, sha16)
        with zipfile.ZipFile(archive) as z:
            _check(z, archive)
            z.extractall(temporary)
            programs = {m.filename for m in z.infolist() if m.external_attr >> 16 & 0o111}
    except FileNotFoundError as error:
        raise AgentError("%s is not there: %s did not travel with the queue." % (archive, what)) from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        _remove(temporary)
        raise AgentError("%s is damaged: %s. Put it there again." % (archive, error)) from error
    except (OSError, AgentError):
        _remove(temporary)
        raise
    os.makedirs(temporary, mode=0o700, exist_ok=True)  # of an archive without a member
    for folder, _, names in os.walk(temporary, topdown=False):
        for name in names:
            path = os.path.join(folder, name)
            os.chmod(path, PROGRAM if os.path.relpath(path, temporary) in programs else READABLE)
        if folder != temporary:
            os.chmod(folder, PROGRAM)
    os.rename(temporary, target)
    os.chmod(target, PROGRAM)


def _check_hash(archive: str, sha16: str) -> None:
    digest = hashlib.sha256()
    with open(archive, "rb") as f:
        for block in iter(lambda: f.read(BLOCK_BY), b""):
            digest.update(block)
    found = digest.hexdigest()[:16]
    if found != sha16:
        raise AgentError("%s is damaged: its sha256 begins with %s. Put it there again." % (archive, found))


def _check(z: zipfile.ZipFile, archive: str) -> None:
    """Refuse what lies outside or is boundless, before a byte is unpacked; OSError where it does not fit the disk."""
    members = z.infolist()
    if len(members) > MEMBERS:
        raise AgentError("%s holds %d members; %d are the limit." % (archive, len(members), MEMBERS))
    for member in members:
        if member.filename.startswith("/") or ".." in member.filename.split("/"):
            raise AgentError("%s holds %r, which lies outside of it." % (archive, member.filename))
    if sum(member.file_size for member in members) > free_by(os.path.dirname(archive)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), archive)


def _remove(folder: str) -> None:
    for inner, _, _ in os.walk(folder):
        os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
