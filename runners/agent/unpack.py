"""The runners' source on a server: WORK/code/<sha16>.zip becomes the read-only folder WORK/code/<sha16>, once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zipfile

from .base import AgentError


def unpack(work: str, sha16: str) -> str:
    """The folder of the code, unpacked if it was not yet.

    Raises AgentError where the archive is missing or damaged, OSError where the disk is full.
    """
    target = os.path.join(work, "code", sha16)
    if os.path.isdir(target):
        return target
    lock = os.open(os.path.join(work, "code", ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another queue may be at it: it takes a second
        if not os.path.isdir(target):
            _unpack(target + ".zip", target, sha16)
    finally:
        os.close(lock)
    return target


def _unpack(archive: str, target: str, sha16: str) -> None:
    temporary = target + ".tmp"
    _remove(temporary)  # of an agent that was killed here
    try:
        with open(archive, "rb") as f:
            found = hashlib.sha256(f.read()).hexdigest()[:16]
        if found != sha16:
            raise AgentError("%s is damaged: its sha256 begins with %s. Put it there again." % (archive, found))
        with zipfile.ZipFile(archive) as z:
            for name in z.namelist():
                if name.startswith("/") or ".." in name.split("/"):
                    raise AgentError("%s holds %r, which lies outside of it." % (archive, name))
            z.extractall(temporary)
    except FileNotFoundError as error:
        raise AgentError("%s is not there: the code did not travel with the queue." % archive) from error
    except zipfile.BadZipFile as error:
        raise AgentError("%s is damaged: %s. Put it there again." % (archive, error)) from error
    except OSError:
        _remove(temporary)
        raise
    for folder, _, names in os.walk(temporary, topdown=False):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o400)
        if folder != temporary:
            os.chmod(folder, 0o500)
    os.rename(temporary, target)
    os.chmod(target, 0o500)


def _remove(folder: str) -> None:
    for inner, _, _ in os.walk(folder):
        os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
