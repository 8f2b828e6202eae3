"""The stages of a run. Each is a function of a Context that returns what came out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from runners.errors import ConfigurationError
from runners.process import Folders, Process
from runners.schema import ALL_STAGES, STAGES, RunConfig


@dataclass(frozen=True)
class Context:
    """What a stage gets: the configuration, the process it runs in, its folders, and the run's id where known."""

    config: RunConfig
    process: Process
    folders: Folders
    run: str | None = None
    dry_run: bool = False  # purge: only list


@dataclass(frozen=True)
class Outcome:
    """How a stage ended other than by an error: `status` is "done" or "skipped"."""

    status: str = "done"
    message: str | None = None


Stage = Callable[[Context], Outcome]


def expand(stage: str) -> tuple[str, ...]:
    """The stages that `stage` stands for, in order; ConfigurationError names the known ones."""
    if stage == "all":
        return ALL_STAGES
    if stage not in STAGES:
        raise ConfigurationError(f"there is no stage {stage!r}.", hint=f"Known: {', '.join((*STAGES, 'all'))}.")
    return (stage,)


def find(stage: str) -> Stage:
    """The function of a stage; imported here, since data and purge must not wait for torch."""
    function: Stage = import_module(f"runners.stages.{stage}").run
    return function
