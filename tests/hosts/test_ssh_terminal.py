"""Interactive commands on a real pty, here and over SSH; logins through the system's ssh that may ask."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from cockpit.core.errors import UsageError
from cockpit.core.records import Access
from cockpit.hosts import LoginRefused, connect
from cockpit.hosts.openssh import control_socket
from tests.hosts.sshd import Sshd

pytestmark = pytest.mark.hosts

LIMIT_S = 20.0
_MAIN = """
import asyncio, json, sys
from cockpit.core.errors import CockpitError
from cockpit.core.records import Access
from cockpit.hosts import connect
async def main():
    host = connect(Access.from_json(json.loads(sys.argv[1])))
    try:
        print("rc", await host.shell(sys.argv[2:]))
    except CockpitError as e:
        print("refused", e)
    finally:
        await host.close()
asyncio.run(main())
"""
# Signals are waited for, not handled: a handler would miss one that comes just before it begins to read a line.
_LOOKS = """
import os, signal, threading
told = {signal.SIGWINCH, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, told)
def show():
    os.write(1, b"%dx%d " % tuple(os.get_terminal_size()))
show()
threading.Thread(target=lambda: os.write(1, b"got " + input().encode()), daemon=True).start()
while signal.sigwait(told) == signal.SIGWINCH:
    show()
raise SystemExit(9)
"""


class Terminal:
    """A child on a pty of our own; what it shows is kept."""

    def __init__(self, access: Access, *argv: str) -> None:
        self.shown = b""
        self.master, self.slave = pty.openpty()
        self.size(30, 90)
        self.before = termios.tcgetattr(self.slave)
        words = [sys.executable, "-c", _MAIN, json.dumps(asdict(access)), *argv]
        self.child = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *words], stdin=self.slave, stdout=self.slave, stderr=self.slave
        )

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, what: str) -> str:
        end = time.monotonic() + LIMIT_S
        while not (found := re.search(what.encode(), self.shown)):
            assert time.monotonic() < end, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown += os.read(self.master, 65536)
        self.shown = self.shown[found.end() :]
        return found[0].decode()

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def __del__(self) -> None:
        self.child.kill()
        self.child.wait()

    def end(self) -> None:
        self.child.wait(LIMIT_S)
        assert termios.tcgetattr(self.slave) == self.before, "the terminal was not given back as it was"
        os.close(self.master)
        os.close(self.slave)


@pytest.mark.parametrize("way", ["local", "asyncssh", "openssh"])
def test_a_shell_has_a_real_terminal_with_resize_keys_and_its_status(server: Sshd, way: str) -> None:
    access = Access() if way == "local" else server.access(transport=way)
    terminal = Terminal(access, sys.executable, "-c", _LOOKS)
    terminal.until("90x30")
    terminal.size(41, 101)
    terminal.until("101x41")
    terminal.type("hello\r")
    terminal.until("got hello")
    terminal.type("\x03")  # the key, which interrupts the command and not the cockpit
    terminal.until("rc 9")
    terminal.end()


@pytest.mark.parametrize("way", ["local", "asyncssh", "openssh"])
def test_a_status_is_handed_on(server: Sshd, way: str) -> None:
    terminal = Terminal(Access() if way == "local" else server.access(transport=way), "sh", "-c", "exit 7")
    terminal.until("rc 7")
    terminal.end()


def test_a_connection_that_breaks_gives_the_terminal_back(server: Sshd) -> None:
    terminal = Terminal(server.access(), "sh", "-c", "echo here; sleep 60")
    terminal.until("here")
    server.cut()
    terminal.until("refused The connection to machine broke")
    terminal.end()


async def test_without_a_terminal_it_is_refused(server: Sshd) -> None:
    for access in (Access(), server.access(), server.access(transport="openssh")):
        host = connect(access)
        with pytest.raises(UsageError, match="needs a terminal"):
            await host.shell(["sh"])
        await host.close()


def test_a_login_that_asks_is_made_once_on_the_terminal(server: Sshd) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(server.identity)], check=True)
    try:
        access = server.access(transport="openssh", keepalive_s=2.0)  # an Access of its own: no master stands
        terminal = Terminal(access, "sh", "-c", "echo first in")
        terminal.until("passphrase for key")
        terminal.type("secret\r")
        terminal.until("first in")
        terminal.until("rc 0")
        terminal.end()
        terminal = Terminal(access, "sh", "-c", "echo second in")
        terminal.until("second in")
        assert b"passphrase" not in terminal.shown
        terminal.until("rc 0")
        terminal.end()
    finally:
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "secret", "-N", "", "-f", str(server.identity)], check=True)


async def test_a_master_that_is_gone_is_not_made_anew_by_itself(server: Sshd) -> None:
    access = server.access(transport="openssh")
    host = connect(access)
    assert (await host.run(["echo", "in"])).stdout == b"in\n"
    subprocess.run(["ssh", "-S", control_socket(access), "-O", "exit", "machine"], check=True, capture_output=True)
    with pytest.raises(LoginRefused, match="not made by itself") as caught:
        await host.run(["true"])
    assert caught.value.hint == "Run the command again."
    await host.close()
    again = connect(access)
    assert (await again.run(["echo", "in"])).stdout == b"in\n"
    await again.close()


def test_the_control_socket_is_short_and_only_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 120)))
    path = Path(control_socket(Access(address="user@machine")))
    assert len(str(path)) < 90
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path != Path(control_socket(Access(address="other@machine")))
