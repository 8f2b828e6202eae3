"""Files of a server over a real sshd: written whole, copied both ways, and gone on with where a copy broke off."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from cockpit.core.errors import ServerError, StoreError
from cockpit.hosts import Host, ServerDiskFull, ServerLost, connect, far_call, ssh_transfer
from cockpit.hosts.ssh import SshHost
from tests.hosts.sshd import Sshd

pytestmark = pytest.mark.hosts

LIMIT_S = 20.0


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
