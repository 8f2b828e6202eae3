"""The names of the images that `build` makes: by the hash of all that goes into one, so a name never lies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cockpit.core.resources import data_dir

REPOSITORY = "ekvi-cockpit"
KINDS = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}  # the folder in docker/ for a vendor


def kind_of(vendor: str) -> str:
    """The folder in docker/ for a vendor, or for a backend's own name (cuda, rocm, cpu)."""
    return KINDS.get(vendor, vendor)


def image_tag(launch: Mapping[str, Any], vendor: str) -> str:
    """The image that a container of these launcher settings runs: the profile's, else the one that `build` makes.

    `vendor` is nvidia, amd or cpu (or cuda, rocm). The made one's tag is a hash of its Dockerfile and the files
    beside it, the base image and the build arguments: servers that have it have the same recipe.
    """
    if launch.get("image"):
        return str(launch["image"])
    return f"{REPOSITORY}/{kind_of(vendor)}:{recipe(launch, vendor)}"


def recipe(launch: Mapping[str, Any], vendor: str, *, folder: Path | None = None) -> str:
    """The hash of all that goes into an image, 16 hexadecimal digits. `folder` stands in place of docker/."""
    kind = kind_of(vendor)
    said = {"kind": kind, "base": launch.get("base_image"), "args": dict(launch.get("build_args") or {})}
    whole = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, data in context_files(kind, folder or data_dir("docker")):
        whole.update(f"\n{name} {len(data)}\n".encode() + data)
    return whole.hexdigest()[:16]


@cache
def context_files(kind: str, folder: Path) -> tuple[tuple[str, bytes], ...]:
    """The files that go into an image of this kind, by their names in `folder` and in order: the build's context.

    Raises FileNotFoundError where there is no such kind.
    """
    if not (folder / kind / "Dockerfile").is_file():
        raise FileNotFoundError(folder / kind / "Dockerfile")
    shared = [p for p in folder.iterdir() if p.is_file() and p.suffix in (".txt", ".py")]
    own = [p for p in (folder / kind).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return tuple((str(p.relative_to(folder)), p.read_bytes()) for p in sorted([*shared, *own]))
