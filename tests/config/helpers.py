"""Files for a user's profile folder, and what a refusal says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cockpit.config import load, user_folder
from cockpit.core.errors import ConfigError, Exit


def write(name: str, text: str) -> Path:
    """Write a file below the user's profile folder and return its path."""
    path = user_folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(profile: str, *words: str, **options: Any) -> ConfigError:
    """The error that loading raises, after the checks that hold for every one: one sentence, nobody's raw text."""
    with pytest.raises(ConfigError) as caught:
        load(profile, words, **options)
    error = caught.value
    assert error.exit_code == Exit.USAGE
    text = str(error)
    assert "\n" not in text
    for foreign in (
        "Input should be",
        "validation error",
        "pydantic",
        "hydra.cc",
        "Traceback",
        "omegaconf",
        "mismatched input",
    ):
        assert foreign not in text
    return error


def servers_of(profile: str, words: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """The configuration of each server at the first point."""
    return dict(load(profile, words, **options).points[0].configs)
