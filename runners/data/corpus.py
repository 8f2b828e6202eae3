"""Documents from what every Python carries, from a seeded walk, or from the user's own files.

Always in the same order and unchanged: the same configuration on the same Python gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from runners.errors import ConfigurationError
from runners.schema import Data

SYNTHETIC_DOCUMENTS = 512  # where `samples` does not say
_WORDS = 400
_LENGTHS = (40, 240)  # words a synthetic document, lowest and highest


@dataclass(frozen=True)
class Document:
    """A text with the name it has in its source."""

    name: str
    text: str


def documents(data: Data) -> list[Document]:
    """The first `samples` documents of the source, all where it is None, at least one.

    Raises ConfigurationError where a file cannot be read as UTF-8 text or there is no text at all.
    """
    if data.source == "pydoc":
        found = _pydoc()
    elif data.source == "synthetic":
        found = synthetic(data.samples or SYNTHETIC_DOCUMENTS, data.seed)
    else:
        found = [_file(path) for path in data.paths]
    found = [document for document in found[: data.samples] if document.text]
    if not found:
        raise ConfigurationError(f"data.source={data.source} holds no text.", every_rank=True)
    return found


def digest(found: Sequence[Document]) -> str:
    """SHA-256 (hex) over names and texts in order."""
    total = hashlib.sha256()
    for document in found:
        total.update(json.dumps([document.name, document.text]).encode())
        total.update(b"\n")
    return total.hexdigest()


def synthetic(count: int, seed: int) -> list[Document]:
    """`count` documents of made-up words: each word is a small random step from the one before, so there is
    something to learn. The same for the same seed on every Python.
    """
    draw = random.Random(seed)  # noqa: S311 - a text generator, not a secret
    found = []
    for index in range(count):
        at = draw.randrange(_WORDS)
        words = []
        for _ in range(draw.randint(*_LENGTHS)):
            at = (at + draw.randint(-3, 3)) % _WORDS
            words.append(_word(at))
        found.append(Document(f"synthetic-{index:06d}", " ".join(words) + "\n"))
    return found


def _word(index: int) -> str:
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    first, rest = divmod(index, len(vowels) * 6)
    second, third = divmod(rest, 6)
    return consonants[first % len(consonants)] + vowels[second] + consonants[(first + third) % len(consonants)]


def _pydoc() -> list[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigurationError(
            "this Python came without pydoc_data.topics.",
            hint="Set data.source=synthetic, or data.source=files with data.paths.",
            every_rank=True,
        ) from error
    return [Document(name, topics[name]) for name in sorted(topics)]


def _file(path: str) -> Document:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as stream:
            return Document(os.path.basename(path), stream.read())
    except OSError as error:
        raise ConfigurationError(f"data.paths: {path} cannot be read: {error.strerror}.", every_rank=True) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"data.paths: {path} is no UTF-8 text (byte {error.start}).", every_rank=True
        ) from error
