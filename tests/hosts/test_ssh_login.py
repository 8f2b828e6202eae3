"""Every way in which a login goes wrong is one sentence with its mend; host keys are strict."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit.core.errors import ServerError
from cockpit.core.records import Access
from cockpit.hosts import LoginRefused, ServerLost, connect
from tests.hosts.sshd import Sshd, account, sshd

pytestmark = pytest.mark.hosts

TRANSPORTS = ["asyncssh", "openssh"]


@pytest.fixture
def server() -> Iterator[Sshd]:
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder, "sshd")) as running:
        yield running


async def _error(access: Access) -> ServerError:
    host = connect(access)
    try:
        with pytest.raises(ServerError) as caught:
            await host.run(["true"])
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
        return caught.value
    finally:
        await host.close()


def _fingerprint(server: Sshd) -> str:
    said = subprocess.run(["ssh-keygen", "-lf", f"{server.host_key}.pub"], capture_output=True, check=True, text=True)
    return said.stdout.split()[1]


async def test_without_a_named_configuration_the_users_own_counts(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    shutil.copy(server.config, tmp_path / ".ssh" / "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    host = connect(server.access(config=None))
    try:
        assert (await host.run(["echo", "here"])).stdout == b"here\n"
    finally:
        await host.close()


async def test_a_changed_host_key_is_refused_with_both_fingerprints_and_the_mend_works(server: Sshd) -> None:
    known = _fingerprint(server)
    server.rekey()
    offered = _fingerprint(server)
    error = await _error(server.access())
    assert isinstance(error, LoginRefused)
    assert "has changed" in error.message
    assert known in error.message
    assert offered in error.message
    command = str(error.hint).split("`")[1]
    subprocess.run(command, shell=True, check=True, capture_output=True)  # as a user would paste it
    error = await _error(server.access())
    assert f"offers ed25519 {offered}, and no key is known for it" in error.message


async def test_a_key_of_another_kind_is_a_changed_key(server: Sshd) -> None:
    known = _fingerprint(server)
    server.stop()
    server.host_key.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(server.host_key)], check=True)
    server.start()
    error = await _error(server.access())
    assert isinstance(error, LoginRefused)
    assert "has changed" in error.message
    assert known in error.message
    assert _fingerprint(server) in error.message


@pytest.mark.parametrize("setting", ["/nothing/there", "none"])
async def test_an_unknown_host_key_is_refused_whatever_the_configuration_allows(server: Sshd, setting: str) -> None:
    text = server.config.read_text().replace(str(server.known_hosts), setting)
    server.config.write_text(text.replace("StrictHostKeyChecking yes", "StrictHostKeyChecking no"))
    error = await _error(server.access())
    assert isinstance(error, LoginRefused)
    assert _fingerprint(server) in error.message
    assert "no key is known" in error.message
    assert f"ssh -F {server.config} machine" in str(error.hint)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_changed_host_key_is_refused_over_both_transports(server: Sshd, transport: str) -> None:
    server.rekey()
    assert isinstance(await _error(server.access(transport=transport)), LoginRefused)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_wrong_key_and_a_wrong_user_are_refused(server: Sshd, tmp_path: Path, transport: str) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    server.write_config()
    text = server.config.read_text()
    server.config.write_text(text.replace(str(server.identity), str(other)))
    error = await _error(server.access(transport=transport))
    assert isinstance(error, LoginRefused)
    assert "ssh -" in str(error.hint)
    server.config.write_text(text)
    error = await _error(server.access(transport=transport, address="nobodyhere@machine"))
    assert isinstance(error, LoginRefused)
    assert "nobodyhere" in str(error)


async def test_the_command_to_check_a_refused_key_names_the_key(server: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    error = await _error(server.access(identity=str(other)))
    assert f"-i {other} machine`" in str(error.hint)


async def test_a_key_with_a_passphrase_and_no_agent_is_named(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(server.identity)], check=True)
    for identity in (None, str(server.identity)):
        error = await _error(server.access(identity=identity))
        assert isinstance(error, LoginRefused)
        assert "has a passphrase, and no SSH agent holds it" in error.message
        assert f"ssh-add {server.identity}" in str(error.hint)


async def test_an_agent_opens_a_key_with_a_passphrase(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
        try:
            while not Path(path).exists():
                assert agent.poll() is None
            env = {"SSH_AUTH_SOCK": path, "PATH": "/usr/bin:/bin"}
            subprocess.run(["ssh-add", "-q", str(server.identity)], env=env, check=True)
            subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(server.identity)], check=True)
            server.config.write_text(server.config.read_text().replace("IdentityAgent none", ""))
            monkeypatch.setenv("SSH_AUTH_SOCK", path)
            host = connect(server.access())
            assert (await host.run(["echo", "in"])).stdout == b"in\n"
            await host.close()
        finally:
            agent.terminate()
            agent.wait()


async def test_missing_files_are_named(server: Sshd, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for what, changes in (("identity file", {"identity": missing}), ("SSH configuration", {"config": missing})):
        error = await _error(server.access(**changes))
        assert isinstance(error, LoginRefused)
        assert error.message == f"The {what} {missing} is not there or cannot be read."
    server.config.write_text(server.config.read_text().replace(str(server.identity), missing))
    assert missing in (await _error(server.access())).message


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_closed_port_and_a_name_that_is_none_may_be_tried_again(server: Sshd, transport: str) -> None:
    server.stop()
    error = await _error(server.access(transport=transport))
    assert isinstance(error, ServerLost)
    assert "refuse" in error.message
    server.config.write_text(server.config.read_text().replace("HostName 127.0.0.1", "HostName no.such.invalid"))
    error = await _error(server.access(transport=transport))
    assert isinstance(error, ServerLost)
    assert "resolve" in error.message


async def test_a_server_that_says_nothing_is_given_up_in_time(server: Sshd) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        error = await _error(server.access(port=port, connect_timeout_s=0.5))
    assert isinstance(error, ServerLost)
    assert "did not answer within 0.5 s" in error.message
    assert error.hint


async def test_an_account_without_a_shell_is_one_sentence() -> None:
    with tempfile.TemporaryDirectory() as name, account("/usr/sbin/nologin") as user:
        Path(name).chmod(0o755)
        with sshd(Path(name, "sshd"), user=user.pw_name) as server:
            error = await _error(server.access())
    assert "runs no command: This account is currently not available" in error.message


async def test_a_jump_host_is_gone_through_and_checked_as_strictly() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sshd(folder / "a", alias="gate") as gate, sshd(folder / "b", alias="inner") as inner:
            config = folder / "config"
            inner.write_config("ProxyJump gate")
            config.write_text(gate.config.read_text() + inner.config.read_text())
            access = inner.access(config=str(config))
            host = connect(access)
            done = await host.run(["sh", "-c", "echo $SSH_CONNECTION"])
            assert done.stdout.split()[3].decode() == str(inner.port)
            assert len(gate.sessions()) == 1
            await host.close()
            shutil.copy(f"{inner.host_key}.pub", folder / "spare")
            known = _fingerprint(gate)
            gate.rekey()
            error = await _error(access)
            assert isinstance(error, LoginRefused)
            assert "gate" in error.message
            assert known in error.message


async def test_a_ring_of_jump_hosts_ends(server: Sshd) -> None:
    server.write_config("ProxyJump other")
    server.config.write_text(server.config.read_text() + "Host other\n    ProxyJump machine\n")
    assert "ring" in (await _error(server.access())).message


async def test_what_a_server_says_moves_no_cursor(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name, account("/bin/sh") as user:
        Path(name).chmod(0o755)
        evil = Path(name, "evil")
        evil.write_text("#!/bin/sh\nprintf '\\033]0;owned\\007\\033[2Jno\\033[1m way\\n' >&2; exit 1\n")
        evil.chmod(0o755)
        with sshd(Path(name, "sshd"), user=user.pw_name, lines=[f"ForceCommand {evil}"]) as server:
            error = await _error(server.access())
    assert "runs no command: no way" in error.message
