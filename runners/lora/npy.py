"""Training on tokenised sequences: .npy files, or the entry that stage=data makes of a repo or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.errors import ConfigurationError
from runners.schema import LoraRunner

if TYPE_CHECKING:
    from runners.mlperf.gov_report import Entry
    from runners.stages import Context

KEY = "runner.data"


def asks(runner: LoraRunner) -> bool:
    """Whether the runner's data is something that stage=data has to convert."""
    return runner.data_format == "npy" and not runner.data.endswith(".npy")


def ensure(context: Context, runner: LoraRunner) -> tuple[Entry, bool]:
    """The prepared entry, and whether it was made now."""
    from runners.mlperf import gov_report

    return gov_report.ensure(runner.data, context.folders.cache, key=KEY, offline=runner.local_files_only)


def made(context: Context) -> Context:
    """What stage=data does first: convert what is not yet, and name the files in the context."""
    runner = context.config.runner
    if not isinstance(runner, LoraRunner) or not asks(runner) or context.process.local_rank != 0:
        return context
    entry, fresh = ensure(context, runner)
    print(f"[DATA] {entry.path}: {'converted' if fresh else 'already converted'}", flush=True)
    return prepared(context)


def prepared(context: Context) -> Context:
    """The context with the names of the entry's files for runner.data and runner.validation."""
    runner = context.config.runner
    if not isinstance(runner, LoraRunner) or not asks(runner):
        return context
    from runners.mlperf import gov_report

    entry = gov_report.find(runner.data, context.folders.cache, key=KEY)
    files = {"data": str(entry.path / "train.npy"), "validation": str(entry.path / "validation.npy")}
    config = context.config.model_copy(update={"runner": runner.model_copy(update=files)})
    return replace(context, config=config)


def rows(path: Path, limit: int | None = None) -> Iterator[Mapping[str, Any]]:
    """Each sequence of a .npy file: `input_ids` and `labels`, int64 arrays of one length.

    Raises ConfigurationError for a file of something else, or sequences of more than `limit` tokens.
    """
    from runners.mlperf.arrays import Arrays

    found = Arrays(Path(path))
    if limit is not None and found.sequence > limit:
        raise ConfigurationError(
            f"{path} has sequences of {found.sequence} tokens, more than runner.seq_len {limit}.",
            hint=f"Set runner.seq_len={found.sequence}.",
            every_rank=True,
        )
    yield from found
