"""Make an entry's files in a scratch folder: tokens in megatron-core's format, or shards for Energon."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from runners import hub
from runners.data import chat, encode, quiet, shards, sources, tokenizer
from runners.data.corpus import Document
from runners.data.entry import PREFIX, digest
from runners.data.records import Skips
from runners.data.tokenizer import Tokenizer
from runners.errors import ConfigurationError
from runners.schema import Data

Read = Callable[[], Iterator[Document]]  # the documents from the first on, as often as it is called

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")  # the mark, the version, the type of the tokens, sequences, documents


def make(data: Data, cache: Path, part: Path) -> dict[str, Any]:
    """Write the files of the entry for `data` into the folder `part`; returns its manifest, less `files`.

    Raises ConfigurationError for data that cannot be read or holds no text.
    """
    if data.source == "indexed":
        return {"source": data.source, "format": "indexed", **_taken(data, part)}
    skips = Skips()
    layout = _layout(data)

    def read() -> Iterator[Document]:
        skips.count = 0
        return sources.documents(data, cache, layout, skips)

    made = tokenizer.resolve(data, texts=(document.text for document in read()))
    made.save(part)
    written = (shards.write if data.format == "energon" else _indexed)(data, made, read, part)
    return {
        "source": data.source,
        "format": data.format,
        **written,
        "tokenizer_sha256": made.fingerprint,
        "vocab": made.vocab_size,
        "eos_id": made.eos_id,
        "skipped": skips.count,
        "first_skipped": skips.first,
    }


def _layout(data: Data) -> chat.Layout:
    """How records become text: by the chat template of a published tokenizer, where it has one."""
    if data.tokenizer is None:
        return chat.plain
    folder = hub.folder(
        data.tokenizer,
        key=tokenizer.KEY,
        revision=data.tokenizer_revision,
        offline=data.offline,
        patterns=hub.TOKENIZER,
    )
    return chat.templated(folder) if chat.has_template(folder) else chat.plain


def _indexed(data: Data, tokens: Tokenizer, read: Read, part: Path) -> dict[str, Any]:
    """Write tokens.bin and tokens.idx: each document is one sequence."""
    quiet.silence()
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(part / f"{PREFIX}.bin"), dtype=DType.optimal_dtype(tokens.vocab_size))
    texts, count, total = hashlib.sha256(), 0, 0
    for document, ids in encode.encoded(tokens, read(), data.workers):
        shards.note(texts, document)
        builder.add_item(torch.from_numpy(ids))
        builder.end_document()
        count += 1
        total += len(ids)
    builder.finalize(str(part / f"{PREFIX}.idx"))
    return {
        "sha256": digest(part / f"{PREFIX}.bin"),
        "idx_sha256": digest(part / f"{PREFIX}.idx"),
        "documents_sha256": texts.hexdigest(),
        "tokens": total,
        "documents": count,
    }


def _taken(data: Data, part: Path) -> dict[str, Any]:
    """Take a user's own indexed files: linked where the file system can, else copied."""
    quiet.silence()
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = os.path.abspath(os.path.expanduser(data.paths[0]))
    for ending in (".bin", ".idx"):
        _bring(f"{prefix}{ending}", part / f"{PREFIX}{ending}")
    try:
        _looked_over(part / f"{PREFIX}.idx")
        indexed = IndexedDataset(str(part / PREFIX))
        lengths, documents = indexed.sequence_lengths, len(indexed.document_indices) - 1
        total = int(lengths.sum())
        highest = _highest(f"{prefix}.bin", indexed.index.dtype, total)
    except (AssertionError, ValueError, KeyError, struct.error) as error:
        told = str(error).strip().partition("\n")[0] or "its header is another's"
        raise ConfigurationError(
            f"{data.paths[0]}: the .bin and .idx are no indexed data set of Megatron: {told}.", every_rank=True
        ) from error
    if not total:
        raise ConfigurationError(f"{data.paths[0]}: the indexed data set holds no tokens.", every_rank=True)
    found: dict[str, Any] = {"vocab": highest + 1}
    if data.tokenizer is not None:
        made = tokenizer.resolve(data)
        made.save(part)
        found = {"vocab": made.vocab_size, "tokenizer_sha256": made.fingerprint, "eos_id": made.eos_id}
        if highest >= made.vocab_size:
            raise ConfigurationError(
                f"{data.paths[0]} holds the token {highest}, but data.tokenizer has {made.vocab_size} tokens.",
                hint="Name the tokenizer that made it.",
                every_rank=True,
            )
    sums = {"sha256": digest(part / f"{PREFIX}.bin"), "idx_sha256": digest(part / f"{PREFIX}.idx")}
    return {**sums, "tokens": total, "documents": documents, **found}


def _looked_over(path: Path) -> None:
    """Raise ValueError where an .idx is none: megatron-core's reader leaves half an object behind on such a file."""
    with open(path, "rb") as stream:
        head = stream.read(_HEAD.size)
    if not head.startswith(_MAGIC):
        raise ValueError("the .idx has another header")
    *_, sequences, documents = _HEAD.unpack(head)
    if path.stat().st_size < _HEAD.size + 12 * sequences + 8 * documents:
        raise ValueError("the .idx is cut short")


def _bring(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(source, target)


def _highest(path: str, dtype: Any, tokens: int) -> int:
    """The highest of a file's token ids, a block at a time. Raises ValueError where they are less than `tokens`."""
    highest = 0
    if os.path.getsize(path) < tokens * np.dtype(dtype).itemsize:
        raise ValueError("the tokens are fewer than the index says")
    with open(path, "rb") as stream:
        while block := stream.read(1 << 24):
            highest = max(highest, int(np.frombuffer(block, dtype=dtype).max()))
    return highest
