"""What a server sends of followed files, checked before anything of it is believed."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.core.records import Chunk
from cockpit.core.text import printable
from cockpit.hosts.base import BLOCK_BY, FileTruncated

_HEADER_BY = 4096


class Following:
    """The caller's cursors, what the program on the server was told of them, and the frames that it answers."""

    def __init__(self, server: str, cursors: MutableMapping[str, int]) -> None:
        self._server = server
        self._cursors = cursors
        self._told: dict[str, tuple[int, int]] = {}  # path: its id now, the offset of its next block
        self._paths: dict[int, str] = {}
        self._next = 0
        self._buffer = bytearray()
        self._at = 0  # before it the buffer is used up

    def changes(self) -> bytes:
        """Lines that tell the program what the caller added, dropped or reset since the last call."""
        lines: list[dict[str, Any]] = []
        for path in [p for p, (_, offset) in self._told.items() if self._cursors.get(p) != offset]:
            id_, _ = self._told.pop(path)
            del self._paths[id_]
            lines.append({"id": id_})
        for path, offset in self._cursors.items():
            if path not in self._told:
                self._told[path] = (self._next, offset)
                self._paths[self._next] = path
                lines.append({"id": self._next, "path": path, "offset": offset})
                self._next += 1
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The blocks that are whole now. Raises FileTruncated, and ServerError for what nobody asked for."""
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._at, self._at + _HEADER_BY)) >= 0:
            header = self._header(bytes(self._buffer[self._at : end]))
            if isinstance(header, dict):
                self._at = end + 1
                self._ended(header)
                continue
            id_, offset, length = header
            if len(self._buffer) - end - 1 < length:
                return
            self._at = end + 1 + length
            chunk = self._chunk(id_, offset, end + 1, length)
            if chunk is not None:
                yield chunk
        if len(self._buffer) - self._at >= _HEADER_BY:
            raise self._refuse("a line without end")

    def _header(self, line: bytes) -> dict[str, Any] | tuple[int, int, int]:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            raise self._refuse("what is no answer") from None
        if isinstance(said, dict):
            return said
        if not (isinstance(said, list) and len(said) == 3 and all(type(n) is int for n in said)):
            raise self._refuse("what is no answer")
        id_, offset, length = said
        if not 0 <= id_ < self._next:
            raise self._refuse("a file that is not followed")
        if not 0 < length <= BLOCK_BY:
            raise self._refuse(f"a block of {length} bytes")
        return id_, offset, length

    def _chunk(self, id_: int, offset: int, begin: int, length: int) -> Chunk | None:
        path = self._paths.get(id_)
        if path is None:
            return None  # it was on its way when the caller dropped or reset the path
        if offset != self._told[path][1]:
            raise self._refuse(f"bytes of {path} from {offset} on, where {self._told[path][1]} was asked for")
        if self._cursors.get(path) != offset:
            return None  # the caller has moved it, and `changes` will say so
        self._told[path] = (id_, offset + length)
        self._cursors[path] = offset + length
        return Chunk(path, offset, bytes(self._buffer[begin : begin + length]))

    def _ended(self, said: dict[str, Any]) -> None:
        path = self._paths.get(said["id"]) if type(said.get("id")) is int else None
        if path is None:
            return
        offset = self._told[path][1]
        if "error" in said:
            why = printable(str(said["error"]))[:200]
            raise ServerError(f"{path} on {self._server} cannot be used: {why}.")
        size = said.get("cut")
        if type(size) is not int or not 0 <= size < offset:
            raise self._refuse("what is no answer")
        if self._cursors.get(path, 0) > size:
            raise FileTruncated(self._server, path, size, offset)

    def _refuse(self, what: str) -> ServerError:
        return ServerError(
            f"{self._server} sent {what} while files were followed: it is not trusted further.",
            hint="Look at the server: another program may answer in the place of ours.",
        )
