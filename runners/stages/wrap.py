"""stage=wrap: everything in the output folder as one output.zip, the same bytes for the same files."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from pathlib import Path

from runners import wire
from runners.errors import writing
from runners.stages import Context, Outcome

NAME = "output.zip"
# Of a training, for the server to go on from, many times the model's size; and what is half written.
_STAYS = re.compile(r"checkpoints|(epoch|step)-[^/]*/state|\.[^/]*\.part")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold: two runs of one input give one archive


def run(context: Context) -> Outcome:
    """Write output.zip into the output folder. Rank 0 only; without files it is skipped."""
    if not context.process.first:
        return Outcome("skipped")
    members = files(context.folders.out)
    if not members:
        return Outcome("skipped", "the output folder holds no files")
    target = context.folders.out / NAME
    with writing(str(target)):
        write(context.folders.out, members, target)
    artifact(context.folders.out, target)
    return Outcome("done", f"{len(members)} files in {NAME}")


def files(folder: Path) -> list[str]:
    """Relative paths (with /) of the regular files below `folder`, sorted; neither the archive nor links, nor what
    a training saved to go on from.
    """
    found = []
    for root, folders, names in os.walk(folder):
        inner = Path(root).relative_to(folder)
        folders[:] = sorted(name for name in folders if not _STAYS.fullmatch((inner / name).as_posix()))
        for name in names:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if relative not in (NAME, f".{NAME}.part") and path.is_file() and not path.is_symlink():
                found.append(relative)
    return sorted(found)


def write(folder: Path, members: list[str], target: Path) -> None:
    """Zip `members` of `folder` into `target`, in order, with fixed times and modes; whole or not at all."""
    part = target.with_name(f".{target.name}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for member in members:
                info = zipfile.ZipInfo(member, date_time=_EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                with open(folder / member, "rb") as source, archive.open(info, "w", force_zip64=True) as sink:
                    while block := source.read(1 << 20):
                        sink.write(block)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def artifact(folder: Path, path: Path) -> None:
    """Say on the wire that `path` (below the output folder) was made, with its size in bytes and its SHA-256."""
    with open(path, "rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
        size = stream.tell()
    wire.emit("artifact", path=path.relative_to(folder).as_posix(), bytes=size, sha256=digest.hexdigest())
