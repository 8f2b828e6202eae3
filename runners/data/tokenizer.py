"""A byte-level BPE tokenizer, trained on the corpus itself; the same text gives the same tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runners.data.corpus import Document

END_OF_TEXT = "<|endoftext|>"
_BATCH = 64  # documents handed to the encoder at once: bounds its memory


def train(documents: Sequence[Document], vocab: int) -> Any:
    """A `tokenizers.Tokenizer` with at most `vocab` entries: the end-of-text mark as 0, the 256 bytes, merges.

    A small corpus may not fill `vocab`; `get_vocab_size()` says how many there are.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer=trainer)
    return tokenizer


def encode(tokenizer: Any, documents: Sequence[Document]) -> Iterator[list[int]]:
    """Token ids of each document, in order, each ended by the end-of-text mark.

    The mark's spelling inside a text is encoded as the text it is, so that no document can end another.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokenizer.encode_special_tokens = True
    for start in range(0, len(documents), _BATCH):
        texts = [document.text for document in documents[start : start + _BATCH]]
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            yield [*encoding.ids, end]
