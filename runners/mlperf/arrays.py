"""Tokenised sequences of one length in a .npy file: `input_ids`, `loss_mask` and `seq_start_id` of each.

The fields and their names are those of the packed fine-tuning files that others make for this task, but as columns
of plain numbers: nothing is unpickled when one is opened, and it is read page by page from the disk.
A file of theirs, which pickles a list of dictionaries, is read by `foreign`, which lets only numbers through.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from runners.errors import ConfigurationError

IGNORED = -100  # the label of a token that does not count, as transformers has it
Ints = npt.NDArray[np.int64]
_ARRAY = {  # what numpy's pickles are made of
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
}


def layout(sequence: int) -> np.dtype[Any]:
    """One sequence of `sequence` tokens in the file."""
    return np.dtype(
        [("input_ids", "<i4", (sequence,)), ("loss_mask", "i1", (sequence,)), ("seq_start_id", "<i4", (1,))]
    )


class Arrays(Sequence[dict[str, Ints]]):
    """The sequences of a file, read where they are used; also a plain two-dimensional array of tokens.

    `[i]` gives `input_ids` and `labels`, int64 [sequence] each; the labels are not shifted, IGNORED does not count.
    Raises ConfigurationError for a file that holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}.", every_rank=True) from error
        except (ValueError, EOFError) as error:
            raise ConfigurationError(
                f"{path} is no array of tokens: {str(error).rstrip('.')}.",
                hint="Name its folder instead, for stage=data to convert it.",
                every_rank=True,
            ) from error
        self._fields = self._rows.dtype.names is not None
        fits = self._rows.dtype == layout(self.sequence) if self._fields else self._rows.dtype.kind in "iu"
        if not fits or self._rows.ndim != (1 if self._fields else 2) or not self._rows.size:
            raise ConfigurationError(
                f"{path} holds {self._rows.dtype} {list(self._rows.shape)}, not sequences of tokens.", every_rank=True
            )

    @property
    def sequence(self) -> int:
        """Tokens in each sequence; 0 in a file of something else."""
        if not self._fields:
            return int(self._rows.shape[-1]) if self._rows.ndim else 0
        shape = self._rows.dtype["input_ids"].shape if "input_ids" in self._rows.dtype.names else ()
        return int(shape[0]) if shape else 0

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        tokens = np.array(row["input_ids"] if self._fields else row, dtype=np.int64)
        counted = np.array(row["loss_mask"], dtype=bool) if self._fields else np.ones_like(tokens, dtype=bool)
        return {"input_ids": tokens, "labels": np.where(counted, tokens, IGNORED)}


class _Numbers(pickle.Unpickler):
    """Loads arrays, lists, dictionaries and numbers, and refuses what could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAY:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def pickled(path: Path) -> bool:
    """Whether a .npy file holds pickled objects; False for a file that is none, whose reader says what is wrong."""
    try:
        with open(path, "rb") as stream:
            return bool(_header(stream).hasobject)
    except (OSError, ValueError, EOFError):
        return False


def foreign(path: Path) -> Iterator[tuple[Ints, Ints]]:
    """(tokens, labels) of each sequence of a .npy of pickled dictionaries with `input_ids` and `loss_mask`.

    Raises ConfigurationError for a file of anything else, also for one whose pickle holds more than numbers.
    """
    try:
        with open(path, "rb") as stream:
            _header(stream)
            rows = _Numbers(stream).load()
        for row in rows.ravel():
            tokens = np.asarray(row["input_ids"], dtype=np.int64)
            counted = np.asarray(row["loss_mask"], dtype=np.int64)[: tokens.size] != 0
            yield tokens, np.where(counted, tokens, IGNORED)
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        raise ConfigurationError(
            f"{path} is no file of tokenised sequences: {str(error).rstrip('.')}.", every_rank=True
        ) from error


def _header(stream: IO[bytes]) -> np.dtype[Any]:
    """What a .npy file holds; the stream stands behind its header then."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)[2]
