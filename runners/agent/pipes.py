"""splice(2), also for Python before 3.10, where os has no such function."""

from __future__ import annotations

import errno
import os

_NONBLOCK = 2  # SPLICE_F_NONBLOCK


def move(pipe: int, file: int, size: int) -> int:
    """Move up to `size` bytes from a pipe to where `file` stands; 0 at the pipe's end.

    Raises OSError, BlockingIOError where the pipe is empty.
    """
    if hasattr(os, "splice"):
        return os.splice(pipe, file, size, flags=_NONBLOCK)
    return _move_by_libc(pipe, file, size)


def _move_by_libc(pipe: int, file: int, size: int) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    splice = getattr(libc, "splice", None)
    if splice is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    splice.restype = ctypes.c_ssize_t
    done = splice(pipe, None, file, None, ctypes.c_size_t(size), ctypes.c_uint(_NONBLOCK))
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(done)
