"""Where a rank's part of a parameter lies in the whole model: names and rectangles that no parallel split changes.

A matrix cut over the tensor ranks is a chunk of the whole one but for a gated first linear of the MLP: there each
rank holds a chunk of the gate over a chunk of the up part. A distributed optimizer cuts a rank's part once more, into
runs of its elements in flat order, which begin and end within rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_EMBEDDING = "embedding.word_embeddings.weight"
_COMPILED = "_orig_mod."  # torch.compile's layer in between


@dataclass(frozen=True)
class Place:
    """Where a rank's part lies: the whole tensor's `shape`, and bands of rows.

    A band is (first row of the part, rows, first row in the whole); `column` is the part's first column in the whole.
    """

    shape: tuple[int, ...]
    bands: tuple[tuple[int, int, int], ...]
    column: int = 0


@dataclass(frozen=True)
class Piece:
    """A rectangle: `start` is its first element in the part's flat order, where it lies in one piece; `offset` and
    `sizes` are its place in the whole tensor.
    """

    start: int
    offset: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many elements it has."""
        rows, *columns = self.sizes
        return rows * (columns[0] if columns else 1)


def place(part: Sequence[int], dim: int | None, size: int, rank: int, *, gated: bool) -> Place:
    """Where rank `rank` of `size` holds its `part` (one or two dimensions) of a tensor cut along `dim`, None for not.

    `gated` is for [gate; up], cut along its rows.
    """
    rows = part[0]
    shape = tuple(length * size if d == dim else length for d, length in enumerate(part))
    if dim is None or size == 1:
        return Place(shape, ((0, rows, 0),))
    if dim == 1:
        return Place(shape, ((0, rows, 0),), column=rank * part[1])
    if gated:
        half = rows // 2
        return Place(shape, ((0, half, rank * half), (half, half, (size + rank) * half)))
    return Place(shape, ((0, rows, rank * rows),))


def pieces(part: Sequence[int], where: Place, begin: int = 0, end: int | None = None) -> Iterator[Piece]:
    """The rectangles of the whole tensor that elements `begin` to `end` of the part make up, each in one piece."""
    width = part[1] if len(part) > 1 else 1
    for row, rows, to in where.bands:
        first = max(begin, row * width)
        last = min(row * width + rows * width if end is None else end, (row + rows) * width)
        while first < last:
            at, column = divmod(first, width)
            whole = (last - first) // width if not column else 0
            count = whole * width or min(width - column, last - first)
            sizes = (max(whole, 1), count // max(whole, 1))
            offset = (to + at - row, where.column + column)
            yield Piece(first, offset[: len(part)], sizes[: len(part)])
            first += count


def unwrapped(chunk: Any) -> Any:
    """The GPTModel within what wraps it for data parallelism and precision."""
    while not hasattr(chunk, "decoder"):
        chunk = chunk.module
    return chunk


def named(chunk: Any) -> Iterator[tuple[str, Any]]:
    """The parameters of a chunk by their name in the whole model.

    Tied embeddings are one tensor under one name: the output's copy, on a last pipeline stage, goes by the input's.
    """
    inner = unwrapped(chunk)
    numbers = [layer.layer_number - 1 for layer in inner.decoder.layers]
    for local, parameter in inner.named_parameters():
        yield _EMBEDDING if getattr(parameter, "shared", False) else global_name(local, numbers), parameter


def global_name(local: str, numbers: Sequence[int]) -> str:
    """A parameter's name with the layer's number in the whole model (`numbers`) in place of the one in the chunk."""
    parts = local.replace(_COMPILED, "").split(".")
    if "layers" in parts:
        at = parts.index("layers") + 1
        parts[at] = str(numbers[int(parts[at])])
    return ".".join(parts)


def place_of(name: str, parameter: Any, rank: int, size: int, *, gated: bool) -> Place:
    """Where tensor rank `rank` of `size` holds `parameter`; `gated` says whether the model's MLP is."""
    cut = getattr(parameter, "tensor_model_parallel", False)
    return place(
        tuple(parameter.shape),
        parameter.partition_dim if cut else None,
        size if cut else 1,
        rank,
        gated=gated and "linear_fc1" in name,
    )
