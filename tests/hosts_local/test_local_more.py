"""LocalHost: long commands, files brought and fetched with bounds and progress."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cockpit.core.errors import ServerError, StoreError, UsageError
from cockpit.hosts import LocalHost, ServerTimeout

LIMIT_S = 20.0


async def test_stream_hands_on_both_outputs_and_keeps_the_last(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 100_000)
    out: list[bytes] = []
    done = await LocalHost().stream(
        ["sh", "-c", "echo begin >&2; cat; exit 5"], output=out.append, input=tmp_path / "in", timeout=LIMIT_S
    )
    assert b"".join(out) == b"begin\n" + b"x" * 100_000
    assert (done.rc, done.stdout, done.stderr) == (5, b"", b"x" * 65536)
    done = await LocalHost().stream(["cat"], output=out.append, input=b"bytes", timeout=LIMIT_S)
    assert out[-1] == b"bytes"
    assert (await LocalHost().stream(["/nothing/there"], output=out.append)).rc == 127
    with pytest.raises(StoreError, match="missing cannot be read"):
        await LocalHost().stream(["cat"], output=out.append, input=tmp_path / "missing")
    with pytest.raises(ServerTimeout):
        await LocalHost().stream(["sleep", "60"], output=out.append, timeout=0.2)


async def test_put_file_brings_a_file_whole_with_progress(tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "a" / "b"
    source.write_bytes(os.urandom(5_000_000))
    steps: list[tuple[int, int]] = []
    sha256 = await LocalHost().put_file(source, str(there), mode=0o755, progress=lambda n, of: steps.append((n, of)))
    assert sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert there.read_bytes() == source.read_bytes()
    assert (there.stat().st_mode & 0o777, there.parent.stat().st_mode & 0o777) == (0o755, 0o700)
    assert steps[-1] == (5_000_000, 5_000_000)
    with pytest.raises(StoreError, match="missing cannot be read"):
        await LocalHost().put_file(tmp_path / "missing", str(there))
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match="cannot be written"):
        await LocalHost().put_file(source, str(tmp_path / "file" / "below"))


async def test_get_refuses_more_than_it_may_fetch(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1001)
    with pytest.raises(ServerError, match="has more than 1000 bytes, the most that may be fetched"):
        await LocalHost().get(str(tmp_path / "big"), tmp_path / "copy", max_by=1000)
    assert not (tmp_path / "copy").exists()
    await LocalHost().get(str(tmp_path / "big"), tmp_path / "copy", max_by=1001)
    assert (tmp_path / "copy").stat().st_size == 1001


async def test_a_file_that_grows_for_ever_is_fetched_as_long_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"x" * 5_000_000)

    def grow(_: int, __: int) -> None:
        with path.open("ab") as f:
            f.write(b"x" * 5_000_000)

    await LocalHost().get(str(path), tmp_path / "copy", progress=grow)
    assert (tmp_path / "copy").stat().st_size == 5_000_000


async def test_a_shell_without_a_terminal_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a terminal"):
        await LocalHost().shell(["sh"])
