"""One prepared cache for all tests that train."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.once import once
from tests.runners.support import Place, Result


@pytest.fixture(scope="session")
def cache(shared: Path) -> Path:
    """A cache that all tests share."""
    return shared / "cache"


@pytest.fixture(scope="session")
def prepared(cache: Path, shared: Path) -> Result:
    """The first stage=data in the shared cache, with all defaults."""
    folder = shared / "prepared"
    return Result(**once(folder, lambda: asdict(Place(folder, cache).run({}, "stage=data"))))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Folders of a run with an empty cache of its own."""
    return Place(tmp_path / "run", tmp_path / "own-cache")
