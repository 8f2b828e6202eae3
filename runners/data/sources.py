"""The sources of `data.source`: what each is made of, and its documents and records, streamed in a fixed order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from runners import hub
from runners.data import chat, corpus, download, records, tables
from runners.data.chat import Layout
from runners.data.corpus import Document
from runners.data.files import COMPRESSED, WHERE
from runners.data.records import Record, RecordError, Skips
from runners.errors import ConfigurationError, installed
from runners.schema import Data

EXTRA = "Install the `data` extra: pip install 'ekvi-cockpit[data]'."
_SMALL = 1 << 27  # bytes: what is larger beside a tokenizer is weights
_DESCRIBED = ("README.md", "dataset_infos.json", "*.yaml")  # of a data set: what its subsets and splits are


def state(data: Data) -> list[Any]:
    """What stands for a source's content in the key of its entry, without reading it: of local files their size and
    time; of what is downloaded its name, so that an entry is found again without a network.
    """
    if data.source in ("files", "jsonl", "csv"):
        return [_stamp(path) for path in data.paths]
    if data.source == "indexed":
        return [_stamp(f"{data.paths[0]}{ending}") for ending in (".bin", ".idx")]
    if data.source == "pydoc":
        total = hashlib.sha256()
        for document in corpus.pydoc():
            total.update(json.dumps([document.name, document.text]).encode())
        return [total.hexdigest()]
    if data.source == "hub" and hub.local(data.repo or ""):
        root = Path(data.repo or "").expanduser()
        return [_stamp(str(path)) for path in sorted(root.rglob("*")) if path.is_file()]
    return []


def tokenizer_state(data: Data) -> list[Any]:
    """What stands for a tokenizer that is a local folder; a repo id and its revision are settings."""
    if data.tokenizer is None or not hub.local(data.tokenizer):
        return []
    root = Path(data.tokenizer).expanduser()
    return [_stamp(str(path)) for path in sorted(root.glob("*")) if path.is_file() and path.stat().st_size < _SMALL]


def _stamp(path: str) -> list[Any]:
    real = os.path.abspath(os.path.expanduser(path))
    try:
        found = os.stat(real)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.", hint=WHERE, every_rank=True) from error
    return [real, found.st_size, found.st_mtime_ns]


def records_of(data: Data, cache: Path, skips: Skips | None = None) -> Iterator[Record]:
    """The records of a source that has some (jsonl, csv, url, hub), at most `samples`; downloaded where it must be.

    Broken ones are refused, or left out and counted in `skips`, as data.on_error says.
    """
    return islice(_records(data, cache, skips), data.samples)


def documents(data: Data, cache: Path, layout: Layout = chat.plain, skips: Skips | None = None) -> Iterator[Document]:
    """The documents of a source, at most `samples`, in a fixed order; each call reads it anew.

    Raises ConfigurationError where there is no text at all.
    """
    found: Iterator[Document]
    if data.source == "pydoc":
        found = corpus.pydoc()
    elif data.source == "synthetic":
        found = corpus.synthetic(data.samples or corpus.SYNTHETIC_DOCUMENTS, data.seed)
    elif data.source == "files":
        found = map(corpus.file, data.paths)
    else:
        found = _laid_out(data, cache, layout, skips)
    empty = True
    for document in islice((document for document in found if document.text), data.samples):
        empty = False
        yield document
    if empty:
        left = f" ({skips.count} broken records were left out; the first: {skips.first})" if skips else ""
        told = left if skips and skips.count else ""
        named = ", ".join(data.paths or data.urls)
        where = f"data.source={data.source}" + (f" ({named})" if named else "")
        raise ConfigurationError(
            f"{where} holds no text{told}.",
            hint="Take other data, or say with data.fields where its text stands.",
            every_rank=True,
        )


def _laid_out(data: Data, cache: Path, layout: Layout, skips: Skips | None) -> Iterator[Document]:
    if data.source == "url":
        for path in _texts(data, cache):
            yield corpus.file(path)
    for record in _records(data, cache, skips):
        try:
            yield layout(record)
        except RecordError as error:
            records.wrong(f"{record.where}: {error}", data.on_error, skips)


def _records(data: Data, cache: Path, skips: Skips | None) -> Iterator[Record]:
    if data.source == "jsonl":
        yield from records.read(data.paths, data.on_error, fields=data.fields, skips=skips)
    elif data.source == "csv":
        yield from tables.read(data.paths, data.on_error, fields=data.fields, skips=skips)
    elif data.source == "url":
        for path in _downloaded(data, cache):
            reader = _reader(path)
            if reader is not None:
                yield from reader([path], data.on_error, fields=data.fields, skips=skips)
    elif data.source == "hub":
        yield from _rows(data, skips)
    else:
        raise ConfigurationError(
            f"data.source={data.source} has no records.", hint="Take jsonl, csv, url or hub.", every_rank=True
        )


# -- by URL


def _downloaded(data: Data, cache: Path) -> list[str]:
    sums = data.sums or (None,) * len(data.urls)
    pairs = zip(data.urls, sums, strict=True)
    return [str(download.fetch(url, cache, sha256=said, offline=data.offline)) for url, said in pairs]


def _texts(data: Data, cache: Path) -> list[str]:
    return [path for path in _downloaded(data, cache) if _reader(path) is None]


def _reader(path: str) -> Callable[..., Iterator[Record]] | None:
    """How a downloaded file is read, by its name; None is a plain text."""
    name = os.path.basename(path).lower()
    name = next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return records.read
    if name.endswith((".csv", ".tsv")):
        return tables.read
    if name.endswith((".txt", ".md", ".text")):
        return None
    raise ConfigurationError(
        f"data.urls: what {os.path.basename(path)} holds cannot be told from its name.",
        hint="It must end with .jsonl, .csv, .tsv or .txt, maybe compressed (.gz, .bz2, .xz, .zst).",
        every_rank=True,
    )


# -- of the Hugging Face hub


def _rows(data: Data, skips: Skips | None) -> Iterator[Record]:
    """The rows of a data set's split, streamed from its files, which are downloaded first."""
    where = f"{data.repo}[{data.split}]"
    with _explained(data):
        rows = _split(data)
        for number, row in enumerate(rows, 1):
            try:
                found = records.record(row, where, number, data.fields)
            except RecordError as error:
                records.wrong(f"{where}:{number}: {error}", data.on_error, skips)
            else:
                yield found


def _split(data: Data) -> Any:
    if not installed("datasets"):
        raise ConfigurationError("datasets is not installed for this Python.", hint=EXTRA, every_rank=True)
    patterns = (*data.files, *_DESCRIBED) if data.files else None
    repo, away = data.repo or "", data.offline
    folder = hub.folder(repo, key="data.repo", revision=data.revision, offline=away, patterns=patterns, dataset=True)
    import datasets

    datasets.disable_progress_bars()
    load = partial(datasets.load_dataset, str(folder), data.subset, streaming=True)
    if data.files:  # those files are the split, whatever the data set's own description says
        return load(split=data.split, data_files={data.split: list(data.files)})
    found = load()
    if data.split not in found:
        known = ", ".join(found) or "none"
        raise ConfigurationError(
            f"data.split={data.split}: the data set {data.repo} has no such split, but {known}.", every_rank=True
        )
    return found[data.split]


@contextmanager
def _explained(data: Data) -> Iterator[None]:
    """Turn what `datasets` raises into one sentence."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("datasets", "pyarrow", "builtins", "pandas")):
            raise
        told = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigurationError(
            f"data.repo={data.repo} cannot be read as a data set: {told}.",
            hint="Check data.subset, data.split and data.files.",
            every_rank=True,
        ) from error
