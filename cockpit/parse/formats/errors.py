"""What went wrong, in any program: the last line of a Python traceback, a GPU out of memory, NCCL's and RCCL's words.

Ranks fail together, so that the same words with other numbers are given once.
"""

from __future__ import annotations

import re

from cockpit.core.events import Diagnostic, Event
from cockpit.parse.context import Context, split_prefix

NAME = "errors"
NEEDLES = (b"rror", b"Traceback (", b"Watchdog caught", b"NCCL WARN")

_MEMORY = re.compile(r"(?:CUDA|HIP|GPU)[^|]{0,40}out of memory|hipErrorOutOfMemory|cudaErrorMemoryAllocation", re.I)
_NCCL = re.compile(
    r"NCCL WARN|NCCL error|Watchdog caught collective operation timeout"
    r"|\bnccl(?:System|Internal|Remote|Invalid\w*|UnhandledCuda)Error\b"
)
_EXCEPTION = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*[a-z]\w*")
_LONGEST_NAME = 200
_QUIET = {"KeyboardInterrupt", "SystemExit", "GeneratorExit"}  # how a program is stopped
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?", re.I)
_MOST_LINES = 2000  # of a traceback, with other ranks' lines in between
_MOST_SOURCES = 4096
_MOST_TEXT = 500


def match(line: str, ctx: Context) -> list[Event]:
    """At most one diagnostic of level error (warning for NCCL WARN): out_of_memory, nccl or error."""
    source, rest = split_prefix(line)
    open_: set[str] = ctx.state.setdefault(NAME, set())
    if "Traceback (most recent call last)" in rest:
        if len(open_) < _MOST_SOURCES:
            open_.add(source)
            ctx.watching[NAME] = _MOST_LINES
        return []
    last = _exception(rest) if source in open_ else ""
    if last:
        open_.discard(source)
    if not open_ or NAME not in ctx.watching:
        open_.clear()
        ctx.watching.pop(NAME, None)
    if _MEMORY.search(rest):
        return _told("out_of_memory", "error", rest, ctx)
    if _NCCL.search(rest):
        return _told("nccl", "warning" if "NCCL WARN" in rest else "error", rest, ctx)
    if last and last not in _QUIET:
        return _told("error", "error", rest, ctx)
    return []


def _exception(text: str) -> str:
    """The exception's name, where `text` is the last line of a traceback: `package.SomeError: why`."""
    head = text[:_LONGEST_NAME].partition(":")[0].rstrip()
    return head if _EXCEPTION.fullmatch(head) else ""


def _told(code: str, level: str, text: str, ctx: Context) -> list[Event]:
    text = text.strip()[:_MOST_TEXT]
    if not ctx.once(code, _NUMBERS.sub("#", text)):
        return []
    return [Diagnostic(level=level, code=code, message=text, offset=ctx.offset)]
