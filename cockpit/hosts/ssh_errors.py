"""What can go wrong on the way into a server, each as one sentence with its mend."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from cockpit.core.errors import ServerError
from cockpit.core.records import Access
from cockpit.core.text import printable
from cockpit.hosts.base import LoginRefused, ServerLost
from cockpit.hosts.shell import ssh


@dataclass
class Way:
    """One step on the way to a server, itself or a jump host: what its configuration came to."""

    name: str  # as a user writes it
    access: Access
    host: str
    port: int
    user: str
    alias: str | None = None  # HostKeyAlias
    known_files: Sequence[str] = ()
    known: Sequence[asyncssh.SSHKey] = ()  # host keys that were accepted for it
    trusted: asyncssh.SSHKnownHosts = field(default_factory=asyncssh.SSHKnownHosts)
    offered: asyncssh.SSHKey | None = None  # and the one that it shows now
    encrypted: Sequence[Path] = field(default_factory=list)  # key files that need a passphrase

    @property
    def where(self) -> str:
        """For sentences."""
        return self.name if self.name == self.host else f"{self.name} ({self.host}, port {self.port})"

    @property
    def known_as(self) -> str:
        """Its name in a known_hosts file."""
        host = self.alias or self.host
        return host if self.port == 22 or self.alias else f"[{host}]:{self.port}"

    def ssh(self) -> str:
        """The command that logs in by hand."""
        return shlex.join(ssh(self.access, self.name))


def explain(e: Exception, way: Way) -> ServerError:
    """The sentence for what asyncssh or the system raised while a connection was made."""
    if isinstance(e, ServerError):
        return e
    if isinstance(e, asyncssh.HostKeyNotVerifiable):
        return _host_key(e, way)
    if isinstance(e, asyncssh.PermissionDenied):
        return _login(way)
    if isinstance(e, asyncssh.KeyExchangeFailed | asyncssh.ProtocolNotSupported):
        return LoginRefused(
            f"{way.where} and the cockpit have no way to talk in common: {_words(e)}.",
            hint=f"See whether `{way.ssh()}` works, and set the server's ssh.transport to openssh if it does.",
        )
    if isinstance(e, asyncssh.DisconnectError):
        return ServerLost(
            f"{way.where} broke the connection off while we logged in: {_words(e)}.",
            hint=f"Try `{way.ssh()}`: the server may be starting, or full.",
        )
    if isinstance(e, asyncssh.ChannelOpenError):
        return ServerLost(f"{way.where} cannot be reached through its jump host: {_words(e)}.")
    return _system(e, way)


def _system(e: Exception, way: Way) -> ServerError:
    if isinstance(e, socket.gaierror):
        return ServerLost(
            f"The name of {way.where} cannot be resolved: {e.strerror or e}.",
            hint="Check the server's address, and its HostName in the SSH configuration.",
        )
    if isinstance(e, TimeoutError):
        return ServerLost(
            f"{way.where} did not answer within {way.access.connect_timeout_s:g} s.",
            hint="Check that it is up and that no firewall stands between, or raise its ssh.connect_timeout_s.",
        )
    if isinstance(e, ConnectionRefusedError):
        return ServerLost(
            f"{way.where} refuses connections: nothing listens there.",
            hint="Check the port, and that sshd runs there.",
        )
    if isinstance(e, OSError):
        return ServerLost(
            f"{way.where} cannot be reached: {e.strerror or _words(e)}.",
            hint="Check its address, that it is up, and that this machine has a way to it (VPN, jump host).",
        )
    return ServerError(f"{way.where} cannot be logged in to: {_words(e) or type(e).__name__}.")


def _words(e: Exception) -> str:
    text = e.reason if isinstance(e, asyncssh.Error) else str(e)
    return " ".join(printable(text).split())[:300].rstrip(".")


def _host_key(e: asyncssh.HostKeyNotVerifiable, way: Way) -> LoginRefused:
    if way.offered is None:
        return LoginRefused(
            f"The host key of {way.where} is not accepted: {_words(e)}.", hint=f"See what `{way.ssh()}` says."
        )
    offered = f"{_kind(way.offered)} {way.offered.get_fingerprint()}"
    if not way.known:
        return LoginRefused(
            f"The host key of {way.where} is not known: it offers {offered}, and no key is known for it.",
            hint=f"Compare that with what its administrator says, then accept it once with `{way.ssh()}`.",
        )
    known = ", ".join(f"{_kind(key)} {key.get_fingerprint()}" for key in way.known)
    files = [f"ssh-keygen -R {shlex.quote(way.known_as)} -f {shlex.quote(f)}" for f in way.known_files[:1]]
    return LoginRefused(
        f"The host key of {way.where} has changed: {known} is known, it offers {offered}. "
        "The machine was set up anew, or somebody stands between.",
        hint=f"Ask its administrator; if it is right, replace the key with `{' '.join(files)}` and `{way.ssh()}`.",
    )


def _kind(key: asyncssh.SSHKey) -> str:
    return key.get_algorithm().removeprefix("ssh-")


def _login(way: Way) -> LoginRefused:
    sentence = f"{way.where} does not let {way.user} log in with the keys at hand."
    if way.encrypted:
        key = shlex.quote(str(way.encrypted[0]))
        return LoginRefused(
            f"{sentence} {way.encrypted[0]} was not tried: it has a passphrase, and no SSH agent holds it.",
            hint=f"Hand it to your agent: `ssh-add {key}`.",
        )
    return LoginRefused(
        sentence,
        hint=f"Check the user and the key with `{way.ssh()}`; "
        "where that asks for a password or a code, set the server's ssh.transport to openssh.",
    )


def missing_file(what: str, path: str) -> LoginRefused:
    """A file that a configuration names and that is not there."""
    return LoginRefused(
        f"The {what} {path} is not there or cannot be read.",
        hint="Correct its name in the server's settings or in the SSH configuration.",
    )


def encrypted_keys(paths: Sequence[str | Path]) -> list[Path]:
    """Those of some key files that need a passphrase."""
    found = []
    for path in map(Path, paths):
        with contextlib.suppress(OSError, ValueError):
            try:
                asyncssh.read_private_key(path)
            except asyncssh.KeyEncryptionError:
                found.append(path)
            except asyncssh.KeyImportError as e:
                if "assphrase" in str(e):
                    found.append(path)
    return found
