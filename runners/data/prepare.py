"""stage=data's work: the prepared entry for some settings, made where it is absent, found again without torch.

    tokenizer.json, marks.json   the tokenizer, as tokenizer.load takes it
    tokens.bin/.idx              format indexed: the tokens, in megatron-core's indexed format
    lengths.bin                  format energon: tokens of each document (uint32), in the order of the shards
    shards/                      format energon: WebDataset shards of text with Energon's metadata
    manifest.json                hashes, counts and versions; written last

The key is a hash over what makes those bytes: the settings, the source's state, the libraries.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runners.data import entry as entries
from runners.data import sources
from runners.data.entry import PREFIX, SCHEMA, Entry, locked, scratch
from runners.errors import ConfigurationError, require, writing
from runners.schema import Data

__all__ = ["GIVEN", "PREFIX", "Entry", "ensure", "find", "locked", "scratch"]

GIVEN = "EKVI_DATA_ENTRY"  # the entry that a run takes, where the cockpit copied it from another machine
_KEY = re.compile(r"[0-9a-f]{16}")


def ensure(data: Data, cache: Path) -> tuple[Entry, bool]:
    """The entry for `data`, prepared where it is absent or damaged, and whether it was made now.

    Any number of processes may call it at once: one prepares, the others wait. Raises ConfigurationError for data
    that cannot be read or a missing package, RunnerError for a cache that cannot be written.
    """
    given = _given(cache) or mock(data)
    if given is not None:
        return given, False
    key = _key(data)
    entry = entries.read(cache, key)
    if entry is not None:
        _point(data, cache, key)
        return entry, False
    require("torch", "megatron.core", "tokenizers")
    from runners.data import make

    with writing(f"the cache {cache}"), locked(cache / "data", key):
        entry = entries.read(cache, key)
        if entry is not None:
            return entry, False
        part = scratch(cache / "data", key)
        try:
            manifest = make.make(data, cache, part)
            entries.write(part, cache / "data" / key, {"key": key, "versions": _versions(data), **manifest})
        finally:
            shutil.rmtree(part, ignore_errors=True)
    entry = entries.read(cache, key)
    assert entry is not None
    _point(data, cache, key)
    return entry, True


def find(data: Data, cache: Path) -> Entry:
    """The prepared entry for `data`; ConfigurationError says to run stage=data where there is none."""
    entry = _given(cache) or mock(data) or entries.read(cache, _key(data))
    if entry is None:
        raise ConfigurationError(
            f"the data for data.source={data.source} is not prepared in {cache}.",
            hint="Run stage=data first (stage=all does both).",
            every_rank=True,
        )
    return entry


def mock(data: Data) -> Entry | None:
    """The entry that stands for megatron-core's mock data, which is nowhere; None for all other data."""
    if data.source != "mock":
        return None
    vocab = data.tokenizer_vocab
    if data.tokenizer is not None:
        from runners.data import tokenizer

        vocab = tokenizer.resolve(data).vocab_size
    key = hashlib.sha256(json.dumps(["mock", vocab, data.seed]).encode()).hexdigest()
    manifest = {"schema": SCHEMA, "format": "mock", "source": "mock", "key": key[:16], "sha256": key, "vocab": vocab}
    return Entry(Path(os.devnull), {**manifest, "tokenizer_sha256": key, "files": {}})


def _given(cache: Path) -> Entry | None:
    """The entry that was copied here for this run, whatever this machine would have made; None where none was."""
    key = os.environ.get(GIVEN)
    if not key:
        return None
    entry = entries.read(cache, key) if _KEY.fullmatch(key) else None
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


def _key(data: Data) -> str:
    """16 hex digits over the settings, the source's state and the libraries that make the entry's bytes."""
    made_of = [SCHEMA, data.asked, sources.state(data), sources.tokenizer_state(data), _versions(data)]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def _versions(data: Data) -> dict[str, str]:
    """The libraries that decide an entry's bytes."""
    packages = [("tokenizers", "tokenizers"), ("megatron-core", "megatron.core")]
    if data.format == "energon":
        packages.append(("megatron-energon", "megatron.energon"))
    found = {}
    for package, module in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package == "megatron-energon":
                raise ConfigurationError(
                    "data.format=energon needs megatron-energon, which is not installed for this Python.",
                    hint=sources.EXTRA,
                    every_rank=True,
                ) from None
            require(module)
            found[package] = "unknown"  # present without metadata, as in some images
    return found
