"""Which files come home, and what a server's names may not do."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.engine.fetch import Source, Wanted, bad_name, fetch, matches
from cockpit.hosts import Entry, LocalHost
from cockpit.hosts.base import ServerTimeout
from cockpit.store.rundir import RunDir


@pytest.mark.parametrize(
    ("path", "pattern", "named"),
    [
        ("a.pt", "*.pt", True),
        ("deep/er/a.pt", "*.pt", True),
        ("deep/er/a.pt", "deep/*.pt", False),
        ("deep/er/a.pt", "deep/**", True),
        ("deep/er/a.pt", "deep/**/*.pt", True),
        ("deep/a.pt", "deep/**/*.pt", True),
        ("anything/at/all", "**", True),
        ("a.pt", "?.pt", True),
        ("ab.pt", "?.pt", False),
        ("b.pt", "[a-c].pt", True),
        ("b.pt", "[!a-c].pt", False),
        ("a+b.pt", "a+b.pt", True),
        ("aab.pt", "a+b.pt", False),
    ],
)
def test_patterns(path: str, pattern: str, named: bool) -> None:
    assert matches(path, (pattern,)) is named


@given(st.text(max_size=30), st.text(max_size=10))
def test_any_pattern_is_taken(path: str, pattern: str) -> None:
    matches(path, (pattern,))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../b", "a\x1b]0;x\x07", "a\nb", "", "a//b", ".", "a/.", "a\ud800"]
)
def test_names_that_lead_out_or_cannot_be_shown(path: str) -> None:
    assert bad_name(path)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    folder = tmp_path / "g.left.r1"
    folder.mkdir()
    made = RunDir(folder)
    made.write_meta({"id": "g.left.r1"})
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.json").write_text("{}")
    (folder / "b.pt").write_bytes(b"x" * 1000)
    (folder / "deep" / "c.pt").write_bytes(b"y" * 10)
    return folder


def _home(run_dir: RunDir) -> list[str]:
    return sorted(p.relative_to(run_dir.artifacts).as_posix() for p in run_dir.artifacts.rglob("*") if p.is_file())


async def test_what_is_left_out_is_counted_and_how_to_get_it_is_said(run_dir: RunDir, out: Path) -> None:
    left = await fetch(run_dir, Source(LocalHost(), str(out)), Wanted(("*.pt",), max_by=500))
    assert _home(run_dir) == ["deep/c.pt"]
    assert (left.unnamed, left.beyond) == ((1, 2), (1, 1000))
    told = left.told("left", "g")
    assert "1 file of 2 B" in told[0]
    assert "`ekvi-cockpit fetch g --max-size 1G` brings them." in told[1]
    assert set(run_dir.meta()["artifacts"]) == {"deep/c.pt"}


_STATES = ("checkpoints/step-5/w.pt", "epoch-1/state/shards/0", "step-7/state/progress.json", ".epoch-2.part/w.pt")


@pytest.mark.parametrize(
    ("wanted", "states"),
    [
        (Wanted(), False),
        (Wanted(("*",)), False),
        (Wanted(max_by=1 << 40, asked=True), False),
        (Wanted(("**",), asked=True, states=True), True),
        (Wanted(("**", "checkpoints/**", "*/state/**", ".*/**")), True),
    ],
)
async def test_what_a_training_goes_on_from_comes_only_where_it_is_named(
    run_dir: RunDir, out: Path, wanted: Wanted, states: bool
) -> None:
    for name in (*_STATES, "epoch-1/adapter", "deep/checkpoints/w"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("12345")
    left = await fetch(run_dir, Source(LocalHost(), str(out)), wanted)
    always = {"a.json", "b.pt", "deep/c.pt", "epoch-1/adapter", "deep/checkpoints/w"}
    assert set(_home(run_dir)) == always | (set(_STATES) if states else set())
    assert left.total == ((0, 0) if states else (4, 20))
    told = "Left on left: 4 files of 20 B that a training goes on from."
    how = "`ekvi-cockpit fetch g --pattern '**'` brings them."
    assert left.told("left", "g") == ([] if states else [f"{told} {how}"])


async def test_no_more_files_than_the_limit(run_dir: RunDir, out: Path) -> None:
    left = await fetch(run_dir, Source(LocalHost(), str(out)), Wanted(max_files=2))
    assert len(_home(run_dir)) == 2
    assert left.beyond[0] == 1


class _Lies(LocalHost):
    """A server that names files as it likes, and says that they are small."""

    async def listdir(self, path: str) -> list[Entry]:
        return [Entry("../../escaped", 1), Entry("b.pt", 1), *await super().listdir(path)]


async def test_a_server_that_lies_harms_nobody(run_dir: RunDir, out: Path) -> None:
    left = await asyncio.wait_for(fetch(run_dir, Source(_Lies(), str(out)), Wanted()), 30)
    assert any("is no name for a file" in s for s in left.sentences)
    assert any("more than 1 bytes" in s for s in left.sentences)
    assert not list(out.parent.glob("**/escaped"))


class _Counts(LocalHost):
    """Notes which files were fetched, and which were summed without being fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.summed: list[str] = []

    async def get(self, path: str, target: Path, **how: Any) -> str:
        self.fetched.append(path.rpartition("/")[2])
        return await super().get(path, target, **how)

    async def run(self, argv: Any, *, input: bytes | None = None, **how: Any) -> Any:  # noqa: A002
        self.summed += [name.rpartition("/")[2] for name in (input or b"").decode().split("\0")]
        return await super().run(argv, input=input, **how)


async def test_a_file_is_summed_on_its_way_or_where_it_is_never_both(run_dir: RunDir, out: Path) -> None:
    first, second = _Counts(), _Counts()
    await fetch(run_dir, Source(first, str(out)), Wanted())
    assert (first.fetched, first.summed) == (["a.json", "b.pt", "c.pt"], [])
    (out / "later.pt").write_bytes(b"z")
    await fetch(run_dir, Source(second, str(out)), Wanted())
    assert (second.fetched, second.summed) == (["later.pt"], ["a.json", "b.pt", "c.pt"])
    for name, said in run_dir.meta()["artifacts"].items():
        data = (out / name).read_bytes()
        assert said == {"by": len(data), "sha256": hashlib.sha256(data).hexdigest()}


async def test_a_file_that_changed_and_kept_its_size_comes_again(run_dir: RunDir, out: Path) -> None:
    await fetch(run_dir, Source(LocalHost(), str(out)), Wanted())
    (out / "b.pt").write_bytes(b"w" * 1000)
    host = _Counts()
    await fetch(run_dir, Source(host, str(out)), Wanted())
    assert host.fetched == ["b.pt"]
    assert (run_dir.artifacts / "b.pt").read_bytes() == b"w" * 1000
    assert run_dir.meta()["artifacts"]["b.pt"]["sha256"] == hashlib.sha256(b"w" * 1000).hexdigest()


async def test_what_is_home_stays_where_the_server_cannot_sum(run_dir: RunDir, out: Path) -> None:
    class NoPython(_Counts):
        async def run(self, argv: Any, **how: Any) -> Any:
            return await super().run(["/nothing/there"], **how)

    await fetch(run_dir, Source(LocalHost(), str(out)), Wanted())
    host = NoPython()
    await fetch(run_dir, Source(host, str(out)), Wanted())
    assert host.fetched == []
    assert set(run_dir.meta()["artifacts"]) == {"a.json", "b.pt", "deep/c.pt"}


async def test_what_was_home_before_a_break_is_not_fetched_again(run_dir: RunDir, out: Path) -> None:
    asked: list[str] = []

    class Breaks(LocalHost):
        async def get(self, path: str, target: Path, **how: Any) -> str:
            asked.append(path.rpartition("/")[2])
            if asked == ["a.json", "b.pt"]:
                raise ServerTimeout("elsewhere did not answer in time.")
            return await super().get(path, target, **how)

    with pytest.raises(ServerTimeout):
        await fetch(run_dir, Source(Breaks(), str(out)), Wanted())
    left = await fetch(run_dir, Source(Breaks(), str(out)), Wanted())
    assert asked == ["a.json", "b.pt", "b.pt", "c.pt"]
    assert _home(run_dir) == ["a.json", "b.pt", "deep/c.pt"]
    assert sorted(run_dir.meta()["artifacts"]) == ["a.json", "b.pt", "deep/c.pt"]
    assert not left.sentences


async def test_a_name_that_this_disk_cannot_have_keeps_no_other_file(run_dir: RunDir, out: Path) -> None:
    class Odd(LocalHost):
        async def listdir(self, path: str) -> list[Entry]:
            found = await super().listdir(path)
            return sorted([*found, Entry("a.json/x", 1), Entry("n" * 300, 1)], key=lambda e: e.path)

    left = await fetch(run_dir, Source(Odd(), str(out)), Wanted())
    assert _home(run_dir) == ["a.json", "b.pt", "deep/c.pt"]
    assert len(left.sentences) == 2


async def test_a_name_as_long_as_names_may_be_comes_home(run_dir: RunDir, out: Path) -> None:
    (out / ("n" * 255)).write_text("long")
    left = await fetch(run_dir, Source(LocalHost(), str(out)), Wanted())
    assert not left.sentences
    assert ("n" * 255) in _home(run_dir)


def test_a_command_s_artifacts_come_home_unless_a_user_names_others() -> None:
    config = {"runner": {"name": "command", "artifacts": ["*.json"]}}
    assert Wanted(("**",)).of_run(config).patterns == ("*.json",)
    assert Wanted(("*.pt",), asked=True).of_run(config).patterns == ("*.pt",)
    assert Wanted(("*.pt",)).of_run({"runner": {"name": "megatron"}}).patterns == ("*.pt",)


async def test_a_name_that_is_no_utf8_comes_home(run_dir: RunDir, out: Path) -> None:
    (out / "\udcff.pt").write_text("bytes")
    left = await fetch(run_dir, Source(LocalHost(), str(out)), Wanted(("*.pt",)))
    assert not left.sentences
    assert (run_dir.artifacts / "\udcff.pt").read_text() == "bytes"
    assert run_dir.meta()["artifacts"]
