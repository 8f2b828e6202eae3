"""A disk that is full when a training saves: the checkpoint from before stays whole, and the run says so and ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from runners import sizes
from runners.schema import RunConfig
from tests.runners import series
from tests.runners.series import Item
from tests.runners.support import Result
from tests.runners.test_checkpoint import config, curve, steps_in

pytestmark = [pytest.mark.hosts, pytest.mark.train, pytest.mark.timeout(240)]

SETTINGS = config({"save_every": 2})
VOCABULARY = 1024
NEEDED = 12 * sizes.parameters(RunConfig.model_validate(SETTINGS).model, VOCABULARY)


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[None]:
    """A file system of its own at `path`."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=20)


@pytest.fixture(scope="module")
def played(
    prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Result]]]:
    """Room for one checkpoint; room for many, but not for so many files: only writing them shows it. Then two
    trainings that go on from what survived.
    """
    assert prepared.rc == 0, prepared.err
    root = tmp_path_factory.mktemp("disk") / "one"
    with ExitStack() as disks:
        disks.enter_context(small_disk(root / "seen/out", f"size={int(1.6 * NEEDED) >> 10}k"))
        disks.enter_context(small_disk(root / "met/out", f"size={64 << 10}k,nr_inodes=140"))
        goes_on = [
            Item(f"{name}_again", config({"resume": str(root / name / "out/checkpoints")}))
            for name in ("seen", "met")
        ]
        yield root, series.play(root, cache, [Item("seen", SETTINGS), Item("met", SETTINGS), *goes_on])


@pytest.mark.parametrize("name", ["seen", "met"])
def test_a_full_disk_leaves_the_checkpoint_from_before(played: tuple[Path, dict[str, Result]], name: str) -> None:
    root, said = played
    shelf, result = root / name / "out/checkpoints", said[name]
    assert result.rc == 1
    (line,) = result.err.strip().splitlines()
    assert f"iteration 4 could not be saved: no space left in {shelf}" in line
    assert f"the checkpoint from before is whole: {shelf}/step-2." in line
    assert steps_in(shelf) == ["latest", "step-2"]
    assert list(curve(result)) == [1, 2, 3, 4], "what was trained was told"
    again = said[f"{name}_again"]
    assert again.rc == 0, again.err
    assert {step: loss for step, loss in curve(again).items() if step <= 4} == {
        step: curve(result)[step] for step in (3, 4)
    }
