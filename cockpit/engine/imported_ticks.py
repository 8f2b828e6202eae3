"""A file of `ekvi.gpu/1` that was kept beside a log, by `agent.pyz sample` or another run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import StoreError, UsageError
from cockpit.parse.ticklines import line_bytes

if TYPE_CHECKING:
    from cockpit.store.rundir import RunDir

_SCHEMA = "ekvi.gpu/1"
_LINE_BY = 4 << 20
_BATCH_BY = 1 << 20
_MOST_NS = 1 << 62
MARGIN_S = 30.0  # of what was sampled around a run: readings to measure between


@dataclass(slots=True)
class TickFacts:
    """What such a file holds. `span`: its samples' first and last time (s, wall clock), None without a sample."""

    path: Path
    vendor: str | None = None
    hostname: str | None = None
    span: tuple[float, float] | None = None
    bad: int = 0  # lines that could not be read


def look(path: Path) -> TickFacts:
    """Read a file once. Raises UsageError where it is none of these, StoreError where it cannot be read."""
    facts, greeted = TickFacts(path), False
    for line in _lines(path, facts):
        kind, t = line.get("type"), _wall_s(line)
        if kind == "hello" and line.get("schema") == _SCHEMA:
            greeted = True
            _greet(facts, line)
        elif kind == "tick" and t is not None:
            first, last = facts.span or (t, t)
            facts.span = min(first, t), max(last, t)
        if not greeted and facts.bad > 10:
            break
    if not greeted:
        raise UsageError(
            f"{path} is no telemetry of schema {_SCHEMA}.",
            hint="`python3 agent.pyz sample --out FILE` writes it, and so does every run, as telemetry.jsonl.",
        )
    return facts


def copy(facts: TickFacts, into: RunDir, window: tuple[float, float]) -> int:
    """Write the lines from MARGIN_S before `window` to as much after it; how many samples that were.

    Lists of processes are left out: nobody can say which of them were this run's. Raises DiskFull, StoreError.
    """
    low, high = window[0] - MARGIN_S, window[1] + MARGIN_S
    batch, taken = bytearray(), 0
    for line in _lines(facts.path, TickFacts(facts.path)):
        t = _wall_s(line)
        if line.get("type") != "hello" and (t is None or not low <= t <= high):
            continue
        taken += line.get("type") == "tick"
        batch += line_bytes(_without_processes(line))
        if len(batch) >= _BATCH_BY:
            into.append_telemetry(bytes(batch))
            batch.clear()
    if batch:
        into.append_telemetry(bytes(batch))
    return taken


def _greet(facts: TickFacts, hello: Mapping[str, Any]) -> None:
    host = hello.get("host")
    name = host.get("hostname") if isinstance(host, Mapping) else None
    facts.hostname = name if isinstance(name, str) and name else facts.hostname
    facts.vendor = hello["vendor"] if hello.get("vendor") in ("nvidia", "amd", "cpu") else facts.vendor


def _lines(path: Path, facts: TickFacts) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            while raw := file.readline(_LINE_BY):
                try:
                    line = json.loads(raw)
                except (ValueError, RecursionError):
                    line = None
                if isinstance(line, dict):
                    yield line
                else:
                    facts.bad += 1
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


def _wall_s(line: Mapping[str, Any]) -> float | None:
    t = line.get("t_wall_ns")
    return t / 1e9 if type(t) is int and 0 <= t < _MOST_NS else None


def _without_processes(line: dict[str, Any]) -> dict[str, Any]:
    devices = line.get("devices")
    if line.get("type") != "tick" or not isinstance(devices, list):
        return line
    bare = [{k: v for k, v in d.items() if k != "procs"} if isinstance(d, dict) else d for d in devices]
    return {**line, "devices": bare}
