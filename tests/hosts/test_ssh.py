"""SshHost against a real sshd: commands, files, work folders, one connection for all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.core.errors import LaunchRefused, ServerError, StoreError
from cockpit.hosts import Host, ServerLost, ServerTimeout, connect
from cockpit.hosts.remote import command_line
from tests.hosts.sshd import Sshd, account, sshd

pytestmark = pytest.mark.hosts

LIMIT_S = 20.0


async def test_a_command_gives_its_bytes_and_its_exit_status(host: Host) -> None:
    done = await host.run(["sh", "-c", r"cat; printf '\377\n' >&2; exit 3"], input=b"\x00in", timeout=LIMIT_S)
    assert (done.rc, done.stdout, done.stderr) == (3, b"\x00in", b"\xff\n")
    assert (await host.run(["cat"], timeout=LIMIT_S)).stdout == b""
    assert (await host.run(["/nothing/there"], timeout=LIMIT_S)).rc == 127


async def test_a_command_killed_by_a_signal_says_so(plain: Host) -> None:
    assert (await plain.run(["sh", "-c", "kill -9 $$"], timeout=LIMIT_S)).rc == -9
    assert (await plain.run(["sh", "-c", "kill -TERM $$"], timeout=LIMIT_S)).rc == -15


async def test_a_program_that_does_not_read_its_input_is_no_error(host: Host) -> None:
    done = await host.run(["true"], input=b"x" * 5_000_000, timeout=LIMIT_S)
    assert done.rc == 0


_word = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_word | st.sampled_from(["$(id)", "`id`", "; rm x", "'", '"', "\\", "!x", "a\nb", "~", "*", "-n", ""]))
)
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_every_word_reaches_a_command_as_data(shell: str, words: list[str]) -> None:
    line = command_line(["printf", r"%s\0", *words])
    assert not set("!\\\n").intersection(line.replace("\\0", "")), "a csh or a fish would read that in its own way"
    said = subprocess.run([shell, "-c", line], capture_output=True, check=True).stdout
    assert said == b"".join(w.encode() + b"\0" for w in words or [""])


async def test_words_and_long_words_reach_a_command_over_the_wire(host: Host) -> None:
    words = ["two words", "'", '"', "$(id)", ";", "\n\n", "ü\U0001f680", "\\", "!", "x" * 50_000, ""]
    done = await host.run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words], timeout=LIMIT_S)
    assert done.stdout.decode().strip() == repr(words)


async def test_a_word_that_no_command_can_have_is_refused(plain: Host) -> None:
    with pytest.raises(ServerError, match="NUL"):
        await plain.run(["echo", "a\0b"])


async def test_what_the_login_shell_prints_is_no_output_of_a_command() -> None:
    with tempfile.TemporaryDirectory() as name, account("/bin/bash") as user:
        Path(name).chmod(0o755)
        Path(user.pw_dir, ".bashrc").write_text("echo 'Welcome!'; printf 'no newline'\n")
        with sshd(Path(name, "sshd"), user=user.pw_name) as server:
            host = connect(server.access())
            done = await host.run(["echo", "mine"], timeout=LIMIT_S)
            assert done.stdout == b"mine\n"
            await host.put(b"data", f"{user.pw_dir}/w/file")
            assert await host.read(f"{user.pw_dir}/w/file") == b"data"
            await host.close()


async def _gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)


async def _pid_in(path: Path) -> int:
    async with asyncio.timeout(LIMIT_S):
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.01)
    return int(path.read_text())


async def test_a_timeout_kills_the_whole_process_group(host: Host, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(ServerTimeout, match=r"sh on machine did not end within 2 s"):
        await host.run(["sh", "-c", f"sleep 600 & echo $! > '{note}'; wait"], timeout=2)
    await _gone(await _pid_in(note))


async def test_cancelling_kills_the_whole_process_group(host: Host, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    task = asyncio.create_task(host.run(["sh", "-c", f"sleep 600 & echo $! > '{note}'; wait"], timeout=600))
    pid = await _pid_in(note)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(pid)


async def test_twenty_commands_at_once_share_one_connection_of_two_hosts(server: Sshd) -> None:
    one, two = connect(server.access()), connect(server.access())
    before = len(server.sessions())
    runs = [host.run(["sh", "-c", f"echo {i}"], timeout=LIMIT_S) for i in range(10) for host in (one, two)]
    done = await asyncio.gather(*runs)
    assert sorted(int(d.stdout) for d in done) == sorted([*range(10), *range(10)])
    assert len(server.sessions()) == before + 1
    await one.close()
    assert (await two.run(["true"], timeout=LIMIT_S)).rc == 0, "the connection ended with the first of two hosts"
    await two.close()
    async with asyncio.timeout(LIMIT_S):
        while len(server.sessions()) > before:
            await asyncio.sleep(0.01)


async def test_a_connection_that_broke_is_told_and_the_next_call_makes_another(server: Sshd, tmp_path: Path) -> None:
    host = connect(server.access())
    task = asyncio.create_task(host.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], timeout=600))
    pid = await _pid_in(tmp_path / "pid")
    server.cut()
    with pytest.raises(ServerLost, match=r"The connection to machine broke"):
        await task
    assert (await host.run(["echo", "back"], timeout=LIMIT_S)).stdout == b"back\n"
    psutil.Process(pid).kill()  # a command outlives the connection
    await host.close()


async def test_a_frozen_server_counts_as_lost_after_its_keepalives(server: Sshd) -> None:
    host = connect(server.access(keepalive_s=0.5, keepalive_count=2))
    await host.run(["true"], timeout=LIMIT_S)
    frozen = [p for s in server.sessions() for p in (s, *s.children())]
    for process in frozen:
        process.suspend()
    try:
        with pytest.raises(ServerLost):
            await host.run(["true"], timeout=LIMIT_S)
    finally:
        for process in frozen:
            process.kill()
        await host.close()


async def test_the_work_folder_is_named_after_the_machine(host: Host, tmp_path: Path) -> None:
    name = os.uname().nodename
    assert await host.workdir() == f"/root/.local/state/ekvi-cockpit/{name}"
    assert await host.workdir("~/mine") == "/root/mine"
    assert await host.workdir(str(tmp_path / "w")) == str(tmp_path / "w")
    with pytest.raises(LaunchRefused, match=r"'work' on machine is not an absolute path"):
        await host.workdir("work")


async def test_remove_tree_keeps_to_its_work_folder(host: Host, tmp_path: Path) -> None:
    work = Path(await host.workdir(str(tmp_path / "work")))
    outside = tmp_path / "outside"
    outside.mkdir()
    (work / "groups" / "g").mkdir(parents=True)
    (work / "groups" / "g").chmod(0o500)
    (work / "link").symlink_to(outside)
    refused = [str(work), str(outside), str(work / ".." / "outside"), str(work / "link" / "x"), "/", f"{work}/.."]
    for path in refused:
        with pytest.raises(ServerError, match="left alone"):
            await host.remove_tree(path)
    for name in ("groups", "link", "missing"):
        await host.remove_tree(str(work / name))
    assert outside.is_dir()
    assert list(work.iterdir()) == []


async def test_stream_hands_on_what_is_printed_while_it_is_printed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 700_000)
    out: list[bytes] = []
    seen = asyncio.Event()

    def show(data: bytes) -> None:
        out.append(data)
        if b"".join(out).startswith(b"begin\n"):
            seen.set()

    os.mkfifo(tmp_path / "gate")
    script = f"echo begin >&2; cat {tmp_path}/gate; cat; exit 5"
    task = asyncio.create_task(host.stream(["sh", "-c", script], output=show, input=tmp_path / "in", timeout=LIMIT_S))
    async with asyncio.timeout(LIMIT_S):
        await seen.wait()
    assert not task.done()
    await asyncio.to_thread((tmp_path / "gate").write_bytes, b"go\n")
    done = await task
    assert b"".join(out) == b"begin\ngo\n" + b"x" * 700_000
    assert (done.rc, done.stdout, done.stderr) == (5, b"", b"x" * 65536)
    with pytest.raises(StoreError, match="cannot be read"):
        await host.stream(["cat"], output=show, input=tmp_path / "missing")


async def test_a_server_without_a_usable_python_is_one_sentence(server: Sshd, tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 93\n")
    old.chmod(0o755)
    for python, why in (("python4", "cannot be started"), (str(old), "is older than 3.8")):
        host = connect(server.access(python=python))
        with pytest.raises(ServerError, match=rf"Python as '.*' on machine {why}") as caught:
            await host.put(b"x", str(tmp_path / "file"))
        assert "set the server's python" in str(caught.value.hint)
        with pytest.raises(ServerError, match=why):
            await anext(host.follow({str(tmp_path / "file"): 0}))
        assert (await host.run(["true"], timeout=LIMIT_S)).rc == 0
        await host.close()


async def test_the_network_name_is_the_configurations(host: Host) -> None:
    assert await host.network_name() == "127.0.0.1"
