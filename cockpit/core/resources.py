"""Where the project's own data folders are: beside the package in a checkout, under it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_BUNDLED = _PACKAGE / "_data"


def data_dir(name: str) -> Path:
    """The folder `profiles`, `themes`, `docker` or `runners`, wherever this installation keeps it."""
    if _BUNDLED.is_dir():
        return _BUNDLED / "source" / name if name == "runners" else _BUNDLED / name
    return _PACKAGE.parent / name
