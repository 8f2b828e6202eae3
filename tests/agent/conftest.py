"""A desk for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.support import Desk, desk_at, pack


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A work folder of its own, worked by the agent from the checkout."""
    with desk_at(tmp_path / "work") as found:
        yield found


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Desk]:
    """The same, worked by the agent as one file."""
    with desk_at(tmp_path / "work", [sys.executable, "-I", "-S", str(pack(tmp_path / "agent.pyz"))]) as found:
        yield found
