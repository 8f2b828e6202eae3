"""Who was on the GPUs while a run's telemetry was taken, and what the drivers reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 4096  # processes and events: a server must not fill the memory
_LONGEST = 200


@dataclass(slots=True)
class Seen:
    """A process on a GPU: when it was first and last listed there (s, wall clock) and the most memory it held (By).

    `run` is the EKVI_RUN of its environment, None where it has none or that may not be read.
    """

    pid: int
    name: str | None
    run: str | None
    first: float
    last: float
    mem: int | None
    gpus: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Sightings:
    """`asked` are the GPUs whose list of processes was known at least once; the list comes every ten seconds."""

    processes: dict[tuple[int, str | None], Seen] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    first_asked: float | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def procs(self, t: float, index: int, listed: Any) -> None:
        """One list of processes of one GPU; None is a list that nobody could read."""
        if not isinstance(listed, list):
            return
        self.asked.add(index)
        self.first_asked = t if self.first_asked is None else self.first_asked
        for one in listed:
            pid = one.get("pid") if isinstance(one, Mapping) else None
            if not isinstance(pid, int):
                continue
            run = _text(one.get("run"))
            seen = self.processes.get((pid, run))
            if seen is None:
                if len(self.processes) >= _MOST:
                    return
                seen = self.processes[pid, run] = Seen(pid, _text(one.get("name")), run, t, t, None)
            seen.last = t
            seen.gpus.add(index)
            mem = one.get("mem")
            if isinstance(mem, int) and not isinstance(mem, bool):
                seen.mem = max(mem, seen.mem or 0)

    def error(self, line: Mapping[str, Any]) -> None:
        """An `err` line: only what the driver reports of the hardware is kept."""
        if line.get("code") != "event" or len(self.events) >= _MOST:
            return
        wall = line.get("t_wall_ns")
        event = {key: line.get(key) for key in ("index", "event", "value")}
        t = wall / 1e9 if isinstance(wall, int) and abs(wall) < 1 << 62 else None
        self.events.append({"t": t, **event, "text": _text(line.get("text"))})

    def strangers(self, run: str | None, window: tuple[float, float]) -> list[tuple[Seen, float, bool]]:
        """(process, seconds, certain) of those on the GPUs in `window` that are not the run's own.

        A process whose environment could not be read may be the run's own, unless it was there before the window,
        or the run's own could be told by theirs. `seconds` are from first to last sight, to ten seconds.
        """
        own = run is not None and any(s.run == run for s in self.processes.values())
        found = []
        for seen in self.processes.values():
            first, last = max(seen.first, window[0]), min(seen.last, window[1])
            if first > last or (run is not None and seen.run == run):
                continue
            found.append((seen, last - first, seen.run is not None or own or seen.first < window[0]))
        return sorted(found, key=lambda one: (-one[1], one[0].pid))


def _text(value: Any) -> str | None:
    return value[:_LONGEST] if isinstance(value, str) else None
