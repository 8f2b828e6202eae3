"""A command's session on an asyncssh channel, whose output can be had without a copy on the way."""

from __future__ import annotations

import asyncio

import asyncssh

from cockpit.hosts.remote import GATHER_S


class Process(asyncssh.SSHClientProcess[bytes]):
    """As `create_process` makes it, and `read_into`. One task at a time reads its standard output."""

    def __init__(self) -> None:
        super().__init__()
        self._room: memoryview | None = None  # what comes goes here, past the reader's buffer
        self._filled = 0
        self._wake: asyncio.Future[None] | None = None
        self._over = False

    async def read_into(self, view: memoryview) -> int:
        """At least one byte, and what else comes within `GATHER_S` until `view` is full; 0 at the end.

        Raises as the reader of `stdout` does.
        """
        data = await self.stdout.read(len(view))
        size = len(data)
        view[:size] = data
        if not size or size == len(view) or self._over:
            return size
        # Nothing is left in the reader's buffer now, so what comes next comes after it.
        self._room, self._filled, self._wake = view, size, asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({self._wake}, timeout=GATHER_S)
        finally:
            self._room = None
        return self._filled

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Into the caller's block as long as it has room."""
        if self._room is not None and datatype is None:
            begin = self._filled
            end = self._filled = min(begin + len(data), len(self._room))
            self._room[begin:end] = data if end - begin == len(data) else data[: end - begin]
            if end < len(self._room):
                return
            self._done()
            data = data[end - begin :]
            if not data:
                return
        super().data_received(data, datatype)

    def eof_received(self) -> bool:
        """No more comes."""
        self._over = True
        self._done()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """No more comes."""
        self._over = True
        self._done()
        super().connection_lost(exc)

    def _done(self) -> None:
        self._room = None
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
