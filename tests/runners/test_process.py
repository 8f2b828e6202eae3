"""Which process of a run this is, and where it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.errors import ConfigurationError
from runners.process import Folders, Process

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@given(st.integers(1, 64).flatmap(lambda world: st.tuples(st.integers(0, world - 1), st.just(world))))
def test_a_launched_process_knows_its_place(pair: tuple[int, int]) -> None:
    rank, world = pair
    env = {**MEETING, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % 8)}
    process = Process.from_environment(env)
    assert process == Process(rank, world, rank % 8, launched=True)
    assert process.first == (rank == 0)
    assert process.last == (rank == world - 1)


def test_without_a_launcher_there_is_one_process() -> None:
    assert Process.from_environment({"LOCAL_RANK": "3"}) == Process(0, 1, 0, launched=False)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"RANK": "0"}, "WORLD_SIZE and MASTER_ADDR and MASTER_PORT not"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MEETING}, "RANK 2 is not below WORLD_SIZE 2"),
        ({"RANK": "one", "WORLD_SIZE": "2", **MEETING}, "RANK='one'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1", **MEETING}, "LOCAL_RANK=-1"),
    ],
)
def test_an_environment_that_makes_no_group_is_refused(env: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Process.from_environment(env)


def test_folders_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folders.from_environment({}) == Folders(tmp_path / "output", tmp_path / "cache")
    assert Folders.from_environment({"EKVI_OUT": "/a/../b"}).out == Path("/b")
