"""What can go wrong with a runs folder, and the one place that turns an OSError into a sentence."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from cockpit.core.errors import StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class DiskFull(StoreError):
    """There is no room for what was to be written. What was whole is whole; the same bytes may be written again."""


@contextlib.contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError inside into one sentence: `doing` ("write", "read", ...) that `path` did not work.

    Raises DiskFull where there is no room, else StoreError.
    """
    try:
        yield
    except OSError as error:
        raise explain(error, doing, path) from error


def explain(error: OSError, doing: str, path: Path) -> StoreError:
    """The error to raise for `error`, met while `doing` something to `path`."""
    if error.errno in _FULL:
        return DiskFull(
            f"cannot {doing} {path}: the disk, quota or size limit is full.",
            hint="Free some space; nothing already written is damaged.",
        )
    if error.errno in _REFUSED:
        return StoreError(
            f"cannot {doing} {path}: {_words(error)}.",
            hint="Make the folder writable, or name another with --runs-dir or EKVI_RUNS_DIR.",
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return StoreError(
            f"cannot {doing} {path}: a file stands where a folder is needed.",
            hint="Name another folder with --runs-dir or EKVI_RUNS_DIR.",
        )
    return StoreError(f"cannot {doing} {path}: {_words(error)}.")


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
