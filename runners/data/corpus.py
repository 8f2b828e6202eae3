"""Documents from what every Python carries, from a seeded walk, or from the user's own text files.

Always in the same order and unchanged: the same configuration on the same Python gives the same bytes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from runners.data.files import COMPRESSED, opened, unreadable
from runners.errors import ConfigurationError

SYNTHETIC_DOCUMENTS = 512  # where `samples` does not say
_WORDS = 400
_LENGTHS = (40, 240)  # words a synthetic document, lowest and highest


@dataclass(frozen=True)
class Document:
    """A text with the name it has in its source. `marked` says that a template wrote a tokenizer's marks into it."""

    name: str
    text: str
    marked: bool = False


def synthetic(count: int, seed: int) -> Iterator[Document]:
    """`count` documents of made-up words: each word is a small random step from the one before, so there is
    something to learn. The same for the same seed on every Python.
    """
    draw = random.Random(seed)  # noqa: S311 - a text generator, not a secret
    for index in range(count):
        at = draw.randrange(_WORDS)
        words = []
        for _ in range(draw.randint(*_LENGTHS)):
            at = (at + draw.randint(-3, 3)) % _WORDS
            words.append(_word(at))
        yield Document(f"synthetic-{index:06d}", " ".join(words) + "\n")


def _word(index: int) -> str:
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    first, rest = divmod(index, len(vowels) * 6)
    second, third = divmod(rest, 6)
    return consonants[first % len(consonants)] + vowels[second] + consonants[(first + third) % len(consonants)]


def pydoc() -> Iterator[Document]:
    """The topics of this Python's documentation, sorted."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigurationError(
            "this Python came without pydoc_data.topics.",
            hint="Set data.source=synthetic, or data.source=files with data.paths.",
            every_rank=True,
        ) from error
    for name in sorted(topics):
        yield Document(name, topics[name])


def file(path: str) -> Document:
    """A whole text file, maybe compressed, as one document."""
    name = os.path.basename(path)
    with opened(path) as stream, unreadable(path):
        raw = stream.read()
    try:
        return Document(next((name.removesuffix(e) for e in COMPRESSED if name.endswith(e)), name), raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no UTF-8 text (byte {error.start}).", every_rank=True) from error
