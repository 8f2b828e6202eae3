"""Checkpoints of somebody else: read as torch reads its own, without running what their files say."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from runners.errors import RunnerError
from runners.megatron import checkpoint
from runners.saved import Plain, Reader


class _Runs:
    """Makes a folder where it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


def saved(folder: Path, state: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no process group
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def read(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=Reader(folder), planner=Plain(), no_dist=True)
    return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_torch_saved_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = {
        "a": torch.arange(6, dtype=dtype).reshape(2, 3),
        "groups": [{"lr": 0.1, "betas": (0.9, 0.95)}],
        "n": None,
    }
    folder = saved(tmp_path / "state", whole)
    empty = {"a": torch.zeros(2, 3, dtype=dtype), "groups": [{"lr": 0.0, "betas": (0.0, 0.0)}], "n": 1}
    found = read(folder, empty)
    assert torch.equal(found.pop("a"), whole.pop("a"))
    assert found == whole


def test_an_index_that_names_code_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "state", {"weights.a": torch.zeros(2)})
    (folder / ".metadata").write_bytes(pickle.dumps(_Runs(tmp_path / "ran")))
    with pytest.raises(RunnerError, match=r"cannot be read: its index names posix.mkdir, which no checkpoint needs"):
        list(checkpoint.tensors(folder, torch.float32))
    assert not (tmp_path / "ran").exists()


def test_what_is_no_tensor_and_names_code_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "state", {"lr": _Runs(tmp_path / "ran")})
    with pytest.raises(CheckpointException, match=r"(?s)mkdir"):
        read(folder, {"lr": 0.1})
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["os.system", "_MEM_FORMAT_ENCODING.__class__", "os"])
def test_the_way_round_by_what_a_module_imports_is_closed(tmp_path: Path, name: str) -> None:
    module = b"torch.distributed.checkpoint.metadata"
    (tmp_path / ".metadata").write_bytes(
        b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    )
    with pytest.raises(pickle.UnpicklingError, match="which no checkpoint needs"):
        Reader(tmp_path).read_metadata()
