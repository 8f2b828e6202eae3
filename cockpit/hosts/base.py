"""What the cockpit may ask of a machine: `Host`, its answers, and the errors that every kind of host raises.

ServerError                  a server unreachable or not answering (core)
├── ServerLost               the connection broke, or cannot be made right now: trying again may help
├── LoginRefused             a host key or a login that is not accepted: trying again does not help
├── ServerTimeout            something took longer than it may
├── ServerDiskFull           no room in a folder of the server; what was whole there is still whole
└── FileTruncated            a followed file became shorter than what was already read of it
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cockpit.core.errors import ServerError
from cockpit.core.records import Access, Chunk
from cockpit.core.text import printable

BLOCK_BY = 256 * 1024  # most bytes in one Chunk: below it a pass costs more than its bytes, above it a screen waits
POLL_S = 0.05
LAST_WORDS_BY = 64 * 1024  # of what a long command printed
_WORDS_BY = 500  # characters of them in a sentence
SLOW_DISK_BY_S = 20e6  # bytes a second that every disk is taken to read, sum and force to the platter
TREE_TIMES = 10  # of a file operation's time: what a whole folder of files may take


class ServerLost(ServerError):
    """The connection to a server broke, or cannot be made right now. What was started detached there goes on."""


class LoginRefused(ServerError):
    """A server that does not let us in, or whose host key is not the known one. Never tried again by itself."""


class ServerTimeout(ServerError):
    """A command or a transfer on a server took longer than it may."""


class ServerDiskFull(ServerError):
    """A folder of a server has no room left (or the user's quota there is spent)."""

    def __init__(self, server: str, folder: str) -> None:
        super().__init__(f"The disk that holds {folder} on {server} is full.", hint="Free some space there.")
        self.folder = folder


class FileTruncated(ServerError):
    """A followed file is shorter than what was read of it; `path` says which. The other files are not concerned."""

    def __init__(self, server: str, path: str, size: int, offset: int) -> None:
        super().__init__(
            f"{path} on {server} has {size} bytes, but {offset} were already read: it was cut or replaced."
        )
        self.path = path
        self.size = size
        self.offset = offset


def too_large(server: str, path: str, max_by: int) -> ServerError:
    """The error of a file that has more bytes than may be fetched."""
    return ServerError(
        f"{path} on {server} has more than {max_by} bytes, the most that may be fetched.",
        hint="Raise the limit, or leave the file out.",
    )


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. `rc` is its exit status, -N after signal N, 127 where there is no such program."""

    rc: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last line that says something, of stderr or else of stdout; empty where neither has one.

        Fit to show: a server may print anything.
        """
        for stream in (self.stderr, self.stdout):
            lines = printable(stream[-LAST_WORDS_BY:].decode(errors="replace")).splitlines()
            said = [line.strip() for line in lines if line.strip()]
            if said:
                return said[-1][:_WORDS_BY]
        return ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file. `path` is relative to the folder that was listed, with `/`; `size` in bytes."""

    path: str
    size: int


Progress = Callable[[int, int], None]  # bytes that are there, bytes in all


class Talk(Protocol):
    """A program that runs on a machine and is talked with."""

    async def send(self, data: bytes) -> None:
        """Write to its standard input, waiting while it does not read. That it has ended is no error here."""

    async def read(self) -> bytes:
        """At least one byte that it printed, at most a block; empty at the end of its output. Raises ServerLost."""

    async def ended(self, timeout: float = 10.0) -> Completed:
        """How it ended, once `read` came to its end: its status, the last of its stderr. Raises ServerLost."""


class Host(Protocol):
    """A machine. Paths are absolute strings on that machine; every method has a timeout and raises ServerError.

    A method connects where no connection stands, once: trying again, and when, is its caller's (hosts.backoff).
    """

    name: str
    access: Access

    async def network_name(self) -> str:
        """The name or address that other machines reach this one by, as far as SSH's configuration knows it."""

    async def stream(
        self,
        argv: Sequence[str],
        *,
        output: Callable[[bytes], None],
        input: bytes | Path | None = None,  # noqa: A002
        timeout: float = 3600.0,
    ) -> Completed:
        """Run a long command; what it prints, stdout and stderr in one, goes to `output` in blocks as it comes.

        `input` is its standard input, a file's bytes where it is a path. The answer's `stderr` holds the last 64 KiB.
        """

    def talk(self, argv: Sequence[str]) -> AbstractAsyncContextManager[Talk]:
        """Start a program and talk with it; the end of the block ends it, whatever it does. No timeout is its own."""

    async def shell(self, argv: Sequence[str]) -> int:
        """Run an interactive command on this process's terminal, a real pty with resize there; its exit status."""

    async def put_file(self, source: Path, path: str, *, mode: int = 0o600, progress: Progress | None = None) -> str:
        """Copy a local file there, whole or not at all, and return its SHA-256, which was compared at the far end.

        A copy that broke off goes on where it was. Raises ServerError, StoreError where `source` cannot be read.
        """

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout: float = 30.0) -> Completed:  # noqa: A002
        """Run a command to its end. After `timeout` seconds its process group is killed: ServerTimeout."""

    async def read(self, path: str, offset: int = 0, limit: int = BLOCK_BY) -> bytes:
        """At most `limit` bytes from `offset` on; empty at the end of a file and where there is none."""

    async def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """Write a file atomically: there is the old one or the whole new one. Missing folders are made 0700."""

    async def get(
        self,
        path: str,
        target: Path,
        *,
        sha256: str | None = None,
        max_by: int | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Copy a file of the server to `target`, atomically, and return the SHA-256 of what arrived.

        A copy that broke off goes on where it was. More than `max_by` bytes are refused, whatever the server said
        of its size. Raises ServerError where there is no such file, or where the sum is not `sha256`; StoreError
        where `target` cannot be written.
        """

    async def mkdirs(self, path: str) -> None:
        """Make a folder and those above it, new ones 0700."""

    async def listdir(self, path: str) -> list[Entry]:
        """All regular files below a folder, sorted by path, links left out; empty where there is no such folder."""

    def follow(self, cursors: MutableMapping[str, int], *, interval: float = POLL_S) -> AsyncGenerator[Chunk, None]:
        """Bytes that files gain, in blocks of at most 256 KiB, each byte once and in order; never ends by itself.

        `cursors` maps a path to the offset of its next byte and stays the caller's: paths may be added or taken
        away and offsets set while it runs, and an offset moves on when its block is handed out. A file that is not
        there yet is waited for. Raises FileTruncated; the caller may drop or reset that path and follow again.
        `interval` is the time between two looks in seconds, stretched up to eightfold while nothing happens.
        """

    async def workdir(self, explicit: str | None = None) -> str:
        """The agent's folder on this machine, absolute; it need not exist yet."""

    async def remove_tree(self, path: str) -> None:
        """Remove a folder strictly below a folder that `workdir` returned; anything else is refused."""

    async def close(self) -> None:
        """Let go of the machine. What was started detached goes on."""
