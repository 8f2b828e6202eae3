"""Following files: every byte once, in order, of files that come and grow while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.core.errors import ServerError
from cockpit.hosts import FileTruncated, LocalHost
from cockpit.hosts.base import BLOCK_BY

LIMIT_S = 20.0
QUICK_S = 0.001


class Follower:
    """Follows in a task and keeps what came; `until` waits for a number of bytes of a file."""

    def __init__(self, cursors: dict[str, int]) -> None:
        self.cursors = cursors
        self.got: dict[str, bytearray] = {}
        self.blocks: list[tuple[str, int, int]] = []
        self.news = asyncio.Condition()

    async def run(self) -> None:
        async with aclosing(LocalHost().follow(self.cursors, interval=QUICK_S)) as chunks:
            async for chunk in chunks:
                have = self.got.setdefault(chunk.path, bytearray())
                assert chunk.offset == len(have), "a block came twice, or one is missing"
                have += chunk.data
                self.blocks.append((chunk.path, chunk.offset, len(chunk.data)))
                async with self.news:
                    self.news.notify_all()

    async def until(self, path: str, size: int) -> None:
        async with asyncio.timeout(LIMIT_S), self.news:
            await self.news.wait_for(lambda: len(self.got.get(path, b"")) >= size)


async def _with(follower: Follower, body: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.create_task(follower.run())
    try:
        await body()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.timeout(LIMIT_S):
                await task


_piece = st.binary(max_size=40).flatmap(lambda b: st.sampled_from([1, 1, 1, 9000, 30000]).map(lambda n: b * n))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), _piece, st.booleans()), max_size=12))
def test_any_appends_arrive_byte_exact_in_order_and_once(appends: list[tuple[int, bytes, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, "sub", f"file{i}")) for i in range(3)]
        Path(folder, "sub").mkdir()
        wrote: dict[str, bytes] = {}
        follower = Follower({paths[0]: 0})

        async def append() -> None:
            for i, data, wait in appends:
                with Path(paths[i]).open("ab") as f:
                    f.write(data)
                wrote[paths[i]] = wrote.get(paths[i], b"") + data
                follower.cursors.setdefault(paths[i], 0)
                if wait:
                    await follower.until(paths[i], len(wrote[paths[i]]))
            for path, data in wrote.items():
                await follower.until(path, len(data))

        asyncio.run(_with(follower, append))
        assert {p: bytes(b) for p, b in follower.got.items()} == {p: b for p, b in wrote.items() if b}
        assert all(size <= BLOCK_BY for _, _, size in follower.blocks)
        assert follower.cursors == {paths[0]: 0} | {p: len(b) for p, b in wrote.items()}


async def _first(cursors: dict[str, int], count: int) -> list[bytes]:
    out: list[bytes] = []
    async with asyncio.timeout(LIMIT_S), aclosing(LocalHost().follow(cursors, interval=QUICK_S)) as chunks:
        async for chunk in chunks:
            out.append(chunk.data)
            if len(out) == count:
                break
    return out


async def test_it_goes_on_where_the_cursor_stands(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    cursors = {str(path): 4}
    assert await _first(cursors, 1) == [b"456789"]
    assert cursors == {str(path): 10}


async def test_a_cursor_set_back_while_a_block_is_in_hand_gives_it_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"abc")
    cursors = {str(path): 0}
    got = []
    async with asyncio.timeout(LIMIT_S), aclosing(LocalHost().follow(cursors, interval=QUICK_S)) as chunks:
        async for chunk in chunks:
            got.append(chunk.data)
            if len(got) == 2:
                break
            cursors[str(path)] = 0  # as a mirror does whose disk was full
    assert got == [b"abc", b"abc"]


async def test_a_dropped_path_is_not_read_on(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_bytes(b"one")
    two.write_bytes(b"two")
    cursors = {str(one): 0, str(two): 0}
    async with asyncio.timeout(LIMIT_S), aclosing(LocalHost().follow(cursors, interval=QUICK_S)) as chunks:
        first = await anext(chunks)
        other = str(two) if first.path == str(one) else str(one)
        cursors.clear()
        (tmp_path / "3").write_bytes(b"three")
        cursors[str(tmp_path / "3")] = 0
        second = await anext(chunks)
    assert (second.path, second.data) == (str(tmp_path / "3"), b"three")
    assert other not in cursors


async def test_many_busy_files_all_get_their_turn(tmp_path: Path) -> None:
    cursors = {}
    for i in range(40):
        path = tmp_path / f"{i:02}"
        path.write_bytes(b"x" * (3 * BLOCK_BY if i < 20 else 10))
        cursors[str(path)] = 0
    seen: list[str] = []
    async with asyncio.timeout(LIMIT_S), aclosing(LocalHost().follow(cursors, interval=QUICK_S)) as chunks:
        async for chunk in chunks:
            seen.append(chunk.path)
            if len(set(seen)) == 40:
                break
    assert max(seen.count(path) for path in cursors) <= 2, "a file was read on and on while another waited"


async def test_a_file_that_was_cut_is_named_and_the_others_can_be_followed_on(tmp_path: Path) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    cut.write_bytes(b"12")
    whole.write_bytes(b"all of it")
    cursors = {str(cut): 5, str(whole): 0}
    async with asyncio.timeout(LIMIT_S), aclosing(LocalHost().follow(cursors, interval=QUICK_S)) as chunks:
        assert (await anext(chunks)).data == b"all of it"
        with pytest.raises(FileTruncated, match=r"has 2 bytes, but 5 were already read") as caught:
            await anext(chunks)
    assert caught.value.path == str(cut)
    del cursors[caught.value.path]
    with whole.open("ab") as f:
        f.write(b"+")
    assert await _first(cursors, 1) == [b"+"]


async def test_a_folder_cannot_be_followed(tmp_path: Path) -> None:
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(ServerError, match="cannot be used"):
        await _first({str(tmp_path / "folder"): 0}, 1)


async def test_following_stops_at_once_when_cancelled(tmp_path: Path) -> None:
    task = asyncio.create_task(_first({str(tmp_path / "never"): 0}, 1))
    await asyncio.sleep(0)  # let it begin
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(1):
            await task
