"""Where the model, its tokenizer and the records come from: local folders, the hub, or made on the spot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import hub
from runners.data import records
from runners.data import sources as corpora
from runners.data.records import Record, Skips
from runners.errors import ConfigurationError
from runners.lora import data, fresh
from runners.schema import LoraRunner, RunConfig

SECTION = "section"  # runner.data: the records that the `data` section names
_INDEX = "model.safetensors.index.json"
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")
_BLOCK, _BLOCKS = 1 << 16, 16  # of each file of weights that the fingerprint reads


@dataclass(frozen=True)
class Sources:
    """The folders of the model and of the tokenizer, and what the model is called.

    Sequences of tokens need no tokenizer: with them it may be None. `published` says that the name is a repo's.
    """

    name: str
    model: Path
    tokenizer: Path | None
    published: bool = False


def find(config: RunConfig, runner: LoraRunner, cache: Path) -> Sources:
    """The folders, downloaded or made where they must be. Raises ConfigurationError, RunnerError by name."""
    key, name = _named(config, runner)
    published = name is not None and key != "runner.model_local_dir" and not hub.local(name)
    own = runner.tokenizer_local_dir
    if name is None:
        path = fresh.DEMO if runner.data_format == "npy" else runner.data
        texts = (text for record in read(config, path, cache, Skips()) for text in _texts(record))
        folder = fresh.folder(config.model, texts, config.data.tokenizer_vocab, runner.seed, cache)
        name = f"{config.model.name} (new)"
    else:
        folder = _model(key, name, config, runner)
    tokenizer = hub.folder(own, key="runner.tokenizer_local_dir") if own else folder
    if not any((tokenizer / file).is_file() for file in _TOKENIZER):
        if runner.data_format == "npy" and own is None:
            return Sources(name, folder, None, published)
        raise ConfigurationError(
            f"{tokenizer} holds no tokenizer: none of {', '.join(_TOKENIZER)} is there.",
            hint="Copy it beside the model, or name its folder in runner.tokenizer_local_dir.",
            every_rank=True,
        )
    return Sources(name, folder, tokenizer, published)


def _named(config: RunConfig, runner: LoraRunner) -> tuple[str, str | None]:
    """The key that names the model, and its value; None where a new one is asked for."""
    if runner.model_local_dir:
        return "runner.model_local_dir", runner.model_local_dir
    if runner.model:
        return "runner.model", runner.model
    return "model.weights", config.model.weights


def _model(key: str, name: str, config: RunConfig, runner: LoraRunner) -> Path:
    """The model's folder with all its files."""
    if key == "runner.model_local_dir" and not hub.local(name):
        name = f"./{name}"  # a folder that is not there must not be looked up as a repo
    folder = hub.folder(
        name,
        key=key,
        revision=config.model.revision if key == "model.weights" else runner.revision,
        offline=runner.local_files_only or config.data.offline,
        patterns=(*hub.WEIGHTS, *hub.TOKENIZER, "*.jinja"),
    )
    missing = lacking(folder)
    if missing is not None:
        raise ConfigurationError(
            f"{key}: {folder} is no whole model: {missing} is missing.",
            hint="Copy the model's folder again, with all its files.",
            every_rank=True,
        )
    return folder


def lacking(folder: Path) -> str | None:
    """The first file that a model's folder lacks, or None."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if (folder / _INDEX).is_file():
        try:
            parts = sorted(set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values()))
            return next((part for part in parts if not (folder / part).is_file()), None)
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"a readable {_INDEX}"
    return None if any(folder.glob("*.safetensors")) else "model.safetensors"


def read(config: RunConfig, path: str, cache: Path, skips: Skips) -> Iterator[Record]:
    """The records of a JSONL file, of the demo, or of the `data` section. ConfigurationError names file and line."""
    if path == fresh.DEMO:
        return fresh.demo()
    if path == SECTION:
        return corpora.records_of(config.data, cache, skips)
    return records.read([path], config.data.on_error, fields=config.data.fields, skips=skips)


def _texts(record: Record) -> Iterator[str]:
    yield from (message["content"] for message in record.messages or ())
    yield from (text for text in (record.prompt, record.completion, record.text) if text)


def tokenizer(sources: Sources) -> Any:
    """The tokenizer with something to pad with; None where there is none. ConfigurationError for a broken one."""
    if sources.tokenizer is None:
        return None
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(sources.tokenizer), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise whatever their parsers do
        told = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigurationError(
            f"the tokenizer in {sources.tokenizer} cannot be read: {told}.", every_rank=True
        ) from error
    if found.pad_token_id is None:
        found.pad_token = found.eos_token or found.convert_ids_to_tokens(0)
    return found


def examples(
    config: RunConfig, runner: LoraRunner, tokenizer: Any, cache: Path
) -> tuple[data.Examples, data.Examples]:
    """Training and validation examples; the second may be empty.

    Raises ConfigurationError for a file that cannot be read, a broken record, and a file without one example.
    """
    encoder, how = data.Encoder(tokenizer), config.data.on_error

    def load(path: str) -> data.Examples:
        skips = Skips()
        if runner.data_format == "npy":
            from runners.lora import npy

            made = data.ready(npy.rows(Path(path), runner.seq_len), runner.seq_len)
        else:
            made = data.examples(read(config, path, cache, skips), encoder, runner.seq_len, how, skips)
        if not made.items:
            raise data.nothing(path, made, runner.seq_len)
        return made

    train = load(runner.data)
    if runner.validation:
        return train, load(runner.validation)
    return train.parted(runner.validation_split, runner.seed)


def fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over a model's configuration and samples of its weights: equal for equal models, in a second."""
    total = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        total.update(f"{path.name} {size}".encode())
        with open(path, "rb") as stream:
            for at in range(_BLOCKS):
                stream.seek(max(0, size - _BLOCK) * at // (_BLOCKS - 1))
                total.update(stream.read(_BLOCK))
    return total.hexdigest()
