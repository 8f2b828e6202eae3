"""What travels to a server: the agent as one .pyz, and the runners' source as one zip. Both reproducible.

The same sources give the same bytes, wherever they stand and whoever packs them: members in a fixed order, with fixed
times and permissions, and stored rather than deflated, as different builds of zlib deflate differently. So a hash
of the bytes says which code ran.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from cockpit.core.errors import LaunchRefused
from cockpit.core.resources import data_dir

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip can hold
_MODE = 0o100644
_SHEBANG = b"#!/usr/bin/env python3\n"
_GROUPS = ("model/", "data/", "training/", "runner/")  # of profiles/: a runner knows no others
_BINDING = "pynvml.py"
_BINDING_OF = "nvidia-ml-py"
_MAIN = b"""import sys

from agent.main import main

raise SystemExit(main(sys.argv[1:]))
"""


class Package(NamedTuple):
    """Bytes for a server and their SHA-256 in hex."""

    data: bytes
    sha256: str


def build_agent(source: Path | None = None) -> Package:
    """The agent: package `agent` and a `__main__` that calls its `main(argv)`, for Python 3.8 or newer.

    Beside it `pynvml.py`, NVIDIA's binding as it is installed here. `source` is the folder of the runners' source,
    this installation's own by default. Raises LaunchRefused where either is not whole.
    """
    folder = _source(source) / "agent"
    members = [(f"agent/{name}", data) for name, data in _files(folder)]
    if "agent/main.py" not in dict(members):
        raise _broken(folder / "main.py")
    return _pack([("__main__.py", _MAIN), (_BINDING, _binding()), *members], prefix=_SHEBANG)


def build_code(source: Path | None = None) -> Package:
    """The runners' source as `runners/...`, without the agent: that one never decides what a training computes.

    Beside it the groups of profiles that they compose themselves: `python -m runners KEY=VALUE...` in a container.
    `source` as in build_agent. Raises LaunchRefused where that is not whole.
    """
    folder = _source(source)
    members = [(f"runners/{name}", data) for name, data in _files(folder) if not name.startswith("agent/")]
    if "runners/__init__.py" not in dict(members):
        raise _broken(folder / "__init__.py")
    groups = ((name, data) for name, data in _files(data_dir("profiles")) if name.startswith(_GROUPS))
    return _pack([*members, *((f"profiles/{name}", data) for name, data in groups)])


def _binding() -> bytes:
    """The binding's one file, with its licence at its head. It is never imported here."""
    try:
        path = Path(str(distribution(_BINDING_OF).locate_file(_BINDING)))
        return path.read_bytes()
    except PackageNotFoundError:
        raise _broken(_BINDING_OF) from None
    except OSError:
        raise _broken(path) from None


def _source(source: Path | None) -> Path:
    return source if source is not None else data_dir("runners")


def _broken(missing: Path | str) -> LaunchRefused:
    return LaunchRefused(
        f"This installation of ekvi-cockpit is not whole: {missing} is missing.", hint="Install it again."
    )


def _files(folder: Path) -> Iterable[tuple[str, bytes]]:
    """Name and bytes of every source file below `folder`; hidden files and what Python compiled are left out."""
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if not hidden and path.suffix != ".pyc" and path.is_file():
            yield relative.as_posix(), path.read_bytes()


def _pack(members: Iterable[tuple[str, bytes]], *, prefix: bytes = b"") -> Package:
    buffer = io.BytesIO()
    buffer.write(prefix)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(members):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, also where a cockpit runs elsewhere
            info.external_attr = _MODE << 16
            archive.writestr(info, data)
    data = buffer.getvalue()
    return Package(data, hashlib.sha256(data).hexdigest())
