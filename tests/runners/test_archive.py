"""stage=wrap and stage=purge."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.errors import ConfigurationError, RunnerError
from runners.process import Folders, Process
from runners.schema import RunConfig
from runners.stages import Context, purge, wrap

Make = Callable[..., Context]


@pytest.fixture
def context(tmp_path: Path) -> Make:
    def make(out: Path = tmp_path / "out", *, dry_run: bool = False, rank: int = 0) -> Context:
        process = Process(rank=rank, world=2, local_rank=rank, launched=True)
        return Context(RunConfig(), process, Folders(out, tmp_path / "cache"), dry_run=dry_run)

    return make


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")


def test_the_archive_has_the_same_bytes_whatever_the_order_and_time_of_writing(tmp_path: Path, context: Make) -> None:
    names = ("b.txt", "deep/er/a.bin", "c.json")
    archives = []
    for number, order in enumerate((names, names[::-1])):
        out = tmp_path / f"out{number}"
        fill(out, order)
        for name in names:
            os.utime(out / name, (number * 1e6, number * 1e6))
        assert wrap.run(context(out)).status == "done"
        archives.append((out / "output.zip").read_bytes())
    assert archives[0] == archives[1]


def test_wrapping_again_leaves_the_archive_itself_out(tmp_path: Path, context: Make) -> None:
    fill(tmp_path / "out", ("a.txt", "z/b.txt"))
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        wrap.run(context())
    with zipfile.ZipFile(tmp_path / "out" / "output.zip") as archive:
        assert archive.namelist() == ["a.txt", "z/b.txt"]
        assert archive.read("z/b.txt") == b"content of z/b.txt"


def test_checkpoints_stay_on_the_server(tmp_path: Path, context: Make) -> None:
    fill(tmp_path / "out", ("a.txt", "checkpoints/step-5/data", "hf/checkpoints/config.json"))
    fill(tmp_path / "out", ("epoch-1/adapter", "epoch-1/state/shards/0", "step-3/state/x", ".epoch-2.part/adapter"))
    wrap.run(context())
    with zipfile.ZipFile(tmp_path / "out" / "output.zip") as archive:
        assert archive.namelist() == ["a.txt", "epoch-1/adapter", "hf/checkpoints/config.json"]


def test_only_rank_0_wraps(tmp_path: Path, context: Make) -> None:
    fill(tmp_path / "out", ("a.txt",))
    assert wrap.run(context(rank=1)).status == "skipped"
    assert not (tmp_path / "out" / "output.zip").exists()


def test_a_full_disk_is_one_sentence_and_leaves_no_half_archive(
    tmp_path: Path, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    fill(tmp_path / "out", ("a.txt",))
    monkeypatch.setattr(zipfile.ZipFile, "open", full)
    with pytest.raises(RunnerError, match=r"output\.zip cannot be written: No space left on device"):
        wrap.run(context())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.txt"]


def test_nothing_to_wrap_is_skipped(context: Make) -> None:
    assert wrap.run(context()).status == "skipped"


def test_purge_empties_both_folders_and_touches_nothing_else(
    tmp_path: Path, context: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, ("keep.txt", "out/a.txt", "cache/data/x/y.bin"))
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    assert purge.run(context()).status == "done"
    assert (tmp_path / "keep.txt").exists()
    assert list((tmp_path / "out").iterdir()) == list((tmp_path / "cache").iterdir()) == []
    assert f"removing {tmp_path / 'out' / 'a.txt'} (20 bytes)" in capsys.readouterr().out


def test_a_dry_run_only_lists(tmp_path: Path, context: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, ("out/a.txt",))
    assert purge.run(context(dry_run=True)).status == "skipped"
    assert (tmp_path / "out" / "a.txt").exists()
    assert f"would remove {tmp_path / 'out' / 'a.txt'}" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["cwd", "above", "home"])
def test_a_folder_that_holds_the_users_own_is_refused(
    tmp_path: Path, context: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fill(tmp_path, ("work/here/precious.txt", "house/precious.txt"))
    monkeypatch.chdir(tmp_path / "work" / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "house"))
    out = {"cwd": tmp_path / "work" / "here", "above": tmp_path / "work", "home": tmp_path / "house"}[where]
    with pytest.raises(ConfigurationError, match="refused"):
        purge.run(context(out))
    assert len(list(tmp_path.rglob("precious.txt"))) == 2
