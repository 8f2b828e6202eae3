"""Rectangles: whatever the split, the parts of all ranks cover the whole tensor once, and read each other back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.megatron import layout

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
torch = pytest.importorskip("torch")


@st.composite
def splits(
    draw: Any, shape: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], int | None, int, bool, list[int]]:
    """(whole shape, cut dimension, tensor size, gated, cuts of a rank's flat part between data ranks)."""
    size = draw(st.sampled_from([1, 2, 4]))
    dim = draw(st.sampled_from([None, 0, 1]))
    gated = dim == 0 and draw(st.booleans())
    if shape is None:
        rows = draw(st.integers(1, 4)) * size * (2 if gated else 1)
        columns = draw(st.integers(1, 5)) * (size if dim == 1 else 1)
        shape = (rows,) if dim != 1 and draw(st.booleans()) else (rows, columns)
    part = int(torch.Size(shape).numel()) // (size if dim is not None else 1)
    cuts = sorted(draw(st.lists(st.integers(0, part), max_size=3)))
    return shape, dim, size, gated, [0, *cuts, part]


def own_part(whole: Any, dim: int | None, size: int, rank: int, *, gated: bool) -> Any:
    """A rank's part, as megatron-core cuts it."""
    if dim is None:
        return whole
    if gated:
        return torch.cat([half.chunk(size, dim)[rank] for half in whole.chunk(2, dim)], dim)
    return whole.chunk(size, dim)[rank]


def rectangles(split: Any) -> Iterator[tuple[layout.Piece, Any]]:
    """All pieces of all ranks, with the numbers that they hold."""
    shape, dim, size, gated, cuts = split
    whole = torch.arange(1, 1 + int(torch.Size(shape).numel())).reshape(shape)
    for rank in range(size if dim is not None else 1):
        part = own_part(whole, dim, size, rank, gated=gated).contiguous()
        where = layout.place(tuple(part.shape), dim, size, rank, gated=gated)
        assert where.shape == shape
        for begin, end in itertools.pairwise(cuts):
            for piece in layout.pieces(tuple(part.shape), where, begin, end):
                yield piece, part.view(-1)[piece.start : piece.start + piece.count].view(piece.sizes)


@given(splits())
def test_the_pieces_of_all_ranks_make_up_the_whole_once(split: Any) -> None:
    shape = split[0]
    seen = torch.zeros(shape, dtype=torch.int64)
    for piece, held in rectangles(split):
        place = tuple(slice(at, at + n) for at, n in zip(piece.offset, piece.sizes, strict=True))
        assert not seen[place].any(), "no element twice"
        seen[place] = held
    assert torch.equal(seen, torch.arange(1, 1 + seen.numel()).reshape(shape))


@settings(max_examples=15, deadline=None)
@given(before=splits((8, 12)), after=splits((8, 12)))
def test_one_split_is_read_by_another(before: Any, after: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    from torch.distributed import checkpoint as dcp

    from runners.megatron.pieces import Reading, Tile, Writing

    folder: Path = tmp_path_factory.mktemp("split")
    shape = before[0]
    tiles = [Tile(shape, piece.offset, held) for piece, held in rectangles(before)]
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(
            {"t": tiles},
            storage_writer=dcp.FileSystemWriter(folder, sync_files=False),
            planner=Writing(),
            no_dist=True,
        )
    wanted = [held for _piece, held in rectangles(after)]
    filled = [Tile(shape, piece.offset, torch.zeros_like(held)) for piece, held in rectangles(after)]
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({"t": filled}, storage_reader=dcp.FileSystemReader(folder), planner=Reading(), no_dist=True)
    assert all(torch.equal(tile.memory, held) for tile, held in zip(filled, wanted, strict=True))


def test_names_are_of_the_whole_model_and_tied_embeddings_one_tensor() -> None:
    def parameter(**attributes: Any) -> Any:
        return SimpleNamespace(**attributes)

    chunk = SimpleNamespace(
        decoder=SimpleNamespace(layers=[SimpleNamespace(layer_number=5), SimpleNamespace(layer_number=6)]),
        named_parameters=lambda: [
            ("decoder.layers.0._orig_mod.mlp.linear_fc1.weight", parameter()),
            ("decoder.layers.1.input_layernorm.weight", parameter()),
            ("output_layer.weight", parameter(shared=True)),
        ],
    )
    wrapped = SimpleNamespace(module=SimpleNamespace(module=chunk))
    assert [name for name, _ in layout.named(wrapped)] == [
        "decoder.layers.4.mlp.linear_fc1.weight",
        "decoder.layers.5.input_layernorm.weight",
        "embedding.word_embeddings.weight",
    ]
