"""Blocks that a fetched file fills on its way, over either transport."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit.core.errors import ServerError, StoreError
from cockpit.hosts import Host, connect
from cockpit.hosts.remote import Call
from cockpit.hosts.ssh import SshHost
from tests.hosts.sshd import LIMIT_S, Sshd

pytestmark = pytest.mark.hosts

# Seeded, so that both ends know the bytes; words on standard error come in between.
_TALKER = r"""
import os, random, sys
random.seed(7)
for _ in range(300):
    data = random.randbytes(random.choice((1, 100, 5000, 40000, 70000)))
    while data:
        data = data[os.write(1, data):]
    os.write(2, b"word\n")
"""


def _told() -> bytes:
    import random

    made = random.Random(7)
    return b"".join(made.randbytes(made.choice((1, 100, 5000, 40000, 70000))) for _ in range(300))


@pytest.fixture(params=["asyncssh", "openssh"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def _call(server: Sshd, transport: str, program: str) -> tuple[SshHost, Call]:
    host = SshHost(server.access(transport=transport))
    call = host.call([sys.executable, "-I", "-S", "-c", program])
    await call.start()
    return host, call


@pytest.mark.parametrize("room", [1000, 65536, 300_000, 50_000_000])
async def test_blocks_and_reads_in_turn_bring_each_byte_once(server: Sshd, transport: str, room: int) -> None:
    host, call = await _call(server, transport, _TALKER)
    got = bytearray()
    block = memoryview(bytearray(room))
    async with asyncio.timeout(LIMIT_S):
        errors = asyncio.create_task(call.keep_errors())
        while size := await call.read_into(block):
            got += block[:size]
            got += await call.read(777)
        assert await call.wait() == 0
        await errors
        await call.end()
    await host.close()
    assert bytes(got) == _told()
    assert call.errors == b"word\n" * 300


async def test_a_block_that_nothing_fills_is_handed_out_with_what_came(server: Sshd, transport: str) -> None:
    host, call = await _call(server, transport, "import os; os.write(1, b'abc'); os.read(0, 1)")
    block = memoryview(bytearray(1000))
    async with asyncio.timeout(LIMIT_S):
        size = await call.read_into(block)
        while size < 3:
            size += await call.read_into(block[size:])
        assert bytes(block[:size]) == b"abc"
        await call.running.write(b"x")
        assert await call.read_into(block) == 0, "the end is none"
        await call.end()
    await host.close()


async def test_a_connection_that_breaks_ends_a_block(server: Sshd, transport: str) -> None:
    host, call = await _call(server, transport, "import os; os.write(1, b'abc'); os.read(0, 1)")
    block = memoryview(bytearray(1000))
    async with asyncio.timeout(LIMIT_S):
        assert await call.read_into(block) > 0
        waiting = asyncio.create_task(call.read_into(block))
        await asyncio.sleep(0)
        server.cut()
        while await waiting:
            waiting = asyncio.create_task(call.read_into(block))
        await call.running.close()
    await host.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_a_disk_that_fills_up_between_two_blocks_keeps_nothing(
    server: Sshd, transport: str, small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(20_000_000))
    host = connect(server.access(transport=transport))
    with pytest.raises(StoreError, match=r"The disk that holds .* is full"):
        await host.get(str(source), small_disk / "copy")
    assert list(small_disk.iterdir()) == []
    small = source.read_bytes()[:5_000_001]
    source.write_bytes(small)
    assert await host.get(str(source), small_disk / "copy") == hashlib.sha256(small).hexdigest()
    await host.close()
    assert "never retrieved" not in caplog.text


async def test_what_came_before_a_break_is_on_the_disk(server: Sshd, tmp_path: Path, host: Host) -> None:
    """Blocks that wait for their turn are not lost with the connection."""
    size = 64 * 1024 * 1024
    source, back = tmp_path / "source", tmp_path / "new" / "back"
    source.write_bytes(os.urandom(size))
    seen: list[int] = []

    def cut(done: int, _: int) -> None:
        seen.append(done)
        if done > size // 3 and len([n for n in seen if n > size // 3]) == 1:
            server.cut()

    with pytest.raises(ServerError):
        await host.get(str(source), back, progress=cut)
    (part,) = back.parent.iterdir()
    assert part.stat().st_size >= seen[-1]
    assert part.read_bytes() == source.read_bytes()[: part.stat().st_size]
