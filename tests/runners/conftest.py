"""One prepared cache for all tests that train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runners.support import Place, Result


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this session share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def prepared(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The first stage=data in the shared cache, with all defaults."""
    return Place(tmp_path_factory.mktemp("prepared"), cache).run({}, "stage=data")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Folders of a run with an empty cache of its own."""
    return Place(tmp_path / "run", tmp_path / "own-cache")
