"""Documents to WebDataset shards for Energon: split, then written in bytes that no machine, time or umask changes.

shards/train-00000.tar ...   members <part>-<number>[-marked].txt, documents in the order of the source
shards/.nv-meta/             Energon's metadata, by `energon prepare`
train.lengths, val.lengths   tokens of each document (uint32): to find a place again without tokenizing
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from runners.data import encode
from runners.data.corpus import Document
from runners.data.entry import digest
from runners.data.tokenizer import Tokenizer
from runners.errors import ConfigurationError, RunnerError
from runners.schema import Data

FOLDER = "shards"
PARTS = ("train", "val")
SHARDS_LEAST = 10  # so that ten ranks can read without sharing one, and Energon's own split by ratio has enough
SHARD_BY = 256 << 20  # bytes of text a shard, about
PREPARE_S = 24 * 3600.0
_MODE = 0o644


def write(data: Data, tokens: Tokenizer, read: Callable[[], Iterator[Document]], part: Path) -> dict[str, Any]:
    """Write the shards, their metadata and the lengths into the folder `part`; returns what the manifest says.

    `sha256` is over the training tokens as an indexed file would hold them; the validation's are hashed behind.
    Raises ConfigurationError where a part of the split would be empty.
    """
    count, size = 0, 0
    for document in read():
        count += 1
        size += len(document.text.encode())
    held_out = validation(count, data.train_split, data.seed)
    wanted = data.shards or max(SHARDS_LEAST, -(-size // SHARD_BY))
    folder = part / FOLDER
    folder.mkdir()
    shares = {"train": count - len(held_out), "val": len(held_out)}
    parts = {
        name: _Part(folder, part, name, of, min(of, wanted), tokens.vocab_size) for name, of in shares.items() if of
    }
    texts = hashlib.sha256()
    for number, (document, ids) in enumerate(encode.encoded(tokens, read(), data.workers)):
        note(texts, document)
        parts["val" if number in held_out else "train"].add(document, ids)
    for one in parts.values():
        one.close()
    describe(folder, data.name, list(parts))
    return _manifest(parts, texts.hexdigest(), folder)


def validation(count: int, train_split: float, seed: int) -> set[int]:
    """The numbers of the documents, of `count`, that are held out: the same for the same seed on every machine."""
    if train_split == 1:
        return set()
    held = max(1, round((1 - train_split) * count))
    if held >= count:
        raise ConfigurationError(
            f"data.train_split={train_split} leaves no document for training: there {'is' if count == 1 else 'are'}"
            f" {count}.",
            hint="Take more data, or data.train_split=1.0.",
            every_rank=True,
        )
    return set(random.Random(seed).sample(range(count), held))  # noqa: S311 - a choice to be repeated, no secret


def note(texts: Any, document: Document) -> None:
    """Add a document to the hash over all."""
    texts.update(json.dumps([document.text, document.marked]).encode())
    texts.update(b"\n")


def describe(folder: Path, name: str, parts: list[str]) -> None:
    """Write Energon's metadata beside the shards. Its index gets a random id there, and here one that stays."""
    command = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", "--non-interactive", "--no-progress"]
    command += ["--sample-type", "TextSample", "--field-map", json.dumps({"text": "txt"})]
    command += ["--num-workers", "1", str(folder)]  # several would add to its index in the order in which they end
    for one in parts:
        command += ["--split-parts", rf"{one}:{one}-.*\.tar"]
    before = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    env = {key: value for key, value in os.environ.items() if key not in before}
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PREPARE_S, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise RunnerError(f"energon prepare failed for the data set {name}: {said}.", every_rank=True)
    sums = "".join(digest(path) for path in sorted(folder.glob("*.tar")))
    (folder / ".nv-meta" / "index.uuid").write_text(str(uuid.uuid5(uuid.NAMESPACE_OID, sums)))


class _Part:
    """One part of the split while it is written: its shards in turn, its lengths, the hash of its tokens."""

    def __init__(self, folder: Path, part: Path, name: str, documents: int, shards: int, vocab: int) -> None:
        self.folder, self.name, self.documents, self.shards = folder, name, documents, shards
        self.lengths = open(part / f"{name}.lengths", "wb")  # noqa: SIM115 - held until `close`
        self.dtype = np.dtype(np.uint16 if vocab < 65500 else np.int32)  # as megatron-core chooses
        self.sha = hashlib.sha256()
        self.written = self.tokens = 0
        self.shard = -1
        self.tar: tarfile.TarFile | None = None

    def add(self, document: Document, ids: Any) -> None:
        """The next document."""
        text, marked = document.text, document.marked
        shard = self.written * self.shards // self.documents
        if shard != self.shard or self.tar is None:
            self._end()
            path = self.folder / f"{self.name}-{shard:05d}.tar"
            self.tar, self.shard = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT), shard  # noqa: SIM115
        content = text.encode()
        member = tarfile.TarInfo(f"{self.name}-{self.written:010d}{'-marked' if marked else ''}.txt")
        member.size, member.mode = len(content), _MODE  # time, user and group stay 0 and nameless
        self.tar.addfile(member, io.BytesIO(content))
        self.lengths.write(np.uint32(len(ids)).tobytes())
        self.sha.update(ids.astype(self.dtype).tobytes())
        self.written += 1
        self.tokens += len(ids)

    def close(self) -> None:
        """Complete its files."""
        self._end()
        self.lengths.close()

    def _end(self) -> None:
        if self.tar is not None:
            path = str(self.tar.name)
            self.tar.close()
            os.chmod(path, _MODE)
            self.tar = None


def _manifest(parts: dict[str, _Part], texts: str, folder: Path) -> dict[str, Any]:
    sums = [one.sha.hexdigest() for one in parts.values()]
    tars = "".join(f"{digest(path)} {path.name}\n" for path in sorted(folder.glob("*.tar")))
    return {
        "sha256": sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest(),
        "shards_sha256": hashlib.sha256(tars.encode()).hexdigest(),
        "documents_sha256": texts,
        "tokens": sum(one.tokens for one in parts.values()),
        "documents": sum(one.written for one in parts.values()),
        "parts": {n: {"documents": o.written, "tokens": o.tokens, "shards": o.shards} for n, o in parts.items()},
    }
