"""Whole folders: their size, their end, and unpacking a recorded one."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cockpit.core.errors import StoreError
from cockpit.store import layout
from cockpit.store.errors import explain, explained
from cockpit.store.files import sync_folder

_ZIP_MAX_BY = 1 << 30


def delete(folder: Path) -> None:
    """Delete a folder of the runs folder: renamed first, so that what a crash leaves of it is seen by nobody.

    Links inside are removed, not followed. Raises StoreError.
    """
    trash = folder.with_name(f"{layout.TRASH}{folder.name}.{secrets.token_hex(4)}")
    with explained("delete", folder):
        folder.rename(trash)
        sync_folder(folder.parent)
        shutil.rmtree(trash)


def sweep_trash(root: Path) -> None:
    """Clear away what a crash left of deleted folders."""
    for left in root.glob(f"{layout.TRASH}*"):
        if not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def size(folder: Path) -> int:
    """Bytes of all files under `folder`, links not followed; what vanishes meanwhile counts nothing."""
    return sum(_sizes(str(folder)))


def _sizes(folder: str) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        yield from _sizes(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False).st_size
    except (FileNotFoundError, PermissionError):
        return


def unpack(path: Path, into: Path) -> None:
    """Unpack the zip file `path`, whose names all stay in `into`. Raises StoreError."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(i.file_size for i in archive.infolist()) > _ZIP_MAX_BY:
                raise StoreError(f"{path} would unpack to more than {_ZIP_MAX_BY >> 30} GiB.")
            archive.extractall(into)  # it drops "..", drive letters and leading slashes from names
    except (zipfile.BadZipFile, EOFError):
        raise StoreError(f"{path} is no zip file of a runs folder.") from None
    except FileNotFoundError:
        raise StoreError(f"there is no runs folder {path}.") from None
    except OSError as error:
        raise explain(error, "read", path) from error
