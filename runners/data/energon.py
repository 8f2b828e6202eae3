"""Training from Energon: documents of the shards, tokenized as they come and packed into sequences.

The documents are dealt out to lanes, each an Energon rank of its own: as many as a step has sequences, whatever the
parallel layout. Sample i is the (i // lanes)th sequence of lane i % lanes, so that every layout reads the same and a
process only reads the lanes that it needs. A place in a lane is found again by the lengths that stand beside the
shards, without tokenizing what lies before it: a training resumes at any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from runners.data import quiet
from runners.data.corpus import Document
from runners.data.encode import encode
from runners.data.entry import Entry
from runners.data.shards import FOLDER
from runners.data.sources import EXTRA
from runners.errors import ConfigurationError, RunnerError, installed

if TYPE_CHECKING:
    from runners.data.tokenizer import Tokenizer

_RUN = 128  # documents that are read in one go; the runs are shuffled anew in each epoch
# Energon knows one active reader a process: all lanes are read by one thread, which works ahead of the training.
_reader = ThreadPoolExecutor(1, thread_name_prefix="energon")


def check() -> None:
    """Raise ConfigurationError where Energon is not installed."""
    if not installed("megatron.energon"):
        raise ConfigurationError(
            "data.format=energon needs megatron-energon, which is not installed for this Python.",
            hint=EXTRA,
            every_rank=True,
        )


def stream(
    folder: Path, part: str, *, rank: int = 0, ranks: int = 1, seed: int = 0, repeat: bool = True
) -> Iterator[Any]:
    """The samples (TextSample) that Energon gives rank `rank` of `ranks` of one part of the split.

    Over all ranks each sample comes once an epoch. The order follows from the seed. Of several streams of a process
    only one may be advanced at a time.
    """
    check()
    quiet.silence()
    from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

    dataset = get_train_dataset(
        str(folder),
        split_part=part,
        worker_config=WorkerConfig(rank=rank, world_size=ranks, num_workers=0, seed_offset=seed),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=_RUN,
        repeat=repeat,
    )
    return iter(get_savable_loader(dataset, gc_collect_every_n_steps=0, watchdog_timeout_seconds=None))


class Packed:
    """Sequences of one part of the split: item i is {"tokens", "labels"}, int64 [sequence] each.

    Reading items in rising order is cheap; stepping back reads a lane from its start.
    """

    def __init__(self, entry: Entry, tokens: Tokenizer, part: str, sequence: int, lanes: int, length: int, seed: int):
        documents = int(entry.manifest["parts"][part]["documents"])
        self.lanes = min(lanes, documents)
        self.ahead = lanes if self.lanes == lanes > 1 else 0  # how far on the same lane's next sequence is
        self.length = length
        self._lanes: dict[int, _Lane] = {}
        self._coming: dict[int, Future[Any]] = {}
        lengths = np.fromfile(entry.path / f"{part}.lengths", dtype=np.uint32)

        def opened(lane: int) -> _Lane:
            def samples() -> Iterator[Any]:
                return stream(entry.path / FOLDER, part, rank=lane, ranks=self.lanes, seed=seed)

            return _Lane(samples, lengths, tokens, sequence)

        self._open = opened

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        coming = self._coming.pop(index, None) or _reader.submit(self._read, index)
        if self.ahead and index + self.ahead < self.length and index + self.ahead not in self._coming:
            self._coming[index + self.ahead] = _reader.submit(self._read, index + self.ahead)
        ids = torch.from_numpy(coming.result())
        return {"tokens": ids[:-1], "labels": ids[1:]}

    def _read(self, index: int) -> Any:
        lane, place = index % self.lanes, index // self.lanes
        if lane not in self._lanes:
            self._lanes[lane] = self._open(lane)
        return self._lanes[lane].take(place)


class _Lane:
    """One endless stream of tokens, cut into sequences that share their ends."""

    def __init__(self, samples: Callable[[], Iterator[Any]], lengths: Any, tokens: Tokenizer, sequence: int) -> None:
        self.samples, self.lengths, self.tokenizer, self.sequence = samples, lengths, tokens, sequence
        self._restart()

    def _restart(self) -> None:
        self.found = self.samples()
        self.start = 0  # where in the stream `held` begins
        self.held = np.empty(0, dtype=np.int64)

    def take(self, place: int) -> Any:
        """The tokens of sequence `place` and the one after them: int64 [sequence + 1]."""
        first = place * self.sequence
        if first < self.start:
            self._restart()
        self._drop(first)
        pending: list[tuple[Document, int]] = []
        end = self.start + len(self.held)
        while end < first + self.sequence + 1:
            document, length = self._next()
            if end + length <= first:  # all of it lies before
                self.start = end = end + length
                continue
            pending.append((document, length))
            end += length
        if pending:
            self.held = np.concatenate([self.held, *self._encoded(pending)])
            self._drop(first)
        return self.held[: self.sequence + 1].copy()

    def _drop(self, first: int) -> None:
        gone = min(len(self.held), max(0, first - self.start))
        self.held, self.start = self.held[gone:], self.start + gone

    def _next(self) -> tuple[Document, int]:
        sample = next(self.found)
        key = str(sample.__key__).rpartition("/")[2]
        _part, number, *marked = key.split("-")
        return Document(key, sample.text, marked=bool(marked)), int(self.lengths[int(number)])

    def _encoded(self, pending: list[tuple[Document, int]]) -> Iterator[Any]:
        for document, length in pending:
            (ids,) = encode(self.tokenizer, [document])
            if len(ids) != length:
                raise RunnerError(
                    f"the document {document.name} has {len(ids)} tokens here, {length} where it was prepared.",
                    hint="Install the same version of tokenizers, or prepare the data here.",
                )
            yield ids.astype(np.int64)
