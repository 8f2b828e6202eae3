"""The status record of a shim: one JSON object in a file of fixed size, rewritten in place.

The space is taken before the process starts, so that an exit code can be kept on a full disk; a checksum tells a
record that was read while it was written. The flock of the file says whether the shim lives: the agent takes it when
it makes the record and the shim inherits it.
"""

from __future__ import annotations

import binascii
import json
import os

from .base import try_lock, write_all

TYPE_CHECKING = False  # typing itself would cost the shim its import
if TYPE_CHECKING:
    from typing import Any

SIZE = 4096
NEW, STARTING, RUNNING, ENDED = "new", "starting", "running", "ended"

FIELDS = (
    # phase: new (made by the agent), starting (the shim lives), running (the program lives), ended
    "phase",
    "stage",
    "pid",  # of the shim
    "start_ticks",
    "child_pid",
    "pgid",
    "child_start_ticks",
    "boot_id",
    "t_start",  # seconds since the epoch, when the program started
    "mono_start",  # the same on the monotonic clock
    "bytes_in",  # read from the program = spool_by + dropped_by
    "spool_by",
    "dropped_by",
    "spool_state",  # ok, full (no space), capped (spool_max_by reached)
    "last_output",  # seconds since the epoch
    "last_output_mono",
    "exit_code",  # None where a signal ended it
    "signal",
    "error",  # why the program could not be started
    "t_end",
    "mono_end",
    "ended",
)


def fresh(stage: str) -> dict[str, Any]:
    """The record of a stage that was not started yet: counts are 0, the unknown is None."""
    fields: dict[str, Any] = dict.fromkeys(FIELDS)
    fields.update(phase=NEW, stage=stage, bytes_in=0, spool_by=0, dropped_by=0, spool_state="ok", ended=False)
    return fields


def short(text: str) -> str:
    """`text` as it fits into a record, where a character may take twelve bytes: its middle left out if need be."""
    return text if len(json.dumps(text)) <= 2400 else "%s...%s" % (text[:90], text[-90:])


def encode(fields: dict[str, Any]) -> bytes:
    """SIZE bytes: JSON with its checksum last, padded with blanks, a newline at the end. ValueError if too long."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    data = body[:-1] + b',"crc":%d}' % binascii.crc32(body)
    if len(data) >= SIZE:
        raise ValueError("a status record of %d bytes does not fit into %d" % (len(data), SIZE))
    return data.ljust(SIZE - 1) + b"\n"


def decode(data: bytes) -> dict[str, Any] | None:
    """The fields, or None where the record is torn, damaged or not there."""
    text = data.rstrip()
    head, mark, crc = text.rpartition(b',"crc":')
    if len(data) != SIZE or not mark or not crc[:-1].isdigit() or binascii.crc32(head + b"}") != int(crc[:-1]):
        return None
    fields = json.loads(head + b"}")
    return fields if isinstance(fields, dict) else None


def create(path: str, fields: dict[str, Any]) -> int:
    """Make the record, complete and locked before it has its name, and return its open file. Raises OSError.

    An agent killed at any moment leaves a whole record or none.
    """
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, encode(fields))
        os.fsync(fd)
        try_lock(fd)  # nobody else has this file open
        os.replace(temporary, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write(fd: int, fields: dict[str, Any], sync: bool = False) -> None:
    """Rewrite the record in place. Raises OSError; the size never changes."""
    os.pwrite(fd, encode(fields), 0)
    if sync:
        os.fsync(fd)


def read(path: str) -> dict[str, Any] | None:
    """The record, or None where there is none or it is damaged. A record caught in the middle is read again."""
    for _ in range(5):
        try:
            with open(path, "rb") as f:
                fields = decode(f.read(SIZE + 1))
        except FileNotFoundError:
            return None
        if fields is not None:
            return fields
    return None
