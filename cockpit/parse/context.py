"""What a parser remembers from line to line, and what a format is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from cockpit.core.events import Event

# What launchers put before a line: srun -l, torchrun (two styles), Primus, ray, mpirun, docker compose.
PREFIX = re.compile(
    r"\s*(?:"
    r"\[?(?:default|rank-?)\d+(?:/\d+)?\]:?"
    r"|\d+:(?!\d)"
    r"|\([\w.:/ -]+, ?(?:pid|ip)=[^)]*\)"
    r"|\[\d+,\d+\]<std(?:out|err)>:"
    r"|[\w.-]+-\d+ +\|"
    r")[ \t]?"
)

_MOST_TEXTS = 100


def split_prefix(line: str) -> tuple[str, str]:
    """The launcher's prefix ("" where there is none) and the rest of the line, its own indentation kept."""
    found = PREFIX.match(line)
    return (line[: found.end()].strip(), line[found.end() :]) if found else ("", line)


@dataclass(slots=True)
class Context:
    """The memory of one StreamParser. Formats share it and do not know each other.

    `offset` is the start of the line at hand. `seq_length`, `global_batch` (sequences) and `arguments` are what the
    log said of the run so far. `watching` names the formats that asked for every line, and for how many more.
    """

    offset: int = 0
    wire: bool = False  # the runner speaks on the wire
    wire_iterations: bool = False  # from then on, other formats' iterations say the same again
    last_step: int | None = None  # of the last iteration given
    last_source: str = ""  # the launcher's prefix of that one
    consumed: tuple[int, int] | None = None  # (step, consumed samples) of the last line that told
    seq_length: int | None = None
    global_batch: int | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    watching: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # what a format keeps for itself, under its name
    _said: dict[str, set[str]] = field(default_factory=dict)

    def once(self, code: str, text: str = "") -> bool:
        """Whether `text` is said of `code` for the first time; after a hundred different texts nothing is new."""
        said = self._said.setdefault(code, set())
        if text in said or len(said) >= _MOST_TEXTS:
            return False
        said.add(text)
        return True

    def repeats(self, step: int, source: str) -> bool:
        """Whether the iteration `step`, told by the rank `source`, was given already; else it is noted as given.

        Several ranks may tell the same iterations. A step that goes back is a restart from a checkpoint where the
        same rank tells it, and a straggler where another does.
        """
        last = self.last_step
        if last is not None and (step == last or (step < last and source != self.last_source)):
            return True
        self.last_step, self.last_source = step, source
        return False


class Format(Protocol):
    """A module of cockpit/parse/formats: add it to stream.FORMATS, and it is parsed.

    A line is given to `match` if it holds one of `NEEDLES`, or while the format stands in `ctx.watching` under its
    NAME. The first format, in their order, that gives events for a line has the line. Needles should be rare in other
    lines: they are what keeps those cheap.
    """

    NAME: str
    NEEDLES: tuple[bytes, ...]

    def match(self, line: str, ctx: Context) -> list[Event]:
        """Events of one line (without its newline and ANSI codes), each with `offset=ctx.offset`."""
