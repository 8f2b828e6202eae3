"""Small data in the layout of the task's data set: parquet files of tokens and labels, and a model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

Row = tuple[list[int], list[int]]


def rows(count: int, sequence: int, seed: int, vocab: int = 16, masked: int = 4) -> list[Row]:
    """Sequences that count upwards from a random token, over and over; the first `masked` tokens do not count."""
    starts = np.random.default_rng(seed).integers(0, vocab, count)
    made = []
    for start in starts:
        tokens = ((int(start) + np.arange(sequence)) % vocab).tolist()
        made.append((tokens, [-100] * masked + tokens[masked:]))
    return made


def table(path: Path, made: Sequence[Row], columns: Sequence[str] = ("input_ids", "labels")) -> None:
    """Write a parquet file as the data set's are: lists of int32 and int64, and an attention mask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "input_ids": pyarrow.array([r[0] for r in made], pyarrow.list_(pyarrow.int32())),
        "attention_mask": pyarrow.array([[1] * len(r[0]) for r in made], pyarrow.list_(pyarrow.int8())),
        "labels": pyarrow.array([r[1] for r in made], pyarrow.list_(pyarrow.int64())),
    }
    parquet.write_table(pyarrow.table({k: v for k, v in found.items() if k in (*columns, "attention_mask")}), path)


def folder(at: Path, train: Sequence[Row], validation: Sequence[Row], shards: int = 1) -> Path:
    """The data set's folder, its training split in `shards` files."""
    for index in range(shards):
        part = train[index * len(train) // shards : (index + 1) * len(train) // shards]
        table(at / "data" / f"train-{index:05}-of-{shards:05}.parquet", part)
    table(at / "data" / "validation-00000-of-00001.parquet", validation)
    return at
