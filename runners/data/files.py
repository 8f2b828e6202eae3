"""Local files as streams of bytes, decompressed by what their names end with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from runners.errors import ConfigurationError, installed

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
WHERE = (
    "It must be on the machine that trains: servers.NAME.files sends it, servers.NAME.mounts shows it to a container."
)
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


def opened(path: str) -> IO[bytes]:
    """`path` (maybe with ~) for reading, decompressed where its name says so.

    Raises ConfigurationError where it cannot be opened. Read it within `unreadable`.
    """
    real = os.path.expanduser(path)
    with unreadable(path):
        ending = os.path.splitext(real)[1].lower()
        if ending == ".gz":
            return io.BufferedReader(gzip.open(real, "rb"))
        if ending == ".bz2":
            return bz2.open(real, "rb")
        if ending == ".xz":
            return lzma.open(real, "rb")
        if ending == ".zst":
            return _zstd(real)
        return open(real, "rb")


@contextmanager
def unreadable(path: str) -> Iterator[None]:
    """Turn what reading `path` raises into the ConfigurationError that names it."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.strerror:
            said = f"{path} cannot be read: {error.strerror}."
        else:  # a decompressor's own words
            said = f"{path} is damaged or not what its ending says: {error}."
        hint = WHERE if isinstance(error, FileNotFoundError) else None
        raise ConfigurationError(said, hint=hint, every_rank=True) from error


def _zstd(path: str) -> IO[bytes]:
    """pyarrow, which comes with `datasets`, has a decoder; the standard library only from Python 3.14 on."""
    with open(path, "rb"):  # who cannot open it should not first be told of a package
        pass
    if not installed("pyarrow"):
        raise ConfigurationError(
            f"{path} is compressed with zstd, which needs pyarrow.",
            hint="Install the `data` extra: pip install 'ekvi-cockpit[data]'.",
            every_rank=True,
        )
    import pyarrow

    stream: Any = pyarrow.input_stream(path, compression="zstd")
    return io.BufferedReader(stream, 1 << 20)
