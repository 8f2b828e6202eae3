"""Where tokens come from."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, NonNegative, Positive, Real, Strict, Whole, refuse

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
Source = Literal["pydoc", "synthetic", "files", "jsonl", "csv", "hub", "url", "indexed", "mock"]
_PATHS = ("files", "jsonl", "csv", "indexed")  # the sources that are local files
_LOGIN = re.compile(r"\w+://[^/?#]*@")
# What says only how the tokens are made, or how training takes them.
_NOT_ASKED = frozenset({"name", "train_split", "shards", "offline", "workers"})


class Fields(Strict):
    """The columns that hold a source's texts, where they have other names than the usual ones."""

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: str | None = None


class Data(Strict):
    """Where tokens come from.

    `source` pydoc is the documentation that every Python carries, synthetic a seeded random walk, files the local
    text files in `paths`, jsonl and csv local files of records, hub a data set of the Hugging Face hub or a local
    folder in its layout (`repo`, `subset`, `split`, `revision`; `files` bounds what is downloaded), url files of
    `urls` (`sums` their SHA-256), indexed Megatron's .bin and .idx by their common prefix, mock no data at all.
    `fields` and `on_error` say how records are read; `samples` bounds the documents; None reads all. `train_split` is
    the share of documents for training, 0..1, the rest is for validation.
    `tokenizer` null trains one of at most `tokenizer_vocab` entries on the documents, else it is the repo id or the
    local folder of a published one. `offline` looks for nothing on the network. `format` is what training reads:
    Megatron's indexed tokens, or Energon's shards of text. `workers` are processes that tokenize; None takes what the
    machine has.
    """

    name: str = "pydoc"
    source: Source = "pydoc"
    paths: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    sums: tuple[Sha256, ...] = ()
    repo: str | None = None
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    files: tuple[str, ...] = ()
    fields: Fields = Fields()
    on_error: Literal["refuse", "skip"] = "refuse"
    samples: Positive | None = None
    train_split: Annotated[Real, Field(gt=0, le=1)] = 1.0
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    offline: Flag = False
    tokenizer_vocab: Annotated[Whole, Field(ge=257)] = 1024
    format: Literal["indexed", "energon"] = "indexed"
    shards: Annotated[Whole, Field(ge=10)] | None = None
    workers: Positive | None = None
    seed: NonNegative = 1234

    @property
    def request(self) -> str:
        """16 hex digits over what decides the prepared data; `<request>.entry` in the cache names the entry made."""
        return hashlib.sha256(json.dumps(self.asked, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def asked(self) -> dict[str, object]:
        """What decides the prepared data, as JSON takes it: Energon's shards are split when they are written."""
        more = {"train_split", "shards"} if self.format == "energon" else set()
        return self.model_dump(mode="json", exclude=set(_NOT_ASKED - more))

    @model_validator(mode="after")
    def _paths(self) -> Self:
        if (self.source in _PATHS) != bool(self.paths):
            told = ", ".join(_PATHS[:-1])
            raise refuse(
                f"data.paths are for data.source={told} and {_PATHS[-1]}, which need them", "paths", "source"
            )
        if (self.source == "url") != bool(self.urls):
            raise refuse("data.urls are for data.source=url, and data.source=url needs them", "urls", "source")
        if (self.source == "hub") != (self.repo is not None):
            raise refuse("data.repo is for data.source=hub, and data.source=hub needs it", "repo", "source")
        if any(_LOGIN.match(url) for url in self.urls):
            raise refuse("data.urls hold a login, which would be recorded with every run", "urls")
        if self.sums and len(self.sums) != len(self.urls):
            raise refuse(f"data.sums are {len(self.sums)}, but data.urls are {len(self.urls)}", "sums", "urls")
        if self.source == "indexed" and len(self.paths) > 1:
            raise refuse("data.source=indexed takes one prefix in data.paths", "paths", "source")
        if self.source in ("indexed", "mock") and self.format == "energon":
            raise refuse(f"data.source={self.source} has no text for data.format=energon", "format", "source")
        return self
