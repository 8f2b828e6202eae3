"""Following files over SSH: every byte once and in order, also where the link is cut, from servers that may lie."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from cockpit.core.errors import ServerError
from cockpit.core.records import Chunk
from cockpit.hosts import FileTruncated, Host, ServerLost, connect
from cockpit.hosts.base import BLOCK_BY
from tests.hosts.sshd import Sshd

pytestmark = pytest.mark.hosts

LIMIT_S = 30.0
QUICK_S = 0.005


async def _take(host: Host, cursors: dict[str, int], enough: int) -> list[Chunk]:
    out: list[Chunk] = []
    async with asyncio.timeout(LIMIT_S), aclosing(host.follow(cursors, interval=QUICK_S)) as chunks:
        async for chunk in chunks:
            out.append(chunk)
            if sum(len(c.data) for c in out) >= enough:
                break
    return out


def _joined(chunks: list[Chunk], path: Path) -> bytes:
    return b"".join(c.data for c in chunks if c.path == str(path))


async def test_files_that_come_and_grow_arrive_whole(host: Host, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two \n'ü"
    one.write_bytes(b"x" * (BLOCK_BY * 3 + 5))
    cursors = {str(one): 2, str(two): 0}

    async def grow() -> None:
        with two.open("ab") as f:
            for i in range(50):
                f.write(b"%d\n" % i)
                f.flush()
                await asyncio.sleep(0.002)

    growing = asyncio.create_task(grow())
    expected = b"".join(b"%d\n" % i for i in range(50))
    chunks = await _take(host, cursors, BLOCK_BY * 3 + 3 + len(expected))
    await growing
    assert _joined(chunks, one) == one.read_bytes()[2:]
    assert _joined(chunks, two) == expected
    assert all(len(c.data) <= BLOCK_BY for c in chunks)
    assert cursors == {str(one): BLOCK_BY * 3 + 5, str(two): len(expected)}


async def test_cursors_may_be_added_dropped_and_reset_while_it_runs(host: Host, tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("1", "2", "3"))
    one.write_bytes(b"one")
    cursors = {str(one): 0}
    got = []
    async with asyncio.timeout(LIMIT_S), aclosing(host.follow(cursors, interval=QUICK_S)) as chunks:
        async for chunk in chunks:
            got.append((Path(chunk.path).name, chunk.offset, chunk.data))
            if len(got) == 1:
                cursors[str(one)] = 1  # as a mirror does whose disk was full
            elif len(got) == 2:
                del cursors[str(one)]
                one.write_bytes(b"one more")
                two.write_bytes(b"two")
                cursors[str(two)] = 0
            elif len(got) == 3:
                cursors[str(three)] = 0
                three.write_bytes(b"three")
            else:
                break
    assert got == [("1", 0, b"one"), ("1", 1, b"ne"), ("2", 0, b"two"), ("3", 0, b"three")]


async def test_busy_files_do_not_starve_the_others(host: Host, tmp_path: Path) -> None:
    cursors = {}
    for i in range(20):
        path = tmp_path / f"{i:02}"
        path.write_bytes(b"x" * (4 * BLOCK_BY if i < 10 else 10))
        cursors[str(path)] = 0
    seen: list[str] = []
    async with asyncio.timeout(LIMIT_S), aclosing(host.follow(cursors, interval=QUICK_S)) as chunks:
        async for chunk in chunks:
            seen.append(chunk.path)
            if len(set(seen)) == 20:
                break
    assert max(seen.count(path) for path in cursors) <= 2


async def test_a_file_that_was_cut_is_named_and_the_others_go_on(host: Host, tmp_path: Path) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    cut.write_bytes(b"12")
    whole.write_bytes(b"all of it")
    cursors = {str(cut): 5, str(whole): 0}
    with pytest.raises(FileTruncated, match=r"has 2 bytes, but 5 were already read") as caught:
        await _take(host, cursors, 1000)
    assert caught.value.path == str(cut)
    del cursors[str(cut)]
    cursors[str(whole)] = 4
    assert _joined(await _take(host, cursors, 5), whole) == b"of it"


async def test_a_folder_cannot_be_followed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(ServerError, match="on machine cannot be used: Is a directory"):
        await _take(host, {str(tmp_path): 0}, 1)


async def test_following_ends_with_its_generator(server: Sshd, tmp_path: Path) -> None:
    host = connect(server.access())
    (tmp_path / "f").write_bytes(b"x")
    await _take(host, {str(tmp_path / "f"): 0}, 1)
    async with asyncio.timeout(LIMIT_S):
        while any(p.children(recursive=True) for p in server.sessions()):
            await asyncio.sleep(0.02)
    await host.close()


async def test_nothing_is_lost_or_doubled_where_the_link_is_cut_again_and_again(server: Sshd, tmp_path: Path) -> None:
    path, lines = tmp_path / "spool", 200_000
    path.touch()
    cursors = {str(path): 0}
    mirror = bytearray()
    host = connect(server.access())
    cuts = 0

    def write() -> None:
        with path.open("ab", buffering=64 * 1024) as f:
            for i in range(lines):
                f.write(b"iteration %07d of a long training\n" % i)

    writing = asyncio.create_task(asyncio.to_thread(write))
    total = lines * len(b"iteration 0000000 of a long training\n")
    async with asyncio.timeout(LIMIT_S):
        while len(mirror) < total:
            try:
                async with aclosing(host.follow(cursors, interval=QUICK_S)) as chunks:
                    async for chunk in chunks:
                        assert chunk.offset == len(mirror)
                        mirror += chunk.data
                        if cuts < 5 and len(mirror) > total * (cuts + 1) // 7:
                            cuts += 1
                            server.cut()
                        if len(mirror) >= total:
                            break
            except ServerLost:
                continue
    await writing
    assert cuts == 5
    assert mirror == path.read_bytes()
    await host.close()


def _evil(folder: Path, body: str) -> str:
    """A "Python" that answers what it likes, once it has heard something."""
    path = folder / "evil"
    path.write_text(f"#!/usr/bin/python3\nimport os, sys, time\nos.read(0, 100)\nout = sys.stdout.buffer\n{body}\n")
    path.chmod(0o755)
    return str(path)


_BLOCK = f"out.write(b'[0,0,{BLOCK_BY}]\\n' + b'x' * {BLOCK_BY})"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("while True: out.write(b'x' * 65536)", "a line without end"),
        ("out.write(b'[0,0,%d]\\n' % 2**40); out.flush(); time.sleep(60)", r"ended|block of|status"),
        ("out.write(b'[0,0,99999999]\\n'); out.flush(); time.sleep(60)", "a block of 99999999 bytes"),
        ("out.write(b'[0,0,-1]\\n'); out.flush(); time.sleep(60)", "a block of -1 bytes"),
        ("out.write(b'[7,0,1]\\nx'); out.flush(); time.sleep(60)", "a file that is not followed"),
        ("out.write(b'[0,5,1]\\nx'); out.flush(); time.sleep(60)", "from 5 on, where 0 was asked for"),
        (f"{_BLOCK}; {_BLOCK}; out.flush(); time.sleep(60)", f"from 0 on, where {BLOCK_BY} was asked for"),
        ("out.write(b'[' * 4000 + b'\\n'); out.flush(); time.sleep(60)", "what is no answer"),
        ('out.write(b\'{"id":0,"cut":1e99}\\n\'); out.flush(); time.sleep(60)', "what is no answer"),
        ('out.write(b\'{"id":0,"error":"\\\\u001b[2Jno"}\\n\'); out.flush(); time.sleep(60)', "cannot be used: no"),
    ],
)
async def test_a_server_that_lies_is_not_believed(server: Sshd, tmp_path: Path, body: str, why: str) -> None:
    host = connect(server.access(python=_evil(tmp_path, body)))
    with pytest.raises(ServerError, match=why):
        await _take(host, {str(tmp_path / "f"): 0}, 2 * BLOCK_BY)
    await host.close()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (["../../etc/passwd", 1], "a file that cannot be"),
        (["/etc/passwd", 1], "a file that cannot be"),
        (["a", -1], "a file that cannot be"),
        ("x", "a file that cannot be"),
    ],
)
async def test_a_listing_leads_nowhere_else(server: Sshd, tmp_path: Path, line: object, why: str) -> None:
    body = f"out.write({json.dumps(line).encode()!r} + b'\\n')"
    host = connect(server.access(python=_evil(tmp_path, body)))
    with pytest.raises(ServerError, match=why):
        await host.listdir("/anything")
    await host.close()


async def test_what_has_no_end_is_given_up(server: Sshd, tmp_path: Path) -> None:
    host = connect(server.access(python=_evil(tmp_path, "while True: out.write(b'[\"a\", 1]\\n' * 9000)")))
    with pytest.raises(ServerError, match=r"sent more than \d+ bytes"):
        await host.listdir("/anything")
    with pytest.raises(ServerError, match=r"sent more than 10 bytes"):
        await host.read("/anything", 0, 10)
    with pytest.raises(ServerError, match=r"yes on machine prints more than 67108864 bytes"):
        await host.run(["yes"], timeout=LIMIT_S)
    await host.close()


async def test_a_file_that_grows_for_ever_is_fetched_as_long_as_it_was(server: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"x" * 3_000_000)
    host = connect(server.access())

    def grow(_: int, __: int) -> None:
        with path.open("ab") as f:
            f.write(b"x" * 3_000_000)

    async with asyncio.timeout(LIMIT_S):
        await host.get(str(path), tmp_path / "copy", progress=grow)
    assert (tmp_path / "copy").stat().st_size == 3_000_000
    with pytest.raises(ServerError, match="has more than 1000 bytes, the most that may be fetched"):
        await host.get(str(path), tmp_path / "other", max_by=1000)
    assert not (tmp_path / "other").exists()
    await host.close()


async def test_a_size_that_a_server_makes_up_fills_no_disk(server: Sshd, tmp_path: Path) -> None:
    body = "out.write(b'{\"size\":10,\"mtime_ns\":0}\\n'); out.flush()\nwhile True: out.write(b'x' * 65536)"
    host = connect(server.access(python=_evil(tmp_path, body)))
    with pytest.raises(ServerError, match="line without end"):
        await host.get("/anything", tmp_path / "copy", max_by=10)
    assert not (tmp_path / "copy").exists()
    await host.close()
