"""File work on a server: this file's source is sent along and runs there on any Python from 3.8 on.

Standard input begins with one JSON line, the request; what else comes and goes is said at each operation. An OSError
is told as the last line of standard error, MARK and a JSON object, with exit status 3. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from typing import Any

MARK = "@ekvi-far "
BLOCK = 1 << 20
_SMALL = 256 * 1024  # stays in a processor's cache
_BLOCKS = 8
_F_SETPIPE_SZ = 1031  # fcntl has the name from 3.10 on


def say(answer: dict[str, Any]) -> None:
    """One JSON line to the other end."""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def hear() -> dict[str, Any]:
    """One JSON line of the other end; it ends us where it is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(4)
    said: dict[str, Any] = json.loads(line)
    return said


def make_folders(path: str) -> None:
    """Make a folder and those above it, each new one 0700."""
    missing = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path) or "/"
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def mkdirs(request: dict[str, Any]) -> None:
    """Make folders."""
    make_folders(request["path"])
    say({})


def read(request: dict[str, Any]) -> None:
    """At most `limit` bytes from `offset` on to standard output; none where there is no such file."""
    try:
        fd = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return
    offset, left = request["offset"], request["limit"]
    try:
        while left:
            data = os.pread(fd, min(left, BLOCK), offset)
            if not data:
                break
            sys.stdout.buffer.write(data)
            offset += len(data)
            left -= len(data)
    except OSError as e:
        e.filename = request["path"]
        raise
    sys.stdout.buffer.flush()


def get(request: dict[str, Any]) -> None:
    """Say the size and time of a file; hear an offset; send the bytes from there to that size; say the whole sum."""
    path = request["path"]
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not hold us
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    say({"size": info.st_size, "mtime_ns": info.st_mtime_ns})
    import queue  # not for every small operation
    import threading

    offset = hear()["offset"]
    _widen(1)
    digest = hashlib.sha256()
    done = 0
    # The same few blocks over and over: memory that is asked for anew costs as much as the copying.
    free: Any = queue.Queue()
    full: Any = queue.Queue()
    for _ in range(_BLOCKS):
        free.put(memoryview(bytearray(_SMALL)))
    summing = threading.Thread(target=_sum, args=(full, free, digest), daemon=True)
    summing.start()  # beside the sending: a sum releases the interpreter's lock
    with os.fdopen(fd, "rb", 0) as f:
        while done < info.st_size:
            block = free.get()
            size = f.readinto(block[: (offset if done < offset else info.st_size) - done])
            if not size:
                raise OSError(errno.EIO, "it became shorter while it was read", path)
            full.put((block, size))
            if done >= offset:
                _write(1, block[:size])
            done += size
    full.put((None, 0))
    summing.join()
    say({"sha256": digest.hexdigest()})


def _sum(full: Any, free: Any, digest: Any) -> None:
    for block, size in iter(full.get, (None, 0)):
        digest.update(block[:size])
        free.put(block)


def _write(fd: int, view: Any) -> None:
    while view:
        view = view[os.write(fd, view) :]


def _widen(fd: int) -> None:
    """A pipe that holds more takes fewer turns between its two ends; what is no pipe, or may not, stays as it is."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, _F_SETPIPE_SZ, 1 << 20)


def put(request: dict[str, Any]) -> None:
    """Say how much of the file is there; take the rest and a JSON line with the whole sum; rename and say the sum.

    With a `key`, what came of a copy that broke off is kept for the next one of that key.
    """
    path = request["path"]
    folder = os.path.dirname(path)
    make_folders(folder)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    part, f = _part(folder, os.path.basename(path), request["key"])
    keep = False
    try:
        size = request["size"]
        digest, have = _hash(f, size)
        say({"have": have})
        keep = request["key"] is not None
        whole = _take(f, digest, size - have)
        if not whole:
            sys.exit(4)
        keep = False
        os.fsync(f.fileno())
        if hear()["sha256"] == digest.hexdigest():
            os.fchmod(f.fileno(), request["mode"])
            os.replace(part, path)
            part = ""
            _sync(folder)
        say({"sha256": digest.hexdigest()})
    except OSError as e:
        e.filename = e.filename or path
        keep = keep and e.errno not in (errno.ENOSPC, errno.EDQUOT)
        raise
    finally:
        f.close()
        if part and not keep:
            os.unlink(part)


def _part(folder: str, name: str, key: str | None) -> tuple[str, Any]:
    """The file that fills up before it takes its name; nobody else's."""
    own = ".%s.%s.part" % (name, key)
    for old in os.listdir(folder) if key else ():
        # What an earlier version of this file left: it may be large, and nobody else would remove it.
        if old != own and re.match(re.escape("." + name + ".") + "[0-9a-f]{16}[.]part$", old):
            _unlink_unused(os.path.join(folder, old))
    if key:
        fd = os.open(os.path.join(folder, own), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.join(folder, own), os.fdopen(fd, "r+b", 0)
        except OSError:
            os.close(fd)  # another copy of it is under way
    fd, part = tempfile.mkstemp(prefix=".%s." % name, dir=folder)
    return part, os.fdopen(fd, "r+b", 0)


def _unlink_unused(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)
    except OSError:
        pass


def _hash(f: Any, size: int) -> tuple[Any, int]:
    """The sum of what is there of a file that will have `size` bytes, and how much that is."""
    digest = hashlib.sha256()
    have = 0
    if os.fstat(f.fileno()).st_size > size:
        f.truncate(0)
    while True:
        data = f.read(BLOCK)
        if not data:
            return digest, have
        digest.update(data)
        have += len(data)


def _take(f: Any, digest: Any, left: int) -> bool:
    """Write what comes; false where it ends early."""
    stdin: Any = sys.stdin.buffer
    block = memoryview(bytearray(_SMALL))
    _widen(0)
    while left:
        size = stdin.readinto1(block[:left])
        if not size:
            return False
        digest.update(block[:size])
        left -= size
        _write(f.fileno(), block[:size])
    return True


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def listdir(request: dict[str, Any]) -> None:
    """A line [path, size] for each regular file below a folder, at most `limit`; links are left out."""
    top, left = request["path"], request["limit"]
    for folder, _, names in os.walk(top):
        for name in names:
            full = os.path.join(folder, name)
            try:
                info = os.lstat(full)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(info.st_mode) and left:
                left -= 1
                line = json.dumps([os.path.relpath(full, top), info.st_size])
                sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def workdir(request: dict[str, Any]) -> None:
    """Say the agent's folder, absolute, or what was said where that is not absolute."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", os.uname().nodename) or "server"
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    said = request["explicit"] or os.environ.get("EKVI_WORKDIR") or state + "/ekvi-cockpit/" + host
    full = os.path.expanduser(said)
    say({"path": os.path.realpath(full)} if full.startswith("/") else {"said": said})


def remove_tree(request: dict[str, Any]) -> None:
    """Remove a folder strictly below one of `roots`; links in the way are seen through, links below only unlinked."""
    path = request["path"].rstrip("/")
    name = os.path.basename(path)
    full = os.path.join(os.path.realpath(os.path.dirname(path)), name)
    if name in ("", ".", "..") or not any(full.startswith(root.rstrip("/") + "/") for root in request["roots"]):
        say({"refused": True})
        return
    if os.path.islink(full) or os.path.isfile(full):
        os.unlink(full)
    elif os.path.lexists(full):
        for folder, _, _ in os.walk(full):
            os.chmod(folder, 0o700)  # the runners' source stands read-only
        shutil.rmtree(full)
    say({})


OPERATIONS = {f.__name__: f for f in (mkdirs, read, get, put, listdir, workdir, remove_tree)}


def main() -> None:
    """Do what the request asks."""
    request = hear()
    try:
        OPERATIONS[request["op"]](request)
    except OSError as e:
        told = {"errno": e.errno, "strerror": e.strerror or str(e), "file": e.filename}
        sys.stderr.write("\n" + MARK + json.dumps(told) + "\n")
        sys.exit(3)


if __name__ == "__main__":
    main()
