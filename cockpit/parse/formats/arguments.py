"""Megatron's dump of its arguments: one diagnostic `arguments`, and what a step's tokens are reckoned from.

------------------------ arguments ------------------------
  global_batch_size ............................... 1024
-------------------- end of arguments ---------------------
"""

from __future__ import annotations

import re

from cockpit.core.events import Diagnostic, Event
from cockpit.parse.context import Context, split_prefix
from cockpit.parse.values import count, number

NAME = "arguments"
NEEDLES = (b" arguments --",)

_ENTRY = re.compile(r"  ([A-Za-z_][\w-]*) \.* ?(.*)")  # a name of 48 letters and more leaves no room for dots
_HEAD = re.compile(r"-+ arguments -+\s*")
_TAIL = re.compile(r"-+ end of arguments -+\s*")
_SECRET = re.compile(r"(?:^|_)(?:api_?key|secret|password|passwd|(?:hf|hub|access|auth)_token)(?:_|$)")
_MOST_LINES = 4000  # a dump has some hundreds; one that never ends is given up
_MOST_TEXT = 500
Value = str | int | float | bool | None


def match(line: str, ctx: Context) -> list[Event]:
    """Nothing until the dump's last line, which gives its diagnostic. Lines of other ranks in between are let by."""
    source, rest = split_prefix(line)
    if _HEAD.fullmatch(rest):
        ctx.watching[NAME] = _MOST_LINES
        ctx.state[NAME] = (source, {})
        return []
    if NAME not in ctx.watching or ctx.state[NAME][0] != source:
        return []
    found: dict[str, Value] = ctx.state[NAME][1]
    if _TAIL.fullmatch(rest):
        del ctx.watching[NAME], ctx.state[NAME]
        return _told(found, ctx)
    entry = _ENTRY.fullmatch(rest)
    if entry is not None:
        found[entry[1]] = "***" if _SECRET.search(entry[1].lower()) else _value(entry[2].strip())
    return []


def _told(found: dict[str, Value], ctx: Context) -> list[Event]:
    ctx.arguments = found
    ctx.seq_length = _positive(found.get("seq_length")) or ctx.seq_length
    ctx.global_batch = _positive(found.get("global_batch_size")) or ctx.global_batch
    return [
        Diagnostic(
            level="info", code="arguments", message=f"{len(found)} arguments.", data=dict(found), offset=ctx.offset
        )
    ]


def _positive(value: Value) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 48 else None


_WORDS: dict[str, Value] = {"None": None, "True": True, "False": False}
_INTEGER = re.compile(r"[+-]?\d{1,18}")


def _value(text: str) -> Value:
    """A value as Python prints it; what is no plain number or word stays text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return count(text)
    try:
        float(text)
    except ValueError:
        return text[:_MOST_TEXT]
    found = number(text)
    return text if found is None else found  # "inf" stays a text
