"""`--output json`: each event as a line of JSON on stdout, the group at the end."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Mapping
from typing import Any

from cockpit.core.errors import UsageError
from cockpit.core.events import Event
from cockpit.core.text import json_line, printable
from cockpit.engine.observer import GroupInfo, Outcome

_EXTRA = ("log", "gpu")


def extras(words: str) -> frozenset[str]:
    """The event types that `--with log,gpu` adds; raises UsageError on another word."""
    wanted = [w for w in words.split(",") if w]
    for word in wanted:
        if word not in _EXTRA:
            raise UsageError(f"--with knows log and gpu, not {word!r}.")
    return frozenset(wanted)


class JsonLines:
    """An observer that prints events as they come; `log` and `gpu` lines only where they were asked for."""

    def __init__(self, with_: frozenset[str]) -> None:
        self._with = with_
        self._runs: list[str] = []
        self._group = ""

    def begin(self, info: GroupInfo) -> None:
        """Keep the ids for the last line."""
        self._group, self._runs = info.group, [r.run for r in info.runs]

    def event(self, run: str, event: Event) -> None:
        """Print one event."""
        self._print(event.to_json())

    def log(self, run: str, offset: int, data: bytes) -> None:
        """Print raw output as text, or as base64 where it is none."""
        if "log" not in self._with:
            return
        line: dict[str, Any] = {
            "seq": None,
            "t": None,
            "t_recv": time.time(),
            "run": run,
            "type": "log",
            "offset": offset,
        }
        try:
            line["text"] = data.decode()
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(data).decode()
        self._print(line)

    def tick(self, run: str, tick: Mapping[str, Any]) -> None:
        """Print one telemetry line under its own keys."""
        if "gpu" in self._with:
            wall = tick.get("t_wall_ns")
            head = {"seq": tick.get("seq"), "t": wall / 1e9 if isinstance(wall, int) else None, "t_recv": time.time()}
            self._print({**head, "run": run, "type": "gpu", "sample": dict(tick)})

    def note(self, level: str, text: str) -> None:
        """Narration goes to stderr, never between the data."""
        text = printable(text)
        sys.stderr.write(f"{level}: {text}\n" if level != "info" else f"{text}\n")

    def end(self, outcome: Outcome) -> None:
        """Print the group as the last line."""
        self._print({"type": "group", "id": self._group, "runs": self._runs, "state": outcome.state})

    @staticmethod
    def _print(obj: Mapping[str, Any]) -> None:
        sys.stdout.write(json_line(obj))
        sys.stdout.flush()
