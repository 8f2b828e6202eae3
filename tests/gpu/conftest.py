"""The driver libraries, built once, NVML's source over them, and a tree of AMD GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.fixtures import nvml_library, old_nvml_library
from tests.fakes.library import environment
from tests.fakes.nvml import FakeNvml
from tests.gpu.amd_fixtures import opened, tree
from tests.gpu.driven import Driven
from tests.gpu.nvml_support import Drive

__all__ = ["nvml_library", "old_nvml_library", "opened", "tree"]


@pytest.fixture
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fakes", request.getfixturevalue("nvml_library"))


@pytest.fixture
def two(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fakes", request.getfixturevalue("nvml_library"), gpus=2)


@pytest.fixture
def nvml() -> Iterator[Drive]:
    """Starts the source in a process of its own, and ends it."""
    made: list[Driven] = []

    def make(fake: FakeNvml) -> Driven:
        made.append(Driven("nvml", "Nvml", environment(fake.program)))
        return made[-1]

    yield make
    for driven in made:
        driven.close()
