"""Text to token ids: a tokenizer trained on the corpus itself, or a published one by repo id or local folder.

`resolve` is the door. A folder is read in this order: tokenizer.json, the GPT-2 pair (vocab.json and merges.txt, or
gpt2-vocab.json and gpt2-merges.txt), whatever else transformers can turn into a fast tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from runners import hub
from runners.errors import ConfigurationError, require
from runners.schema import Data

END_OF_TEXT = "<|endoftext|>"
KEY = "data.tokenizer"
FILE = "tokenizer.json"
MARKS = "marks.json"  # beside it: which id ends a document
_DESCRIBED = ("tokenizer_config.json", "config.json", "generation_config.json")
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # where no file says it


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer as data preparation needs it; it can be pickled and handed to worker processes.

    `backend` is a `tokenizers.Tokenizer`; `eos_id` is the id that ends a document.
    """

    backend: Any
    eos_id: int

    def __post_init__(self) -> None:
        self.backend.encode_special_tokens = True  # a mark's spelling inside a text is text: it ends no document
        self.backend.no_truncation()
        self.backend.no_padding()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Any, int]]:
        return Tokenizer, (self.backend, self.eos_id)  # pickling the backend forgets what was set above

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in order, without any mark before or after it."""
        return [encoding.ids for encoding in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, marks left out."""
        return str(self.backend.decode(list(ids)))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id: what a model's embedding must hold at least."""
        return int(max(self.backend.get_vocab(with_added_tokens=True).values())) + 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that decides the ids: equal for equal tokenizers, in whatever files they came."""
        content = _canonical(json.loads(self.backend.to_str()))
        told = json.dumps({"tokenizer": content, "eos_id": self.eos_id}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and marks.json into `folder`, for `load`."""
        self.backend.save(str(folder / FILE), pretty=False)
        (folder / MARKS).write_text(json.dumps({"eos_id": self.eos_id}) + "\n")


def resolve(data: Data, offline: bool | None = None, texts: Iterable[str] | None = None) -> Tokenizer:
    """The tokenizer of `data.tokenizer`; null trains one on `texts`, which is read only then.

    `offline` true looks for nothing on the network; None takes it from data.offline and the environment. Raises
    ConfigurationError where it cannot be found, read or reached, or does not say what ends a document.
    """
    require("tokenizers")
    if data.tokenizer is None:
        return trained(texts or (), data.tokenizer_vocab)
    folder = hub.folder(
        data.tokenizer,
        key=KEY,
        revision=data.tokenizer_revision,
        offline=data.offline if offline is None else offline,
        patterns=hub.TOKENIZER,
    )
    return read(folder)


def trained(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A byte-level BPE with at most `vocab` entries: the end-of-text mark as 0, the 256 bytes, merges.

    The same texts give the same tokenizer. A small corpus may not fill `vocab`.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    return Tokenizer(backend, backend.token_to_id(END_OF_TEXT) or 0)


def load(folder: Path) -> Tokenizer:
    """What `save` wrote into `folder`. Raises ConfigurationError where it is damaged."""
    from tokenizers import Tokenizer as Backend

    try:
        marks = json.loads((folder / MARKS).read_bytes())
        return Tokenizer(Backend.from_file(str(folder / FILE)), int(marks["eos_id"]))
    except Exception as error:  # tokenizers raises bare Exception
        raise ConfigurationError(f"the tokenizer in {folder} cannot be read: {error}.", every_rank=True) from error


def read(folder: Path) -> Tokenizer:
    """The tokenizer of a published model's folder. Raises ConfigurationError, naming the folder."""
    try:
        backend = _backend(folder)
    except ConfigurationError:
        raise
    except Exception as error:  # tokenizers and transformers raise whatever their parsers do
        told = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigurationError(
            f"{KEY}: the tokenizer in {folder} cannot be read: {told}.", every_rank=True
        ) from error
    return Tokenizer(backend, _end(folder, backend))


def _backend(folder: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    if (folder / FILE).is_file():
        return Backend.from_file(str(folder / FILE))
    described = any((folder / name).is_file() for name in _DESCRIBED)
    pairs = [(folder / f"{p}vocab.json", folder / f"{p}merges.txt") for p in ("", "gpt2-")]
    pair = next(((v, m) for v, m in pairs if v.is_file() and m.is_file()), None)
    if pair and not described:
        return _gpt2(*pair)
    if not described and not any(folder.glob("*.model")):
        raise ConfigurationError(
            f"{KEY}: {folder} holds no tokenizer.",
            hint="It needs tokenizer.json, or vocab.json with merges.txt, or tokenizer.model with its"
            " tokenizer_config.json.",
            every_rank=True,
        )
    require("transformers")
    from transformers import AutoTokenizer

    options = {"local_files_only": True, "use_fast": True, "trust_remote_code": False}
    return AutoTokenizer.from_pretrained(str(folder), **options).backend_tokenizer


def _gpt2(vocab: Path, merges: Path) -> Any:
    """GPT-2's byte-level BPE from its two published files."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.BPE.from_file(str(vocab), str(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if backend.token_to_id(END_OF_TEXT) is not None:
        backend.add_special_tokens([END_OF_TEXT])
    return backend


def _end(folder: Path, backend: Any) -> int:
    """The id that ends a document, as the folder's files say it, else by the usual spellings."""
    for name in _DESCRIBED:
        try:
            told = json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        token = told.get("eos_token") if isinstance(told, dict) else None
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and (found := backend.token_to_id(token)) is not None:
            return int(found)
        number = told.get("eos_token_id") if isinstance(told, dict) else None
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int):
            return number
    for token in _ENDS:
        if (found := backend.token_to_id(token)) is not None:
            return int(found)
    raise ConfigurationError(
        f"{KEY}: {folder} does not say which token ends a document.",
        hint="Add a tokenizer_config.json with eos_token to it.",
        every_rank=True,
    )


def _canonical(content: Any) -> Any:
    """A tokenizer's JSON without what differs between versions of the library: nulls, and how merges are written."""
    if isinstance(content, dict):
        kept = {key: _canonical(value) for key, value in content.items() if value is not None and key != "version"}
        if isinstance(kept.get("merges"), list):
            kept["merges"] = [pair.split(" ") if isinstance(pair, str) else pair for pair in kept["merges"]]
        return kept
    return [_canonical(value) for value in content] if isinstance(content, list) else content
