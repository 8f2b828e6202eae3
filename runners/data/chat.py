"""Records to text: messages by the tokenizer's own chat template, else in a plain layout.

Without a template each message is `role: content` and a newline, and a prompt is followed by its completion as they
stand: a space between them is the data's to hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from runners.data.corpus import Document
from runners.data.records import Record, RecordError
from runners.errors import require

Layout = Callable[[Record], Document]


def plain(record: Record) -> Document:
    """The record in the plain layout."""
    if record.messages is not None:
        text = "".join(f"{message['role']}: {message['content']}\n" for message in record.messages)
    elif record.completion is not None:
        text = f"{record.prompt}{record.completion}"
    else:
        text = record.text or ""
    return Document(record.where, text)


def has_template(folder: Path) -> bool:
    """Whether the tokenizer in `folder` has a chat template."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_bytes()).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def templated(folder: Path) -> Layout:
    """The layout of the tokenizer in `folder`, which has a template; its marks become the tokens they stand for.

    The layout raises RecordError for messages that the template refuses, roles in another order for instance.
    """

    @cache
    def loaded() -> Any:  # only messages need it, and it takes seconds
        require("transformers")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)

    def layout(record: Record) -> Document:
        if record.messages is None:
            return plain(record)
        tokenizer = loaded()
        try:
            text = tokenizer.apply_chat_template(list(record.messages), tokenize=False)
        except Exception as error:  # a template raises what it likes
            told = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise RecordError(f"the tokenizer's chat template refuses the messages: {told}.") from error
        return Document(record.where, str(text), marked=True)

    return layout
