"""Where tokens come from."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, NonNegative, Positive, Real, Strict, Whole, refuse


class Data(Strict):
    """Where tokens come from.

    `source` pydoc is the documentation that every Python carries, synthetic a seeded random walk, files the local
    text files in `paths`. `samples` bounds the documents read; None reads all. `train_split` is the share of
    documents for training, 0..1, the rest is for validation.
    `tokenizer` null trains one of at most `tokenizer_vocab` entries on the documents, else it is the repo id or the
    local folder of a published one. `offline` looks for nothing on the network.
    """

    name: str = "pydoc"
    source: Literal["pydoc", "synthetic", "files"] = "pydoc"
    paths: tuple[str, ...] = ()
    samples: Positive | None = None
    train_split: Annotated[Real, Field(gt=0, le=1)] = 1.0
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    offline: Flag = False
    tokenizer_vocab: Annotated[Whole, Field(ge=257)] = 1024
    seed: NonNegative = 1234

    @property
    def request(self) -> str:
        """16 hex digits over what decides the prepared data; `<request>.entry` in the cache names the entry made."""
        keys = {"source", "paths", "samples", "tokenizer", "tokenizer_revision", "tokenizer_vocab", "seed"}
        asked = self.model_dump(mode="json", include=keys)
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    @model_validator(mode="after")
    def _paths(self) -> Self:
        if (self.source == "files") != bool(self.paths):
            raise refuse("data.paths are for data.source=files, and data.source=files needs them", "paths", "source")
        return self
