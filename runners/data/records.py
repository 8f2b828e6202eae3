"""Records of text: JSONL read with line numbers, each line checked. Also for rows of CSV files and of data sets.

A record is one of `{"messages": [{"role", "content"}, ...]}`, `{"prompt", "completion"}` and `{"text"}`; where an
object has several, the first of these counts. Also understood: `conversations` for messages, `from` and `value` for
role and content, `input` for prompt, `output` for completion; other names by `Fields`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runners.data.files import opened, unreadable
from runners.errors import ConfigurationError
from runners.schema.data import Fields

__all__ = ["Fields", "Message", "OnError", "Record", "RecordError", "Skips", "read", "record", "wrong"]

OnError = Literal["refuse", "skip"]
Message = dict[str, str]  # {"role", "content"}, as chat templates take it

_MESSAGES = ("messages", "conversations")
_PROMPT = ("prompt", "input")
_COMPLETION = ("completion", "output")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}


class RecordError(ValueError):
    """What is wrong with a record, as the end of a sentence that begins with where it stands."""


@dataclass(frozen=True)
class Record:
    """One record: exactly one of `messages`, `prompt` with `completion`, and `text` is there.

    `path` and `line` (from 1) say where it stands; a row of a data set counts as a line.
    """

    path: str
    line: int
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    completion: str | None = None
    text: str | None = None

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.path}:{self.line}"


@dataclass
class Skips:
    """How many records were left out, and what was wrong with the first."""

    count: int = 0
    first: str | None = None

    def add(self, message: str) -> None:
        """Count one."""
        self.count += 1
        self.first = self.first or message


def read(
    paths: Sequence[str], on_error: OnError = "refuse", *, fields: Fields | None = None, skips: Skips | None = None
) -> Iterator[Record]:
    """The records of JSONL files (also .gz, .bz2, .xz, .zst), in order, one line in memory at a time.

    Empty lines are none. Raises ConfigurationError for a file that cannot be read, and for a line that is no record:
    `file:line: what`. With `on_error` skip such a line is left out and counted in `skips`.
    """
    for path in paths:
        with opened(path) as stream, unreadable(path):
            for number, raw in enumerate(stream, 1):
                if not raw.strip():
                    continue
                try:
                    found = _parsed(raw, first=number == 1)
                    yield record(found, path, number, fields)
                except RecordError as error:
                    wrong(f"{path}:{number}: {error}", on_error, skips)


def wrong(message: str, on_error: OnError, skips: Skips | None) -> None:
    """Refuse what is wrong with a record, or count it."""
    if on_error == "refuse":
        raise ConfigurationError(
            message, hint="Mend it, or set data.on_error=skip to leave out and count such records.", every_rank=True
        )
    if skips is not None:
        skips.add(message)


def record(found: Any, path: str, line: int, fields: Fields | None = None) -> Record:
    """`found` as a record. Raises RecordError where it is none, or holds no text."""
    if not isinstance(found, Mapping):
        raise RecordError(f"the record is {_kind(found)}, not an object.")
    named = fields or Fields()
    here = Record(path, line)
    name = _there(found, named.messages, _MESSAGES)
    if name is not None:
        return replace(here, messages=_messages(found[name], name))
    prompt, completion = _there(found, named.prompt, _PROMPT), _there(found, named.completion, _COMPLETION)
    if prompt is not None and completion is not None:
        asked, answer = _text(found[prompt], prompt, empty=True), _text(found[completion], completion)
        return replace(here, prompt=asked, completion=answer)
    name = _there(found, named.text, ("text",))
    if name is not None:
        return replace(here, text=_text(found[name], name))
    if prompt is not None or completion is not None:
        lone, wanted = (prompt, "completion") if prompt is not None else (completion, "prompt")
        raise RecordError(f"the record has {lone!r} but no {wanted}.")
    names = ", ".join(map(repr, list(found)[:8])) or "nothing"
    told = f"the record has neither messages, prompt and completion, nor text, but {names}"
    raise RecordError(f"{told} (data.fields says which to take).")


def _parsed(raw: bytes, *, first: bool) -> Any:
    """A line's JSON; RecordError says what is broken and where in the line."""
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RecordError(f"the line is no UTF-8 text (byte {error.start + 1}).") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        raise RecordError(f"the line is no JSON: {said} (column {error.pos + 1}).") from None
    except (ValueError, RecursionError):
        raise RecordError(
            "the line is no JSON that can be read: it nests too deep or holds too long a number."
        ) from None


def _there(found: Mapping[str, Any], named: str | None, usual: Sequence[str]) -> str | None:
    """The name under which `found` has a value; a null is none."""
    return next((name for name in ([named] if named else usual) if found.get(name) is not None), None)


def _text(value: Any, name: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{name} is {_kind(value)}, not text.")
    if not value.strip() and not empty:
        raise RecordError(f"{name} is empty.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RecordError(f"{name} holds half of a surrogate pair, which is no character.") from None
    return value


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RecordError(f"{name} is {_kind(value)}, not a list of messages.")
    if not value:
        raise RecordError(f"{name} is empty.")
    made = tuple(_message(one, f"{name}[{at}]") for at, one in enumerate(value))
    if not any(message["content"].strip() for message in made):
        raise RecordError(f"{name} holds no text.")
    return made


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, Mapping):
        raise RecordError(f"{name} is {_kind(value)}, not an object with role and content.")
    role, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
    if not isinstance(role, str) or not role:
        raise RecordError(f"{name} has no role.")
    if isinstance(content, Sequence) and not isinstance(content, str):  # parts, as of models that also take pictures
        content = "".join(_part(part, f"{name}.content[{at}]") for at, part in enumerate(content))
    return {"role": _ROLES.get(role, role), "content": _text(content, f"{name}.content", empty=True)}


def _part(value: Any, name: str) -> str:
    if isinstance(value, Mapping) and value.get("type", "text") == "text":
        return _text(value.get("text"), f"{name}.text", empty=True)
    raise RecordError(f"{name} is no text.")


def _kind(value: Any) -> str:
    """What a value is, in a user's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "an object" if isinstance(value, Mapping) else "a list"
