"""LocalHost: commands, atomic files, work folders."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from cockpit.core.errors import LaunchRefused, ServerError, StoreError
from cockpit.core.records import Access
from cockpit.hosts import LocalHost, ServerDiskFull, ServerTimeout, connect

LIMIT_S = 20.0


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


async def test_a_command_gives_its_bytes_and_its_exit_status(host: LocalHost) -> None:
    done = await host.run(["sh", "-c", r"cat; printf '\377\n' >&2; exit 3"], input=b"\x00in", timeout=LIMIT_S)
    assert (done.rc, done.stdout, done.stderr) == (3, b"\x00in", b"\xff\n")


async def test_a_command_without_input_reads_nothing_from_the_terminal(host: LocalHost) -> None:
    assert (await host.run(["cat"], timeout=LIMIT_S)).stdout == b""


async def test_a_missing_program_is_127_as_in_a_shell(host: LocalHost, tmp_path: Path) -> None:
    done = await host.run([str(tmp_path / "nothing")], timeout=LIMIT_S)
    assert done.rc == 127
    assert "No such file" in done.last_words


async def test_a_command_killed_by_a_signal_says_so(host: LocalHost) -> None:
    assert (await host.run(["sh", "-c", "kill -9 $$"], timeout=LIMIT_S)).rc == -signal.SIGKILL


async def _pid_in(path: Path) -> int:
    async with asyncio.timeout(LIMIT_S):
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.005)
    return int(path.read_text())


async def _gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.005)


async def test_a_timeout_kills_the_whole_process_group(host: LocalHost, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(ServerTimeout, match=r"sh on this machine did not end within 1 s"):
        await host.run(["sh", "-c", f"sleep 600 & echo $! > '{note}'; wait"], timeout=1)
    await _gone(await _pid_in(note))


async def test_cancelling_kills_the_whole_process_group(host: LocalHost, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    task = asyncio.create_task(host.run(["sh", "-c", f"sleep 600 & echo $! > '{note}'; wait"], timeout=600))
    pid = await _pid_in(note)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(pid)


@pytest.mark.parametrize("turns", range(6))
async def test_cancelling_in_the_middle_of_a_start_leaves_nothing(
    host: LocalHost, tmp_path: Path, turns: int
) -> None:
    mark = f"{tmp_path}/never"
    task = asyncio.create_task(host.run(["sh", "-c", f"sleep 600 & wait # {mark}"], timeout=600))
    for _ in range(turns):  # of the event loop: before, in and after the start
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]


async def test_what_detached_itself_outlives_the_command(host: LocalHost, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'],"
        " stdin=open(sys.argv[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True);"
        "print(p.pid)"
    )
    os.mkfifo(note)
    keeper = os.open(note, os.O_RDWR)  # its other end: the child reads until we close it
    try:
        done = await host.run([sys.executable, "-c", script, str(note)], timeout=LIMIT_S)
        pid = int(done.stdout)
        assert psutil.pid_exists(pid)
    finally:
        os.close(keeper)
    await _gone(pid)


async def test_put_writes_whole_files_in_private_folders(host: LocalHost, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.json"
    await host.put(b"one", str(target))
    await host.put(b"two", str(target), mode=0o640)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [p.stat().st_mode & 0o777 for p in (target.parent, target.parent.parent)] == [0o700, 0o700]
    assert [p.name for p in target.parent.iterdir()] == ["c.json"]


async def test_put_where_a_file_stands_in_the_way_is_one_sentence(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ServerError, match=r"file.* on this machine cannot be used: "):
        await host.put(b"x", str(tmp_path / "file" / "below"))


async def test_a_full_disk_is_named_and_the_old_file_stays(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "queue.json"
    await host.put(b"old", str(target))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ServerDiskFull, match=r"The disk that holds .* on this machine is full\.") as caught:
        await host.put(b"new", str(target))
    assert caught.value.folder == str(tmp_path)
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("xdg")] == ["queue.json"]


@pytest.mark.hosts
async def test_a_really_full_disk_is_named_and_the_old_file_stays(host: LocalHost, tmp_path: Path) -> None:
    disk, source = tmp_path / "disk", tmp_path / "source"
    disk.mkdir()
    source.write_bytes(b"x" * 2**20)
    mounted = await host.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], timeout=LIMIT_S)
    assert mounted.rc == 0, mounted.last_words
    try:
        await host.put(b"old", str(disk / "file"))
        with pytest.raises(ServerDiskFull, match=str(disk)):
            await host.put(b"x" * 2**20, str(disk / "file"))
        with pytest.raises(StoreError, match="full"):
            await host.get(str(source), disk / "copy")
        assert [(e.path, e.size) for e in await host.listdir(str(disk))] == [("file", 3)]
        assert (disk / "file").read_bytes() == b"old"
    finally:
        await host.run(["umount", str(disk)], timeout=LIMIT_S)


async def test_read_takes_a_part_and_is_empty_where_nothing_is(host: LocalHost, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert await host.read(str(path), 3, 4) == b"3456"
    assert await host.read(str(path), 8) == b"89"
    assert await host.read(str(path), 10) == b""
    assert await host.read(str(tmp_path / "missing")) == b""


async def test_read_gives_a_file_of_the_kernel_whole(host: LocalHost) -> None:
    path = Path("/proc/self/maps")  # longer than the kernel hands out at once, and of size 0
    if not path.exists():
        pytest.skip("needs Linux, not macOS: /proc")
    assert len(await host.read(str(path))) > 4096


async def test_listdir_finds_regular_files_below(host: LocalHost, tmp_path: Path) -> None:
    top = tmp_path / "out"
    (top / "deep").mkdir(parents=True)
    (top / "b").write_bytes(b"22")
    (top / "deep" / "a").write_bytes(b"1")
    (top / "link").symlink_to("/etc/passwd")
    assert [(e.path, e.size) for e in await host.listdir(str(top))] == [("b", 2), ("deep/a", 1)]
    assert await host.listdir(str(tmp_path / "missing")) == []


async def test_get_brings_the_bytes_and_their_checksum(host: LocalHost, tmp_path: Path) -> None:
    data = os.urandom(5 * 1024 * 1024 + 17)  # more than one step
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    source.write_bytes(data)
    right = hashlib.sha256(data).hexdigest()
    assert await host.get(str(source), target, sha256=right) == right
    assert target.read_bytes() == data


async def test_get_leaves_nothing_behind_when_the_checksum_is_wrong(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"data")
    target = tmp_path / "new" / "target"
    with pytest.raises(ServerError, match="another checksum"):
        await host.get(str(tmp_path / "source"), target, sha256="0" * 64)
    assert list(target.parent.iterdir()) == []


async def test_get_clears_away_what_a_killed_cockpit_left_of_that_file(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"whole")
    home = tmp_path / "home"
    home.mkdir()
    for name in (".big.0123abcd", ".bigger.0123abcd", ".big.other"):
        (home / name).write_bytes(b"part")
    await host.get(str(tmp_path / "big"), home / "big")
    assert sorted(p.name for p in home.iterdir()) == [".big.other", ".bigger.0123abcd", "big"]


async def test_a_read_that_fails_names_the_file(host: LocalHost, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=str(tmp_path)):
        await host.read(str(tmp_path))


@pytest.mark.parametrize("name", ["missing", ""])
async def test_get_of_what_is_no_file_is_one_sentence(host: LocalHost, tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerError, match=r"on this machine cannot be read: "):
        await host.get(str(tmp_path / name), tmp_path / "target")


async def test_the_work_folder_follows_its_order_of_precedence(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME")
    assert await host.workdir() == str(tmp_path / "home/.local/state/ekvi-cockpit/server")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert await host.workdir() == str(tmp_path / "state/ekvi-cockpit/server")
    monkeypatch.setenv("EKVI_WORKDIR", str(tmp_path / "env"))
    assert await host.workdir() == str(tmp_path / "env")
    assert await host.workdir("~/mine") == str(tmp_path / "home/mine")


async def test_a_relative_work_folder_is_refused(host: LocalHost) -> None:
    with pytest.raises(LaunchRefused, match="'work' on this machine is not an absolute path"):
        await host.workdir("work")


async def test_remove_tree_keeps_to_its_work_folder(host: LocalHost, tmp_path: Path) -> None:
    work = Path(await host.workdir(str(tmp_path / "work")))
    outside = tmp_path / "outside"
    outside.mkdir()
    (work / "groups" / "g").mkdir(parents=True)
    (work / "link").symlink_to(outside)
    refused = [str(work), str(outside), str(work / ".." / "outside"), str(work / "link" / "x"), "/", f"{work}/.."]
    for path in refused:
        with pytest.raises(ServerError, match="left alone"):
            await host.remove_tree(path)
    await host.remove_tree(str(work / "groups"))
    await host.remove_tree(str(work / "link"))
    await host.remove_tree(str(work / "missing"))
    assert outside.is_dir()
    assert list(work.iterdir()) == []


def test_an_address_that_is_not_local_leads_elsewhere_without_travelling() -> None:
    assert isinstance(connect(Access()), LocalHost)
    assert connect(Access(address="gpu1.example")).name == "gpu1.example"
