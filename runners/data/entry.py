"""A prepared entry of the cache: `CACHE/data/<key>/`, complete or absent, read without torch.

manifest.json, written last, says what is in it: `files` has size and SHA-256 of each, by its path in the entry.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "ekvi.data/1"
PREFIX = "tokens"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A prepared entry: its folder and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def prefix(self) -> Path:
        """The path of the indexed files without their endings."""
        return self.path / PREFIX

    @property
    def vocab(self) -> int:
        """How many tokens the tokenizer knows."""
        return int(self.manifest["vocab"])

    @property
    def format(self) -> str:
        """What training reads: indexed, energon or mock."""
        return str(self.manifest["format"])

    @property
    def told(self) -> str:
        """How much it is, in words."""
        if self.format == "mock":
            return "mock data"
        skipped = self.manifest.get("skipped") or 0
        more = f" ({skipped} broken records left out)" if skipped else ""
        return f"{self.manifest['tokens']} tokens of {self.manifest['documents']} documents{more}"

    def diagnostic(self) -> dict[str, Any]:
        """The fields of the `data` diagnostic. `sha256` is over the tokens in the order in which they lie."""
        told = ("source", "format", "sha256", "idx_sha256", "tokenizer_sha256", "shards_sha256")
        counts = ("tokens", "documents", "skipped", "vocab", "key")
        data = {key: self.manifest[key] for key in (*told, *counts) if self.manifest.get(key) is not None}
        message = f"{self.told}, vocabulary {self.vocab}"
        return {"level": "info", "code": "data", "message": message, "data": data}


def read(cache: Path, key: str) -> Entry | None:
    """The entry, or None where it is absent or a file of it is missing or has another size."""
    path = cache / "data" / key
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        files = manifest["files"]
        whole = manifest["schema"] == SCHEMA and all(
            (path / name).stat().st_size == said["bytes"] for name, said in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Entry(path, manifest) if whole else None


def write(part: Path, target: Path, manifest: dict[str, Any]) -> None:
    """Complete the scratch folder `part` with its manifest, and put it in its place with one rename.

    `files` of the manifest are all that lie in the folder.
    """
    paths = sorted(path for path in part.rglob("*") if path.is_file())
    files = {
        path.relative_to(part).as_posix(): {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths
    }
    (part / _MANIFEST).write_text(json.dumps({**manifest, "schema": SCHEMA, "files": files}, indent=1) + "\n")
    for path in (*paths, part / _MANIFEST):
        with open(path, "rb") as written:
            os.fsync(written.fileno())
    if target.exists():
        shutil.rmtree(target)  # damaged, and nobody reads a damaged entry
    os.rename(part, target)


@contextmanager
def locked(folder: Path, key: str) -> Iterator[None]:
    """Hold the lock of one cache entry, made where `folder` has none. Raises OSError where it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{key}.lock", "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def scratch(folder: Path, key: str) -> Path:
    """An empty folder beside the entry, to be renamed into its place; what a killed process left is cleared.

    Only with the entry's lock held.
    """
    for stale in folder.glob(f".{key}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)
    part = folder / f".{key}.{os.getpid()}.part"
    part.mkdir()
    return part


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex digits."""
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()
