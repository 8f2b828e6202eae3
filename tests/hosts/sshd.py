"""A real sshd on this machine, with a host key, a user key and an ssh configuration of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from cockpit.core.records import Access

LIMIT_S = 20.0
_ALIAS = "machine"
_used = itertools.count()


class Sshd:
    """One sshd on `address`:`port`. `config` is an ssh configuration that knows it as `alias`.

    `user` logs in with the key `identity`; `lines` are more lines of sshd_config.
    """

    def __init__(
        self,
        folder: Path,
        *,
        user: str = "root",
        address: str = "127.0.0.1",
        lines: Sequence[str] = (),
        alias: str = _ALIAS,
    ) -> None:
        self.folder = folder
        self.user = user
        self.address = address
        self.port = _free_port(address)
        self.alias = alias
        self.identity = folder / "user_key"
        self.host_key = folder / "host_key"
        self.known_hosts = folder / "known_hosts"
        self.config = folder / "ssh_config"
        self._lines = tuple(lines)
        self._listener: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        _keygen(self.identity)
        _keygen(self.host_key)
        shutil.copy(f"{self.identity}.pub", folder / "authorized_keys")
        folder.chmod(0o755)
        self.trust()
        self.write_config()

    def access(self, **changes: Any) -> Access:
        """How a Host reaches it: by its alias, through `config`."""
        values: dict[str, Any] = {"address": self.alias, "config": str(self.config), "connect_timeout_s": 5.0}
        return Access(**(values | {"keepalive_s": 1.0, "keepalive_count": 2} | changes))

    def write_config(self, *more: str) -> None:
        """The ssh configuration of the one who logs in; `more` lines stand under its host."""
        entry = (
            f"HostName {self.address}",
            f"Port {self.port}",
            f"User {self.user}",
            f"IdentityFile {self.identity}",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile none",
            "StrictHostKeyChecking yes",
            *more,
        )
        self.config.write_text("\n    ".join((f"Host {self.alias}", *entry)) + "\n")

    def trust(self) -> None:
        """Put the host key of now into `known_hosts`."""
        where = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        kind, key = Path(f"{self.host_key}.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"{where} {kind} {key}\n")

    def rekey(self) -> None:
        """Take another host key, as a machine that was set up anew; `known_hosts` stays as it is."""
        running = self._listener is not None
        self.stop()
        self.host_key.unlink()
        _keygen(self.host_key)
        if running:
            self.start()

    def start(self) -> None:
        """Listen, and return when connections are taken."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        configuration = self.folder / "sshd_config"
        configuration.write_text("\n".join((*self._lines, *_SSHD, *self._own())) + "\n")
        with (self.folder / "sshd.log").open("ab") as log:
            self._listener = subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", str(configuration)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
                return
            assert self._listener.poll() is None, (self.folder / "sshd.log").read_text()
            assert time.monotonic() < end, "sshd does not listen"
            time.sleep(0.01)

    def _own(self) -> tuple[str, ...]:
        return (
            f"Port {self.port}", f"ListenAddress {self.address}", f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
        )  # fmt: skip

    def sessions(self) -> list[psutil.Process]:
        """The processes that serve the connections of now."""
        return psutil.Process(self._listener.pid).children(recursive=False) if self._listener else []

    def cut(self) -> int:
        """Kill every connection of now, not what runs in it; returns how many there were. New ones are taken."""
        victims = self.sessions()
        for process in [*(child for v in victims for child in _sshds(v)), *victims]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return len(victims)

    def stop(self) -> None:
        """Kill the listener and every connection; what was started detached goes on. Harmless to repeat."""
        if self._listener is not None:
            self._listener.send_signal(19)  # SIGSTOP: no new connection between the cut and the end
            self.cut()
            self._listener.kill()
            self._listener.wait()
            self._listener = None


_SSHD = (
    "PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
    "PermitRootLogin prohibit-password", "AllowTcpForwarding yes", "UseDNS no", "MaxStartups 200:30:400",
    "Subsystem sftp internal-sftp",
)  # fmt: skip


def _sshds(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [p for p in process.children(recursive=False) if p.name() == "sshd"]
    return []


def _keygen(path: Path) -> None:
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)


def _free_port(address: str) -> int:
    with socket.socket() as s:
        s.bind((address, 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def sshd(folder: Path, **options: Any) -> Iterator[Sshd]:
    """A running sshd with its files in `folder`; takes the options of Sshd."""
    server = Sshd(folder, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def account(shell: str = "/bin/sh") -> Iterator[pwd.struct_passwd]:
    """An unprivileged account with a home of its own, removed afterwards."""
    name = f"ekvi{os.getpid()}x{next(_used)}"
    subprocess.run(["useradd", "-m", "-s", shell, name], check=True, capture_output=True)
    subprocess.run(["usermod", "-p", "*", name], check=True, capture_output=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", "-r", "-f", name], check=False, capture_output=True)
