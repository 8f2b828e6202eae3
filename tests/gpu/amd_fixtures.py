"""A tree of AMD GPUs, and the sysfs source over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runners.agent.gpu.amd_sysfs import AmdSysfs
from tests.fakes.amd_sysfs import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


@pytest.fixture
def opened(tree: Tree) -> Iterator[Callable[[], AmdSysfs]]:
    made: list[AmdSysfs] = []

    def open_it() -> AmdSysfs:
        made.append(AmdSysfs(str(tree.root)))
        made[-1].open()
        return made[-1]

    yield open_it
    for source in made:
        source.close()
