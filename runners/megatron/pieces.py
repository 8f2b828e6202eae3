"""How torch.distributed.checkpoint is told of tensors that a rank holds in rectangles.

Its own DTensor knows one rectangle a rank. A gated matrix cut over tensor ranks has two, and a run of a distributed
optimizer's elements has up to three, so the planners here list them; writing, reading and fitting together what
other sizes saved stay torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


@dataclass(frozen=True)
class Tile:
    """A rectangle of a tensor of `shape` at `offset`; `memory` is this rank's, and has its sizes.

    `writes` is False for a copy of what another rank of the pipeline owns: it is only read.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    memory: Any
    writes: bool = True

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """In torch's words."""
        return ChunkStorageMetadata(torch.Size(self.offset), torch.Size(self.memory.shape))


Tiles = dict[str, list[Tile]]


class Writing(DefaultSavePlanner):
    """Plans to write this rank's tiles. What several ranks hold alike, torch has one of them write."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """All tiles that this rank may write."""
        self.plan = SavePlan(
            [
                WriteItem(
                    index=MetadataIndex(name, torch.Size(tile.offset)),
                    type=WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        tile.chunk, TensorProperties.create_from_tensor(tile.memory), torch.Size(tile.shape)
                    ),
                )
                for name, tiles in self.state_dict.items()
                for tile in tiles
                if tile.writes
            ]
        )
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The memory of a planned tile."""
        return _memory(self.state_dict, index)


class Reading(DefaultLoadPlanner):
    """Plans to fill this rank's tiles from whatever rectangles were saved.

    A vocabulary that was padded to another size is read as far as both go.
    """

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        """As torch's, which would look into the tiles for tensors."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """What overlaps this rank's tiles; KeyError for a tensor that was not saved."""
        items: list[ReadItem] = []
        for name, tiles in self.state_dict.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise KeyError(f"it holds no {name}")
            items += create_read_items_for_chunk_list(name, saved, [tile.chunk for tile in tiles])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Any:
        """The memory of a tile to fill."""
        return _memory(self.state_dict, index)


def _memory(tiles: Tiles, index: MetadataIndex) -> Any:
    return next(tile.memory for tile in tiles[index.fqn] if torch.Size(tile.offset) == index.offset)
