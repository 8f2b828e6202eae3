"""What torch.distributed.checkpoint saved, read without running what a file says.

Torch unpickles the index of a checkpoint and all that is no tensor in it as they are, so that a folder that somebody
else made could run any code. Here only the names that such files are made of are looked up.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

_INDEX = ".metadata"
_CHECKPOINT = "torch.distributed.checkpoint."
_NAMES = {
    (_CHECKPOINT + "filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", OrderedDict.__name__),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


class _Index(pickle.Unpickler):
    """Loads the index of a checkpoint, and refuses what could run code."""

    def find_class(self, module: str, name: str) -> Any:
        plain = name.isidentifier()  # a dotted name leads on to what the module imports
        mine = module == _CHECKPOINT + "metadata" and plain
        if (module, name) in _NAMES or (
            module == "torch" and plain and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        found = super().find_class(module, name) if mine else None
        if isinstance(found, type) and found.__module__ == module:
            return found
        raise pickle.UnpicklingError(f"its index names {module}.{name}, which no checkpoint needs")


class Reader(FileSystemReader):
    """Torch's reader of a folder. `read_metadata` raises UnpicklingError for an index that names anything else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's index."""
        rank = kwargs.get("rank")
        with open(Path(self.path) / (_INDEX if rank is None else f"__{rank}{_INDEX}"), "rb") as stream:
            found: Metadata = _Index(stream).load()
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class Plain(DefaultLoadPlanner):
    """Torch's planner; what is no tensor is read as plain values alone."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Check it, then have torch read it. Raises UnpicklingError for what is more than plain values."""
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)
