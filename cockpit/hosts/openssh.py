"""Commands over the system's ssh and its control master: for logins that ask a person (MFA, Kerberos, passwords).

The first use logs in once, on the terminal where there is one. A master that is gone is never made anew by itself, as
that would ask again, or count as one more wrong try: the user says when.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cockpit.core.errors import ServerError, UsageError
from cockpit.core.records import Access
from cockpit.hosts import terminal
from cockpit.hosts.base import BLOCK_BY, LoginRefused, ServerLost
from cockpit.hosts.children import end_group, spawn
from cockpit.hosts.remote import GATHER_S, Running, last_line, lost

_PERSIST_S = 600  # how long the master outlives its last use: the next command needs no login
_CHECK_S = 10.0
_LOGIN_S = 180.0  # a person looks for a phone
_BROKEN = 255  # of ssh itself


class Process:
    """A command over ssh's child process; see `Running`. ssh tells no signal: 255 is one, or a status of 255."""

    def __init__(self, link: OpensshLink, process: asyncio.subprocess.Process) -> None:
        self._link = link
        self._process = process

    async def write(self, data: bytes) -> None:
        """Its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def write_eof(self) -> None:
        """End its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def read(self, limit: int) -> bytes:
        """Of its standard output."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(limit)

    async def read_into(self, view: memoryview) -> int:
        """Of its standard output, gathered."""
        data = await self.read(len(view))
        size = len(data)
        view[:size] = data
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while data and size < len(view):
                    data = await self.read(len(view) - size)
                    view[size : size + len(data)] = data
                    size += len(data)
        return size

    async def read_error(self, limit: int) -> bytes:
        """Of its standard error."""
        assert self._process.stderr is not None
        return await self._process.stderr.read(limit)

    async def wait(self) -> int | None:
        """Its exit status."""
        rc = await self._process.wait()
        if rc < 0 or not await self._link.alive():
            return None  # a status that came is no proof that the output did: sshd sends it ahead of what waits
        return rc

    async def close(self) -> None:
        """Let go of it."""
        await end_group(self._process)


class OpensshLink:
    """The control master of one Access, shared with every cockpit of this user."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._socket = control_socket(access)
        self._login: asyncio.Task[None] | None = None

    def _ssh(self, *options: str, batch: bool = True) -> list[str]:
        access = self.access
        words = ["ssh", "-S", self._socket, "-o", f"ConnectTimeout={max(1, round(access.connect_timeout_s))}"]
        words += ["-o", f"ServerAliveInterval={max(1, round(access.keepalive_s))}"]
        words += ["-o", f"ServerAliveCountMax={access.keepalive_count}", "-o", "StrictHostKeyChecking=yes"]
        words += ["-o", "ForwardAgent=no"]  # a connection that is held for days lends nobody the user's keys
        if batch:
            words += ["-o", "BatchMode=yes"]
        if access.config is not None:
            words += ["-F", str(Path(access.config).expanduser())]
        if access.port is not None:
            words += ["-p", str(access.port)]
        if access.identity is not None:
            words += ["-i", str(Path(access.identity).expanduser())]
        return [*words, *options, "--", access.address]

    async def alive(self) -> bool:
        """Whether the master is there and connected."""
        rc, _ = await _ask(self._ssh("-O", "check"), _CHECK_S)
        return rc == 0

    async def _ready(self) -> None:
        if self._login is None:
            self._login = asyncio.ensure_future(self._log_in())
        elif self._login.done() and self._login.exception() is None:
            if await self.alive():
                return
            raise self._gone()
        await asyncio.shield(self._login)

    def _gone(self) -> LoginRefused:
        return LoginRefused(
            f"The login at {self.access.address} has ended, and another one may ask you: it is not made by itself.",
            hint="Run the command again.",
        )

    async def _log_in(self) -> None:
        """Once: on the terminal if there is one, else without a question."""
        if await self.alive():
            return
        master = ("-M", "-N", "-f", "-o", f"ControlPersist={_PERSIST_S}")
        try:
            async with asyncio.timeout(_LOGIN_S):
                words = await self._by_hand(master)
        except UsageError:
            words = await self._silently(master)
        except TimeoutError:
            raise LoginRefused(
                f"Nobody logged in at {self.access.address} within {_LOGIN_S:g} s.", hint="Run the command again."
            ) from None
        if not await self.alive():
            raise self._refused(words)

    async def _by_hand(self, master: Sequence[str]) -> bytes:
        await terminal.lend(self._ssh(*master, batch=False))
        return b""

    async def _silently(self, master: Sequence[str]) -> bytes:
        _, words = await _ask(self._ssh(*master), self.access.connect_timeout_s + _CHECK_S)
        return words

    def _refused(self, words: bytes) -> ServerError:
        text = last_line(words)
        name = self.access.address
        by_hand = shlex.join(w for w in self._ssh(batch=False) if w != "--")
        if any(said in words for said in _TRANSIENT):
            return ServerLost(f"{name} cannot be reached: {text}.", hint=f"See what `{by_hand}` says.")
        return LoginRefused(
            f"The login at {name} was refused{': ' + text if text else ''}.",
            hint=f"Log in once with `{by_hand}`, or run the command in a terminal where it can ask.",
        )

    async def start(self, command: str) -> Running:
        """Start a command line through the master; see `Link.start`."""
        await self._ready()
        argv = [*self._ssh("-T", "-o", "ControlMaster=no"), command]
        try:
            process = await spawn(argv, stdin=asyncio.subprocess.PIPE, limit=BLOCK_BY)
        except OSError as e:
            raise _no_ssh(e) from e
        return Process(self, process)

    async def terminal(self, command: str) -> int:
        """Run a command line on this process's terminal; see `Link.terminal`."""
        terminal.need_terminal()
        await self._ready()
        rc = await terminal.lend([*self._ssh("-tt", "-q", "-o", "ControlMaster=no"), command])
        if rc == _BROKEN and not await self.alive():
            raise lost(self.access.address)
        return rc

    async def network_name(self) -> str:
        """The HostName of the configuration."""
        rc, out = await _ask(self._ssh("-G"), _CHECK_S, output=True)
        names = [
            line.split(None, 1)[1] for line in out.decode(errors="replace").splitlines() if line[:9] == "hostname "
        ]
        if rc != 0 or not names:
            raise ServerError(f"ssh does not say where {self.access.address} is: {last_line(out)}.")
        return names[0].strip()

    async def close(self) -> None:
        """The master stays for a while: the next command needs no login then."""
        if self._login is not None and not self._login.done():
            self._login.cancel()


_TRANSIENT = (b"Connection refused", b"timed out", b"Could not resolve", b"No route to host", b"Connection closed",
              b"Connection reset", b"is unreachable")  # fmt: skip


async def _ask(argv: Sequence[str], timeout: float, *, output: bool = False) -> tuple[int, bytes]:
    """Run ssh without a question; its status and what it printed (stdout with `output`, else stderr)."""
    # A master goes to the background and keeps what it inherited: a file, not a pipe, lets us see the end.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as e:
            raise _no_ssh(e) from e
        try:
            async with asyncio.timeout(timeout):
                rc = await process.wait()
        except TimeoutError:
            rc = _BROKEN
            err.write(b"it timed out")
        finally:
            if process.returncode is None:
                await end_group(process)
        chosen = out if output else err
        chosen.seek(0)
        return rc, chosen.read(64 * 1024)


def _no_ssh(e: OSError) -> ServerError:
    return ServerError(
        f"The system's ssh cannot be started: {e.strerror}.",
        hint="Install OpenSSH, or set the server's ssh.transport to asyncssh.",
    )


def control_socket(access: Access) -> str:
    """The master's socket: short, as the kernel bounds it to 100 characters, in a folder that is only ours."""
    name = hashlib.sha256(repr(access).encode()).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or ""
    base = Path(runtime) if 0 < len(runtime) < 40 and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    if len(str(base)) > 60:
        base = Path("/tmp")  # noqa: S108  the folder below it is checked
    folder = base / f"ekvi-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
    except OSError as e:
        raise ServerError(f"{folder} cannot be made for ssh's control socket: {e.strerror}.") from e
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise ServerError(f"{folder} belongs to somebody else or is open to others.", hint="Remove it.")
    return str(folder / name)
