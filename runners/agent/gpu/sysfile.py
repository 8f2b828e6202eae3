"""A file of sysfs that is read again and again: opened once, and what it means when it cannot be read."""

from __future__ import annotations

import errno
import os
from typing import Optional, Tuple

from .source import FAILED, NO_PERMISSION, NOT_FOUND, Gone

PCI = "/sys/bus/pci/devices/"
_PAGE_BY = 4096  # sysfs gives no more of a file
_GONE = (errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ESTALE)
_DENIED = (errno.EACCES, errno.EPERM)


class SysFile:
    """`why` is (code, text) of the last `read` that gave None. What cannot be opened is not tried again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.why: Optional[Tuple[str, str]] = None
        self._fd: Optional[int] = None
        self._closed = False

    def read(self) -> Optional[bytes]:
        """The content, or None with `why`. Raises Gone where a file that could be opened is not there any more."""
        if self._fd is None and not self._open():
            return None
        assert self._fd is not None
        try:
            if os.fstat(self._fd).st_nlink == 0:
                raise Gone(NOT_FOUND, "%s is gone: the driver was unloaded, or the GPU was lost" % self.path)
            return os.pread(self._fd, _PAGE_BY, 0)
        except OSError as error:
            if error.errno in _GONE:
                raise Gone(NOT_FOUND, "%s is gone: %s" % (self.path, error.strerror)) from error
            # EPERM at a read is the driver's word while a GPU is reset: only a file that does not open is denied.
            code = NO_PERMISSION if error.errno == errno.EACCES else FAILED
            self.why = (code, "%s: %s" % (self.path, error.strerror))
            return None

    def number(self) -> Optional[int]:
        """The content as a whole number, or None with `why`."""
        raw = self.read()
        if raw is None:
            return None
        try:
            return int(raw)
        except ValueError:
            self.why = (FAILED, "%s holds no number: %r" % (self.path, raw[:40]))
            return None

    def close(self) -> None:
        """Give the file back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._closed = True

    def _open(self) -> bool:
        if self._closed:
            return False
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            code = NO_PERMISSION if error.errno in _DENIED else NOT_FOUND
            self.why = (code, "%s: %s" % (self.path, error.strerror))
            self._closed = True
        return self._fd is not None


def text(path: str) -> Optional[str]:
    """The stripped content of a small file; None where it is empty or cannot be read."""
    try:
        with open(path, "rb") as f:
            return f.read(_PAGE_BY).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def whole(path: str) -> Optional[int]:
    """The whole number in a small file, or None."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def numa_node(folder: str) -> Optional[int]:
    """The NUMA node of the PCI device in a folder of sysfs, or None: the kernel says -1 where there are no nodes."""
    node = whole(folder + "/numa_node")
    return node if node is not None and node >= 0 else None
