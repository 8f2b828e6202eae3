"""What an installation pulls in: never torch, under 400 MB, and each requirement with its reason beside it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
NEVER = {"torch", "megatron-core", "transformers", "tokenizers", "tensorflow", "jax"}
MOST_BY = 400_000_000


def _project() -> dict[str, object]:
    found = tomllib.loads(PYPROJECT.read_text())["project"]
    assert isinstance(found, dict)
    return found


def _base() -> list[str]:
    found = _project()["dependencies"]
    assert isinstance(found, list)
    return found


def _resolved(requirements: list[str]) -> set[str]:
    """All distributions that `requirements` bring here, by what is installed."""
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(r), "") for r in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for own in ("", *sorted(requirement.extras)):
            if (name, own) not in seen:
                seen.add((name, own))
                waiting += [(Requirement(r), own) for r in distribution(name).requires or []]
    return {name for name, _ in seen}


def test_the_base_dependencies_never_bring_the_training_stack() -> None:
    found = _resolved(_base())
    assert {"textual", "rich", "numpy", "markdown-it-py"} <= found, "the walk did not reach what it must"
    assert found & NEVER == set()


def test_the_walk_would_see_torch() -> None:
    extras = _project()["optional-dependencies"]
    assert isinstance(extras, dict)
    try:
        assert "torch" in _resolved(extras["train"])
    except PackageNotFoundError as e:  # pragma: no cover
        pytest.fail(f"the tests' environment lacks {e}")


def test_the_base_dependencies_stay_under_their_size() -> None:
    total = 0
    for name in _resolved(_base()):
        for file in distribution(name).files or []:
            path = Path(str(file.locate()))
            total += path.stat().st_size if path.exists() else 0
    assert 10_000_000 < total < MOST_BY


@pytest.mark.parametrize(
    "requirement",
    [r for group in [_base(), *tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"].values()]
     for r in group],
)  # fmt: skip
def test_a_reason_stands_beside_each_dependency(requirement: str) -> None:
    lines = [line for line in PYPROJECT.read_text().splitlines() if f'"{requirement}"' in line]
    assert lines
    assert all(re.search(r'"[],]*\s+# \S', line) for line in lines), lines
