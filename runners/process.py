"""Which process of a run this is, and where it may write: read once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.errors import ConfigurationError

_GROUP = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun and the schedulers set


@dataclass(frozen=True)
class Process:
    """One process of a run. Counts from 0; `launched` says whether a launcher such as torchrun set it."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    launched: bool = False

    @property
    def first(self) -> bool:
        """Rank 0: it prepares, wraps and speaks of stages."""
        return self.rank == 0

    @property
    def last(self) -> bool:
        """The last rank: it stands on the last pipeline stage, so it knows the loss."""
        return self.rank == self.world - 1

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Process:
        """The process that `env` describes; a single one where no launcher has set anything.

        Raises ConfigurationError where only some of torchrun's variables are set, or one is no number.
        """
        given = [name for name in _GROUP if env.get(name)]
        if not {"RANK", "WORLD_SIZE"} & set(given):
            return cls()
        missing = [name for name in _GROUP if name not in given]
        if missing:
            raise ConfigurationError(
                f"{' and '.join(given)} set but {' and '.join(missing)} not: no process group can form.",
                hint="Start it with torchrun (python -m torch.distributed.run), or unset RANK and WORLD_SIZE.",
            )
        rank, world = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        if rank >= world:
            raise ConfigurationError(f"RANK {rank} is not below WORLD_SIZE {world}.")
        local = _number(env, "LOCAL_RANK") if env.get("LOCAL_RANK") else rank
        return cls(rank=rank, world=world, local_rank=local, launched=True)


@dataclass(frozen=True)
class Folders:
    """Where a run writes: `out` is its own ($EKVI_OUT), `cache` is shared by runs ($EKVI_CACHE)."""

    out: Path
    cache: Path

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Folders:
        """Absolute folders; ./output and ./cache where the environment names none."""
        return cls(
            out=Path(os.path.abspath(env.get("EKVI_OUT") or "output")),
            cache=Path(os.path.abspath(env.get("EKVI_CACHE") or "cache")),
        )


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        value = int(env[name])
    except ValueError:
        raise ConfigurationError(f"{name}={env[name]!r} in the environment is not a number.") from None
    if value < 0:
        raise ConfigurationError(f"{name}={value} in the environment is negative.")
    return value
