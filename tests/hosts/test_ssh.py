"""SshHost against a real sshd: commands, files, work folders, one connection for all."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.core.errors import LaunchRefused, ServerError, StoreError
from cockpit.hosts import Host, ServerDiskFull, ServerLost, ServerTimeout, connect, far_call, ssh_transfer
from cockpit.hosts.remote import command_line
from cockpit.hosts.ssh import SshHost
from tests.hosts.sshd import Sshd, account, sshd

pytestmark = pytest.mark.hosts

LIMIT_S = 20.0
TRANSPORTS = ["asyncssh", "openssh"]


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder, "sshd")) as running:
        yield running


@pytest.fixture(params=TRANSPORTS)
async def host(request: pytest.FixtureRequest, server: Sshd) -> AsyncIterator[Host]:
    made = connect(server.access(transport=request.param))
    yield made
    await made.close()


@pytest.fixture
async def plain(server: Sshd) -> AsyncIterator[Host]:
    made = connect(server.access())
    yield made
    await made.close()


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


async def test_put_writes_whole_files_in_private_folders(host: Host, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.json"
    await host.put(b"one", str(target))
    await host.put(b"two" * 300_000, str(target), mode=0o640)
    assert target.read_bytes() == b"two" * 300_000
    assert target.stat().st_mode & 0o777 == 0o640
    assert [p.stat().st_mode & 0o777 for p in (target.parent, target.parent.parent)] == [0o700, 0o700]
    assert [p.name for p in target.parent.iterdir()] == ["c.json"]
    await host.mkdirs(str(tmp_path / "x" / "y"))
    assert (tmp_path / "x" / "y").stat().st_mode & 0o777 == 0o700


async def test_where_a_file_stands_in_the_way_it_is_one_sentence(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ServerError, match=r"file.* on machine cannot be used: "):
        await host.put(b"x", str(tmp_path / "file" / "below"))
    with pytest.raises(ServerError, match=r"on machine cannot be used: Is a directory"):
        await host.put(b"x", str(tmp_path))
    with pytest.raises(ServerError, match=str(tmp_path)):
        await host.read(str(tmp_path))


async def test_a_full_disk_of_the_server_is_named_and_the_old_file_stays(plain: Host, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2**21))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=True)
    try:
        await plain.put(b"old", str(disk / "file"))
        with pytest.raises(ServerDiskFull, match=str(disk)) as caught:
            await plain.put(b"x" * 2**21, str(disk / "file"))
        assert caught.value.folder == str(disk)
        with pytest.raises(ServerDiskFull, match=str(disk)):
            await plain.put_file(source, str(disk / "file"))
        with pytest.raises(StoreError, match="full"):
            await plain.get(str(source), disk / "copy")
        assert [(e.path, e.size) for e in await plain.listdir(str(disk))] == [("file", 3)]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_read_and_listdir(host: Host, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a\nb").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("/etc/passwd")
    path = str(tmp_path / "deep" / "a\nb")
    assert [await host.read(path, 3, 4), await host.read(path, 8), await host.read(path, 10)] == [b"3456", b"89", b""]
    assert await host.read(str(tmp_path / "missing")) == b""
    assert [(e.path, e.size) for e in await host.listdir(str(tmp_path))] == [("deep/a\nb", 10)]
    assert await host.listdir(str(tmp_path / "missing")) == []
    assert len(await host.read("/proc/self/maps")) > 0


async def test_get_and_put_file_bring_the_bytes_their_sum_and_progress(host: Host, tmp_path: Path) -> None:
    data = os.urandom(5 * 1024 * 1024 + 17)
    right = hashlib.sha256(data).hexdigest()
    source, there, back = tmp_path / "source", tmp_path / "x" / "there", tmp_path / "new" / "back"
    source.write_bytes(data)
    up: list[tuple[int, int]] = []
    down: list[tuple[int, int]] = []
    sent = await host.put_file(source, str(there), mode=0o755, progress=lambda n, of: up.append((n, of)))
    got = await host.get(str(there), back, sha256=right, progress=lambda n, of: down.append((n, of)))
    assert sent == got == right
    assert there.read_bytes() == back.read_bytes() == data
    assert there.stat().st_mode & 0o777 == 0o755
    assert up[-1] == down[-1] == (len(data), len(data))
    assert up == sorted(up)
    assert [p.name for p in (*there.parent.iterdir(), *back.parent.iterdir())] == ["there", "back"]


async def test_get_of_an_empty_file_and_of_none(host: Host, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    assert await host.get(str(tmp_path / "empty"), tmp_path / "copy") == hashlib.sha256().hexdigest()
    for name, why in (("missing", "No such file"), ("", "not a regular file"), ("fifo", "not a regular file")):
        with pytest.raises(ServerError, match=f"on machine cannot be used: .*{why}"):
            await host.get(str(tmp_path / name), tmp_path / "target")
    with pytest.raises(ServerError, match="another checksum"):
        await host.get(str(tmp_path / "empty"), tmp_path / "target", sha256="0" * 64)
    assert not (tmp_path / "target").exists()


async def test_copies_that_broke_off_go_on_where_they_were(server: Sshd, tmp_path: Path) -> None:
    size = 48 * 1024 * 1024
    source, there, back = tmp_path / "source", tmp_path / "x" / "there", tmp_path / "y" / "back"
    source.write_bytes(os.urandom(size))
    host = connect(server.access())
    cut = False

    def halfway(done: int, _: int) -> None:
        nonlocal cut
        if done > size // 2 and not cut:
            cut = True
            server.cut()

    with pytest.raises(ServerLost):
        await host.put_file(source, str(there), progress=halfway)
    assert not there.exists()
    first: list[int] = []
    right = await host.put_file(source, str(there), progress=lambda n, _: first.append(n))
    assert first[0] > size // 8, "the copy began anew"
    cut = False
    with pytest.raises(ServerLost):
        await host.get(str(there), back, progress=halfway)
    assert not back.exists()
    first.clear()
    assert await host.get(str(there), back, sha256=right, progress=lambda n, _: first.append(n)) == right
    assert first[0] > size // 8, "the copy began anew"
    assert back.read_bytes() == source.read_bytes()
    assert [p.name for p in (*there.parent.iterdir(), *back.parent.iterdir())] == ["there", "back"]
    await host.close()


async def test_a_partial_copy_that_does_not_fit_is_thrown_away(plain: Host, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "y" / "back"
    source.write_bytes(os.urandom(3_000_000))
    right = hashlib.sha256(source.read_bytes()).hexdigest()
    task = asyncio.create_task(plain.get(str(source), back))
    async with asyncio.timeout(LIMIT_S):
        while not back.parent.exists() or not list(back.parent.glob(".back.*.part")):
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for part in back.parent.glob(".back.*.part"):
        part.write_bytes(b"something else")
    assert await plain.get(str(source), back) == right
    assert [p.name for p in back.parent.iterdir()] == ["back"]


async def test_the_rest_of_a_large_copy_may_be_long_in_coming(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends first make the sum of what is there, and in the end force it to the disk: minutes for 60 GB."""
    text = far_call.source("far").partition(b"\n")[2]
    slow = text.replace(
        b"digest = hashlib.sha256()\n", b"digest = hashlib.sha256()\n    __import__('time').sleep(3)\n"
    )
    slow = slow.replace(b"os.fsync(f.fileno())", b"__import__('time').sleep(3)")
    assert slow.count(b"sleep(3)") == 3
    monkeypatch.setattr(far_call, "source", lambda _: b"%d\n" % len(slow) + slow)
    monkeypatch.setattr(far_call, "SLOW_DISK_BY_S", 100.0)
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "y" / "back"
    source.write_bytes(b"x" * 1000)
    host = SshHost(server.access(), io_timeout_s=2.0)
    try:
        right = await host.put_file(source, str(there))
        info = there.stat()
        key = ssh_transfer._key(host.name, str(there), info.st_size, info.st_mtime_ns)
        back.parent.mkdir()
        (back.parent / f".back.{key}.part").write_bytes(b"x" * 500)
        assert await host.get(str(there), back) == right
    finally:
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
