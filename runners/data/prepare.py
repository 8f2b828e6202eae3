"""The prepared entry: `CACHE/data/<key>/`, complete or absent, found again without torch.

    documents.jsonl   the corpus, one {"name", "text"} a line
    tokenizer.json    the tokenizer, in the format of `tokenizers`
    tokens.bin/.idx   the tokens, in megatron-core's indexed format
    manifest.json     hashes, counts and versions; written last

The key is a hash over everything that makes those bytes: the documents, the vocabulary, the libraries.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runners.data import corpus
from runners.data.corpus import Document
from runners.errors import ConfigurationError, require, writing
from runners.schema import Data

SCHEMA = "ekvi.data/1"
PREFIX = "tokens"
GIVEN = "EKVI_DATA_ENTRY"  # the entry that a run takes, where the cockpit copied it from another machine
_KEY = re.compile(r"[0-9a-f]{16}")
_FILES = ("documents.jsonl", "tokenizer.json", f"{PREFIX}.bin", f"{PREFIX}.idx")


@dataclass(frozen=True)
class Entry:
    """A prepared entry: its folder and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def prefix(self) -> Path:
        """The path of the indexed files without their endings."""
        return self.path / PREFIX

    @property
    def vocab(self) -> int:
        """How many tokens the tokenizer knows."""
        return int(self.manifest["vocab"])

    def diagnostic(self) -> dict[str, Any]:
        """The fields of the `data` diagnostic."""
        told = ("source", "sha256", "idx_sha256", "tokenizer_sha256", "tokens", "documents", "vocab", "key")
        data = {key: self.manifest[key] for key in told}
        message = f"{data['tokens']} tokens of {data['documents']} documents, vocabulary {data['vocab']}"
        return {"level": "info", "code": "data", "message": message, "data": data}


def ensure(data: Data, cache: Path) -> tuple[Entry, bool]:
    """The entry for `data`, prepared where it is absent or damaged, and whether it was made now.

    Any number of processes may call it at once: one prepares, the others wait. Raises ConfigurationError for data
    that cannot be read or a missing package, RunnerError for a cache that cannot be written.
    """
    given = _given(cache)
    if given is not None:
        return given, False
    found = corpus.documents(data)
    key = _key(data, found)
    entry = _read(cache, key)
    if entry is not None:
        _point(data, cache, key)
        return entry, False
    require("torch", "megatron.core", "tokenizers")
    with writing(f"the cache {cache}"), locked(cache / "data", key):
        entry = _read(cache, key)
        if entry is not None:
            return entry, False
        _make(data, found, cache / "data", key)
    entry = _read(cache, key)
    assert entry is not None
    _point(data, cache, key)
    return entry, True


def find(data: Data, cache: Path) -> Entry:
    """The prepared entry for `data`; ConfigurationError says to run stage=data where there is none."""
    entry = _given(cache) or _read(cache, _key(data, corpus.documents(data)))
    if entry is None:
        raise ConfigurationError(
            f"the data for data.source={data.source} is not prepared in {cache}.",
            hint="Run stage=data first (stage=all does both).",
            every_rank=True,
        )
    return entry


def _given(cache: Path) -> Entry | None:
    """The entry that was copied here for this run, whatever this machine would have made; None where none was."""
    key = os.environ.get(GIVEN)
    if not key:
        return None
    entry = _read(cache, key) if _KEY.fullmatch(key) else None
    if entry is None:
        raise ConfigurationError(
            f"the prepared data {key} that this run was given is not whole in {cache}.",
            hint="Launch the group again: it is copied anew.",
            every_rank=True,
        )
    return entry


def _point(data: Data, cache: Path, key: str) -> None:
    """Note which entry the settings led to, for who copies it to other machines; a hint, and no more."""
    path = cache / "data" / f"{data.request}.entry"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        if not path.exists() or path.read_text() != key:
            part.write_text(key)
            part.replace(path)


@contextmanager
def locked(folder: Path, key: str) -> Iterator[None]:
    """Hold the lock of one cache entry, made where `folder` has none. Raises OSError where it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{key}.lock", "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def scratch(folder: Path, key: str) -> Path:
    """An empty folder beside the entry, to be renamed into its place; what a killed process left is cleared.

    Only with the entry's lock held.
    """
    for stale in folder.glob(f".{key}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)
    part = folder / f".{key}.{os.getpid()}.part"
    part.mkdir()
    return part


def _key(data: Data, found: Sequence[Document]) -> str:
    """16 hex digits over the documents, the vocabulary and the libraries that make the entry's bytes."""
    made_of = [SCHEMA, corpus.digest(found), data.tokenizer_vocab, *_versions().items()]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    found = {}
    for package, module in (("tokenizers", "tokenizers"), ("megatron-core", "megatron.core")):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            require(module)
            found[package] = "unknown"  # present without metadata, as in some images
    return found


def _read(cache: Path, key: str) -> Entry | None:
    """The entry, or None where it is absent or a file of it is missing or has another size."""
    path = cache / "data" / key
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        whole = manifest["schema"] == SCHEMA and all(
            (path / name).stat().st_size == manifest["bytes"][name] for name in _FILES
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(path, manifest) if whole else None


def _make(data: Data, found: Sequence[Document], folder: Path, key: str) -> None:
    """Write the entry in a scratch folder, then put it in its place with one rename."""
    part = scratch(folder, key)
    try:
        with open(part / "documents.jsonl", "w", encoding="utf-8") as stream:
            for document in found:
                stream.write(json.dumps({"name": document.name, "text": document.text}, ensure_ascii=False) + "\n")
        tokens, vocab = _write_tokens(found, data.tokenizer_vocab, part)
        manifest = {
            "schema": SCHEMA,
            "key": key,
            "source": data.source,
            "sha256": _sha256(part / f"{PREFIX}.bin"),
            "idx_sha256": _sha256(part / f"{PREFIX}.idx"),
            "tokenizer_sha256": _sha256(part / "tokenizer.json"),
            "documents_sha256": _sha256(part / "documents.jsonl"),
            "tokens": tokens,
            "documents": len(found),
            "vocab": vocab,
            "versions": _versions(),
            "bytes": {name: (part / name).stat().st_size for name in _FILES},
        }
        (part / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for name in (*_FILES, "manifest.json"):
            with open(part / name, "rb") as written:
                os.fsync(written.fileno())
        if (folder / key).exists():
            shutil.rmtree(folder / key)  # damaged, and nobody reads a damaged entry
        os.rename(part, folder / key)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_tokens(found: Sequence[Document], vocab: int, part: Path) -> tuple[int, int]:
    """Write tokenizer.json, tokens.bin and tokens.idx; returns the number of tokens and the vocabulary's size."""
    from runners.data import quiet

    quiet.silence()
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    from runners.data import tokenizer as bpe

    tokenizer = bpe.train(found, vocab)
    tokenizer.save(str(part / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    builder = IndexedDatasetBuilder(str(part / f"{PREFIX}.bin"), dtype=DType.optimal_dtype(size))
    tokens = 0
    for ids in bpe.encode(tokenizer, found):
        builder.add_item(torch.tensor(ids, dtype=torch.int64))
        builder.end_document()
        tokens += len(ids)
    builder.finalize(str(part / f"{PREFIX}.idx"))
    return tokens, size


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
