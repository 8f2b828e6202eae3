"""Telemetry on disk: schema ekvi.gpu/1, one file a run, sampled by one thread for all of them.

Ticks stand at absolute times t0 + k / hz, so that a slow sample shifts nothing; what is too late is left out and
counted in a gap line. `seq` counts ticks of one file, from 0, also over a restart of the agent: the ticks that nobody
took stand in a gap line too. A file that reaches its bound gets one gap line without an end and no more.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, Optional

from . import TELEMETRY_SCHEMA
from .base import boot_id, free_by
from .files import LineFile
from .hostread import CpuSource
from .spool import MARGIN_BY

BOUND_BY = 64 << 20


class TickFile:
    """One telemetry.jsonl. `hello` is what the agent says of itself and the machine, without its time.

    A line that the disk refuses is written first when there is room; the ticks meanwhile become a gap.
    """

    def __init__(self, path: str, hello: Dict[str, Any], hz: float, bound_by: int = BOUND_BY) -> None:
        self.path = path
        self.hz = hz
        self.bound_by = bound_by
        self._lines = LineFile(path)
        self._lines.flush()
        self._seq = 0  # of the next tick
        self._missed_from: Optional[int] = None
        self._why = ""
        self._full = False
        self._begun = False
        self._begin(hello)

    def tick(self, t_mono_ns: int, t_wall_ns: int, skipped: int, host: Dict[str, Any]) -> None:
        """Keep one sample; `skipped` ticks before it came too late to be taken."""
        if skipped and self._begun:
            self._miss(skipped, "late")
        self._begun = True
        if self._full:
            return
        if self._no_room():
            self._miss(1, "no space left on the disk")
            return
        self._tell_missed()
        line = {"type": "tick", "seq": self._seq, "t_mono_ns": t_mono_ns, "t_wall_ns": t_wall_ns}
        self._seq += 1
        self._lines.append({**line, "devices": [], "host": host})
        if self._lines.size >= self.bound_by:
            self._full = True
            why = "the file reached its bound of %d bytes" % self.bound_by
            self._lines.append({"type": "gap", "from_seq": self._seq, "to_seq": None, "reason": why})

    def close(self) -> None:
        """Say what is missing at the end, and close."""
        if not self._full:
            self._tell_missed()
        self._lines.close()

    def _begin(self, hello: Dict[str, Any]) -> None:
        """Continue the numbers of the agent before, and say hello."""
        last = self._lines.last()
        if last is not None and last.get("type") == "gap" and last.get("to_seq") is None:
            self._full = True
            return
        if last is not None:
            past = [line for line in self._lines.recent() if isinstance(_last_seq(line), int)]
            if past:
                self._seq = _last_seq(past[-1]) + 1
            ticks = [line for line in past if line["type"] == "tick" and isinstance(line.get("t_wall_ns"), int)]
            if ticks:
                due = ticks[-1]["seq"] + self._ticks_since(ticks[-1])
                self._miss(due - self._seq, "the agent was away")
        self._lines.append({**hello, "t_wall_ns": time.time_ns()})
        self._tell_missed()

    def _ticks_since(self, tick: Dict[str, Any]) -> int:
        """Ticks that fell due since `tick`; by the wall clock, which a new boot of the machine does not reset."""
        return int((time.time_ns() - tick["t_wall_ns"]) / 1e9 * self.hz)

    def _miss(self, count: int, why: str) -> None:
        if count > 0:
            if self._missed_from is None:
                self._missed_from, self._why = self._seq, why
            self._seq += count

    def _tell_missed(self) -> None:
        if self._missed_from is not None:
            gap = {"type": "gap", "from_seq": self._missed_from, "to_seq": self._seq - 1, "reason": self._why}
            self._missed_from = None
            self._lines.append(gap)

    def _no_room(self) -> bool:
        """Whether a line still waits, or what is left belongs to the states."""
        try:
            return not self._lines.flush() or free_by(self.path) <= MARGIN_BY
        except OSError:
            return True


def _last_seq(line: Dict[str, Any]) -> Any:
    """The number of a tick, or of the last tick that a gap stands for; None for another line."""
    return line.get({"tick": "seq", "gap": "to_seq"}.get(str(line.get("type")), ""))


class Sampler:
    """Samples `source` at `hz` into the files that are active, while any is."""

    def __init__(self, source: CpuSource, hz: float, agent_id: str, bound_by: int = BOUND_BY) -> None:
        self.source = source
        self.hz = hz
        self.bound_by = bound_by
        self.hello: Dict[str, Any] = {
            "type": "hello",
            "schema": TELEMETRY_SCHEMA,
            "agent_id": agent_id,
            "boot_id": boot_id(),
            "backend": source.backend,
            "vendor": source.vendor,
            "devices": [],
            "hz": hz,
            "host": source.describe(),
            "unavailable": dict(source.unavailable),
        }
        self._files: Dict[str, TickFile] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Begin sampling in a thread: a slow driver holds up no timeout."""
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self._thread.start()

    def activate(self, paths: List[str]) -> None:
        """Sample into these files, and close the others."""
        with self._changed:
            if set(paths) == set(self._files):
                return
            for path in set(self._files) - set(paths):
                self._files.pop(path).close()
            for path in set(paths) - set(self._files):
                self._files[path] = TickFile(path, self.hello, self.hz, self.bound_by)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread and close the files."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5)
        self.activate([])

    def _work(self) -> None:
        deadline = 0.0
        while True:
            with self._changed:
                if not self._files and not self._ended:
                    self._changed.wait()
                    self.source.begin()
                    deadline = time.monotonic()
                    continue
                now = time.monotonic()
                if now < deadline and not self._ended:
                    self._changed.wait(deadline - now)
                    continue
                if self._ended:
                    return
            skipped = int((now - deadline) * self.hz)
            deadline += (skipped + 1) / self.hz
            mono, wall, host = time.monotonic_ns(), time.time_ns(), self.source.sample()
            with self._changed:
                for tick_file in self._files.values():
                    tick_file.tick(mono, wall, skipped, host)


def sample(path: str, hz: float, seconds: Optional[float], source: CpuSource, stop: threading.Event) -> None:
    """Sample into one file until `stop` is set or `seconds` are over."""
    sampler = Sampler(source, hz, os.urandom(6).hex())
    sampler.activate([path])
    sampler.start()
    stop.wait(seconds)
    sampler.stop()
