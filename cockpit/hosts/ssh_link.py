"""Commands over one asyncssh connection a server, made anew where it broke."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import cast

import asyncssh

from cockpit.core.errors import ServerError
from cockpit.core.records import Access
from cockpit.core.text import printable
from cockpit.hosts import terminal
from cockpit.hosts.base import BLOCK_BY, ServerLost
from cockpit.hosts.remote import Running, lost
from cockpit.hosts.ssh_process import Process
from cockpit.hosts.ssh_way import configured, login

_WINDOW_BY = 4 * 1024 * 1024  # what may be on its way unread: 100 MB/s at 40 ms, and what a stalled reader holds
_OPEN_S = 30.0  # how long a server may be without room for one more session
_PAUSE_S = 0.1


class Channel:
    """A command over asyncssh; see `Running`."""

    def __init__(self, process: Process, connection: asyncssh.SSHClientConnection) -> None:
        self._process = process
        self._connection = connection

    async def write(self, data: bytes) -> None:
        """Its standard input."""
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (OSError, asyncssh.Error) as e:
            raise BrokenPipeError(str(e)) from e

    async def write_eof(self) -> None:
        """End its standard input."""
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write_eof()

    async def read(self, limit: int) -> bytes:
        """Of its standard output."""
        return await _read(self._process.stdout, limit)

    async def read_into(self, view: memoryview) -> int:
        """Of its standard output, without a copy on the way."""
        try:
            return await self._process.read_into(view)
        except (asyncssh.Error, OSError):
            return 0

    async def read_error(self, limit: int) -> bytes:
        """Of its standard error."""
        return await _read(self._process.stderr, limit)

    async def wait(self) -> int | None:
        """Its exit status."""
        with contextlib.suppress(asyncssh.Error, OSError):
            await self._process.wait_closed()
        if self._connection.is_closed():
            return None  # a status that came is no proof that the output did: sshd sends it ahead of what waits
        if self._process.exit_signal is not None:
            number = getattr(signal, f"SIG{self._process.exit_signal[0]}", signal.SIGKILL)
            return -int(number)
        return self._process.exit_status if self._process.returncode is not None else None

    async def close(self) -> None:
        """Let go of it."""
        self._process.close()


async def _read(reader: asyncssh.SSHReader[bytes], limit: int) -> bytes:
    try:
        return await reader.read(limit)
    except (asyncssh.Error, OSError):
        return b""


class SshLink:
    """One connection, shared by all who ask; who comes while it is being made waits for the same try."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._connection: asyncssh.SSHClientConnection | None = None
        self._trying: asyncio.Task[asyncssh.SSHClientConnection] | None = None

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._trying is None:
            self._trying = asyncio.ensure_future(login(self.access))
            self._trying.add_done_callback(self._tried)
        # Shielded: one of those who wait may be cancelled, the others still want it.
        return await asyncio.shield(self._trying)

    def _tried(self, task: asyncio.Task[asyncssh.SSHClientConnection]) -> None:
        self._trying = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    async def start(self, command: str) -> Running:
        """Start a command line; see `Link.start`."""
        process, connection = await self._open(command)
        return Channel(process, connection)

    async def _open(
        self,
        command: str,
        *,
        term: str | None = None,
        size: tuple[int, int, int, int] | None = None,
    ) -> tuple[Process, asyncssh.SSHClientConnection]:
        end = asyncio.get_running_loop().time() + _OPEN_S
        while True:
            connection = await self._connected()
            try:
                async with asyncio.timeout(_OPEN_S):
                    _, session = await connection.create_session(
                        Process,
                        command,
                        encoding=None,
                        window=_WINDOW_BY,
                        term_type=term,
                        term_size=size,
                        request_pty=bool(term),
                    )
            except asyncssh.ChannelOpenError as e:
                if connection.is_closed():
                    raise lost(self.access.address) from e
                if asyncio.get_running_loop().time() > end:
                    raise _full(self.access.address, e) from e
                await asyncio.sleep(_PAUSE_S)
            except TimeoutError as e:
                raise ServerLost(f"{self.access.address} did not begin a command within {_OPEN_S:g} s.") from e
            except (asyncssh.Error, OSError) as e:
                raise lost(self.access.address) from e
            else:
                return cast("Process", session), connection

    async def terminal(self, command: str) -> int:
        """Run a command line on this process's terminal; see `Link.terminal`."""
        fd = terminal.need_terminal()
        process, connection = await self._open(
            command, term=os.environ.get("TERM") or "xterm", size=terminal.size(fd)
        )
        loop = asyncio.get_running_loop()

        def resized() -> None:
            process.change_terminal_size(*terminal.size(fd))

        try:
            with terminal.kept(fd, raw=True), terminal.driven(loop, fd, process.stdin.write, resized):
                while data := await _read(process.stdout, BLOCK_BY):
                    await asyncio.to_thread(terminal.show, data)
                rc = await Channel(process, connection).wait()
        finally:
            process.close()
        if rc is None:
            raise lost(self.access.address)
        return rc

    async def network_name(self) -> str:
        """The HostName of the configuration."""
        way, _ = await configured(self.access)
        return way.host

    async def close(self) -> None:
        """End the connection."""
        if self._trying is not None:
            self._trying.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
                async with asyncio.timeout(1):
                    await connection.wait_closed()
            connection.abort()


def _full(name: str, e: asyncssh.ChannelOpenError) -> ServerError:
    return ServerError(
        f"{name} takes no further session on this connection: {' '.join(printable(e.reason).split())[:200]}.",
        hint="Raise MaxSessions in its sshd_config.",
    )
