"""The task's data: GovReport, tokenised and packed into sequences of one length, as the hub or a folder has it.

    train*.parquet, validation*.parquet    `input_ids` and `labels` (-100 does not count), below it or in its data/
    train.npy, validation.npy              the same converted, by others or by us

become `train.npy` and `validation.npy` (runners/mlperf/arrays.py) and manifest.json in `CACHE/data/<key>/`: complete
or absent. The key is a hash over the source's bytes, so that two machines make the same entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import hub
from runners.data.prepare import locked, scratch
from runners.errors import ConfigurationError, installed, require, writing

if TYPE_CHECKING:
    import numpy as np

    from runners.mlperf.arrays import Arrays, Ints

SCHEMA = "ekvi.sequences/1"
SPLITS = ("train", "validation")
_PATTERNS = ("*.parquet",)
_COLUMNS = ("input_ids", "labels")


@dataclass(frozen=True)
class Entry:
    """Prepared sequences: their folder and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    def split(self, name: str) -> Arrays:
        """The sequences of "train" or "validation"."""
        from runners.mlperf.arrays import Arrays

        return Arrays(self.path / f"{name}.npy")


def ensure(source: str, cache: Path, *, key: str, offline: bool = False) -> tuple[Entry, bool]:
    """The entry of `source` (REPO[@REVISION] or a folder), prepared where it is absent, and whether it was made now.

    `key` is the configuration's key that says it, for errors. Raises ConfigurationError for data that cannot be
    read or a missing package, RunnerError for a cache that cannot be written or a network that does not carry.
    """
    repo, revision = _named(source)
    require("numpy")
    folder = hub.folder(repo, key=key, revision=revision, offline=offline, patterns=_PATTERNS, dataset=True)
    files = {split: _files(folder, split, key) for split in SPLITS}
    made_of = _hash(files)
    entry = _read(cache, made_of)
    made = entry is None
    if entry is None:
        with writing(f"the cache {cache}"), locked(cache / "data", made_of):
            entry = _read(cache, made_of)
            made = entry is None
            if entry is None:
                _make(files, source, cache / "data", made_of)
                entry = _read(cache, made_of)
    assert entry is not None
    _point(source, cache, made_of)
    return entry, made


def find(source: str, cache: Path, *, key: str) -> Entry:
    """The prepared entry of `source`; ConfigurationError says to run stage=data where there is none."""
    entry = None
    with suppress(OSError):
        entry = _read(cache, (cache / "data" / f"{_request(source)}.entry").read_text())
    if entry is None:
        raise ConfigurationError(
            f"the sequences of {key}={source} are not prepared in {cache}.",
            hint="Run stage=data first (stage=all does both).",
            every_rank=True,
        )
    return entry


def _named(source: str) -> tuple[str, str | None]:
    """Repo and revision; a folder is a folder whatever is in its name."""
    if hub.local(source):
        return source, None
    repo, _, revision = source.partition("@")
    return repo, revision or None


def _request(source: str) -> str:
    """16 hex digits over what was asked; of a folder also over its files' sizes and times, which a change moves."""
    told: list[Any] = [SCHEMA, source]
    if hub.local(source):
        folder = Path(os.path.expanduser(source)).absolute()
        found = [p for split in SPLITS for p in (_listed(folder, split) if folder.is_dir() else ())]
        told += [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in found]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _listed(folder: Path, split: str) -> list[Path]:
    places = (folder, folder / "data")
    for pattern in (f"{split}*.parquet", f"{split}.npy"):
        for place in places:
            if found := sorted(place.glob(pattern)):
                return found
    return []


def _files(folder: Path, split: str, key: str) -> list[Path]:
    found = _listed(folder, split)
    if not found:
        raise ConfigurationError(
            f"{key}: {folder} holds neither {split}*.parquet nor {split}.npy, also not in its data folder.",
            hint="Name the folder or the repo id of tokenised sequences.",
            every_rank=True,
        )
    return found


def _hash(files: dict[str, list[Path]]) -> str:
    digest = hashlib.sha256(SCHEMA.encode())
    for split, paths in files.items():
        for path in paths:
            digest.update(f"{split} {path.name} ".encode())
            digest.update(_digest(path))
    return digest.hexdigest()[:16]


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}.", every_rank=True) from error
    return digest.digest()


def _read(cache: Path, key: str) -> Entry | None:
    """The entry, or None where it is absent or a file of it is missing or has another size."""
    path = cache / "data" / key
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        sizes = manifest["bytes"]
        whole = manifest["schema"] == SCHEMA and all(
            (path / f"{split}.npy").stat().st_size == sizes[f"{split}.npy"] for split in SPLITS
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(path, manifest) if whole else None


def _point(source: str, cache: Path, key: str) -> None:
    """Note which entry the source led to: the training finds it without the source."""
    path = cache / "data" / f"{_request(source)}.entry"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(f"the cache {cache}"):
        part.write_text(key)
        part.replace(path)


def _make(files: dict[str, list[Path]], source: str, folder: Path, key: str) -> None:
    """Write the entry in a scratch folder, then put it in its place with one rename."""
    part = scratch(folder, key)
    try:
        told = {split: _convert(paths, part / f"{split}.npy") for split, paths in files.items()}
        train, validation = told["train"], told["validation"]
        if train["sequence_length"] != validation["sequence_length"]:
            raise ConfigurationError(
                f"{source}: training sequences have {train['sequence_length']} tokens, those to validate "
                f"{validation['sequence_length']}.",
                every_rank=True,
            )
        manifest = {
            "schema": SCHEMA,
            "key": key,
            "source": source,
            "sha256": train["sha256"],
            "validation_sha256": validation["sha256"],
            "tokens": train["samples"] * train["sequence_length"],
            "documents": train["samples"],
            "validation": validation["samples"],
            "sequence_length": train["sequence_length"],
            "bytes": {f"{split}.npy": (part / f"{split}.npy").stat().st_size for split in SPLITS},
        }
        (part / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for name in (*(f"{split}.npy" for split in SPLITS), "manifest.json"):
            with open(part / name, "rb") as written:
                os.fsync(written.fileno())
        if (folder / key).exists():
            shutil.rmtree(folder / key)  # damaged, and nobody reads a damaged entry
        os.rename(part, folder / key)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _convert(paths: list[Path], target: Path) -> dict[str, Any]:
    """Write the sequences of `paths`, in order, to `target`; returns samples, sequence_length and sha256 of tokens.

    The rows go through one file that grows, so that no split has to fit in memory.
    """
    import numpy as np

    from runners.mlperf.arrays import layout

    raw = target.with_suffix(".rows")
    digest, samples, sequence = hashlib.sha256(), 0, 0
    with open(raw, "wb") as stream:
        for row in _packed(paths):
            sequence = row["input_ids"].shape[-1]
            digest.update(row["input_ids"].tobytes())
            stream.write(row.tobytes())
            samples += 1
    if not samples:
        raise ConfigurationError(f"{paths[0]} holds no sequence.", every_rank=True)
    with open(target, "wb") as out, open(raw, "rb") as stream:
        header = {
            "descr": np.lib.format.dtype_to_descr(layout(sequence)),
            "fortran_order": False,
            "shape": (samples,),
        }
        np.lib.format.write_array_header_1_0(out, header)
        shutil.copyfileobj(stream, out, 1 << 20)
    raw.unlink()
    return {"samples": samples, "sequence_length": sequence, "sha256": digest.hexdigest()}


def _packed(paths: list[Path]) -> Iterator[np.ndarray[Any, Any]]:
    """The rows of all files in the file's layout; ConfigurationError names the file and row that does not fit."""
    import numpy as np

    from runners.mlperf.arrays import IGNORED, layout

    kind: Any = None
    for path in paths:
        for number, (tokens, labels) in enumerate(_rows(path)):
            kind = kind or layout(tokens.size)
            length = kind["input_ids"].shape[0]
            counted = labels != IGNORED
            if tokens.size != length or labels.size != length or not length:
                raise _odd(path, number, f"has {tokens.size} tokens and {labels.size} labels, the first {length}")
            if not np.array_equal(tokens[counted], labels[counted]):
                raise _odd(path, number, "has labels that are not its tokens: the trainer shifts them, not the file")
            if tokens.min() < 0:
                raise _odd(path, number, f"holds the token {tokens.min()}")
            row = np.zeros((), kind)
            row["input_ids"], row["loss_mask"] = tokens, counted
            yield row


def _odd(path: Path, number: int, what: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: sequence {number} {what}.", every_rank=True)


def _rows(path: Path) -> Iterator[tuple[Ints, Ints]]:
    """(tokens, labels) of each row of a parquet file, of our .npy or of one of pickled dictionaries."""
    import numpy as np

    from runners.mlperf import arrays

    if path.suffix == ".npy":
        if arrays.pickled(path):
            yield from arrays.foreign(path)
        else:
            yield from ((row["input_ids"], row["labels"]) for row in arrays.Arrays(path))
        return
    if not installed("pyarrow"):
        raise ConfigurationError(
            f"pyarrow is not installed for this Python, which reads {path}.",
            hint="Install the `data` extra: pip install 'ekvi-cockpit[data]'.",
            every_rank=True,
        )
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as source:
            for batch in source.iter_batches(64, columns=list(_COLUMNS)):
                for pair in zip(*(batch.column(name) for name in _COLUMNS), strict=True):
                    tokens, labels = (cell.values.to_numpy(zero_copy_only=False).astype(np.int64) for cell in pair)
                    yield tokens, labels
    except (OSError, pyarrow.ArrowException, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{path} holds no {' and '.join(_COLUMNS)}: {error}.", every_rank=True) from error
