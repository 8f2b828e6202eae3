"""Samples of the prepared tokens, in an order that no parallel layout changes: indexed, mock, or from Energon."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from runners.data.prepare import PREFIX, Entry, locked, scratch
from runners.errors import ConfigurationError, writing
from runners.schema import RunConfig


class Tokens:
    """What megatron-core asks of a tokenizer when it builds its index: ids, not text."""

    eod = 0
    pad = -1  # stands in no data, so no token is ever masked as padding

    def __init__(self, entry: Entry) -> None:
        self.vocab_size = entry.vocab
        self.unique_identifiers = {"tokenizer": entry.manifest.get("tokenizer_sha256")}


def index(config: RunConfig, entry: Entry, cache: Path) -> Path:
    """The folder with the samples' index, built where it is absent; complete or absent, safe for many at once.

    megatron-core itself would build it on global rank 0 only and in place: a node with a cache of its own, or a
    process killed meanwhile, would be left with an index that cannot be read.
    """
    if entry.format == "energon":  # it has its index beside the shards
        return entry.path
    folder, key = cache / "index", _index_key(config, entry)
    if (folder / key).is_dir():
        return folder / key
    with writing(f"the cache {cache}"), locked(folder, key):
        if not (folder / key).is_dir():
            part = scratch(folder, key)
            try:
                datasets(config, entry, part)
                os.rename(part, folder / key)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder / key


def datasets(config: RunConfig, entry: Entry, index_folder: Path) -> tuple[Any, Any]:
    """Samples for training and for validation (None where all documents train): item i is {"tokens", "labels", ...},
    int64 [sequence]. The training samples are as many as are needed, validation is one pass. Call it on all ranks.

    Raises ConfigurationError where the training documents hold less than one sequence, or those for an evaluation
    that is asked for less than one global batch.
    """
    train, validation = (_packed if entry.format == "energon" else _indexed)(config, entry, index_folder)
    held = 0 if validation is None else len(validation)
    if config.training.evaluate and held < config.training.global_batch:
        raise ConfigurationError(
            f"training.evaluate: data.train_split={config.data.train_split} leaves {held} sequences of"
            f" {config.training.sequence_length} to validate on, less than one global batch"
            f" ({config.training.global_batch}).",
            hint="Take more data or a smaller data.train_split.",
            every_rank=True,
        )
    return train, validation


def _packed(config: RunConfig, entry: Entry, _folder: Path) -> tuple[Any, Any]:
    """From Energon's shards."""
    from runners.data import energon, tokenizer

    energon.check()
    training, parts = config.training, entry.manifest["parts"]
    sequence = training.sequence_length
    if parts["train"]["tokens"] <= sequence:
        raise _too_little(config, parts["train"]["documents"], entry.manifest["documents"], parts["train"]["tokens"])
    tokens = tokenizer.load(entry.path)
    length = training.iterations * training.global_batch
    train = energon.Packed(entry, tokens, "train", sequence, training.global_batch, length, config.data.seed)
    held = (parts["val"]["tokens"] - 1) // sequence if "val" in parts else 0
    validation = energon.Packed(entry, tokens, "val", sequence, 1, held, config.data.seed) if held else None
    return train, validation


def _indexed(config: RunConfig, entry: Entry, index_folder: Path) -> tuple[Any, Any]:
    """From megatron-core's indexed tokens, or its mock data."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

    training, mock = config.training, entry.format == "mock"
    if not mock:
        _enough(config, entry)
    settings = GPTDatasetConfig(
        random_seed=config.data.seed,
        sequence_length=training.sequence_length,
        blend=None if mock else ([str(entry.prefix)], None),
        split=_split(config.data.train_split),
        path_to_cache=str(index_folder),
        tokenizer=Tokens(entry),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [training.iterations * training.global_batch, None, None]
    train, validation, _test = BlendedMegatronDatasetBuilder(
        MockGPTDataset if mock else GPTDataset, sizes, lambda: True, settings
    ).build()
    return train, validation


def micro_batches(
    samples: Any, config: RunConfig, replica: int, steps: int, begin: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and labels, int64 [micro batch, sequence] each, of data-parallel rank `replica`, for the steps from
    `begin` to `steps`, counted from 0.

    Micro batch j of a step holds the same samples whatever the layout; the ranks take them in turns.
    """
    training = config.training
    size, replicas = training.micro_batch, training.parallel.data
    for step in range(begin, steps):
        for j in range(replica, training.global_batch // size, replicas):
            first = step * training.global_batch + j * size
            items = [samples[i] for i in range(first, first + size)]
            yield torch.stack([item["tokens"] for item in items]), torch.stack([item["labels"] for item in items])


def _split(train: float) -> str:
    return f"{train!r},{max(0.0, 1.0 - train)!r},0"


def _enough(config: RunConfig, entry: Entry) -> None:
    """megatron-core repeats the documents until there are enough samples: without a first one it never ends."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    indexed = IndexedDataset(str(entry.prefix))  # held by name: its arrays are views of a file that it unmaps
    lengths = indexed.sequence_lengths
    train = config.data.train_split
    count = round(train / (train + max(0.0, 1.0 - train)) * len(lengths))
    tokens = int(lengths[:count].sum())
    if tokens <= config.training.sequence_length:
        raise _too_little(config, count, len(lengths), tokens)


def _too_little(config: RunConfig, documents: int, of: int, tokens: int) -> ConfigurationError:
    return ConfigurationError(
        f"data.train_split={config.data.train_split} leaves {documents} of {of} documents with {tokens} tokens for"
        f" training, less than one sequence of {config.training.sequence_length} + 1.",
        hint="Take more data, a larger data.train_split or a shorter training.sequence_length.",
        every_rank=True,
    )


def _index_key(config: RunConfig, entry: Entry) -> str:
    training = config.training
    made_of = [
        entry.manifest["key"],
        str(entry.path / PREFIX),  # megatron-core hashes it into the file names
        config.data.seed,
        config.data.train_split,
        training.sequence_length,
        training.iterations * training.global_batch,
    ]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
