"""The processes of a run: who they are, what they wait in, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple

PROC = "/proc"


class Process(NamedTuple):
    """One line of /proc/<pid>/stat: `state` is R, S, D, Z...; `started` counts clock ticks since boot."""

    pid: int
    name: str
    state: str
    pgid: int
    started: int


def inspect(pid: int, proc: str = PROC) -> Process | None:
    """The process, or None where it is gone."""
    try:
        with open("%s/%d/stat" % (proc, pid), "rb") as f:
            head, _, tail = f.read().rpartition(b")")
        rest = tail.split()
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return Process(pid, name, rest[0].decode(), int(rest[2]), int(rest[19]))
    except (OSError, IndexError, ValueError):
        return None


def of_run(pgid: int | None, since_ticks: int | None, out_dir: str, proc: str = PROC) -> list[Process]:
    """Living processes of the group `pgid`, and those that carry the run's EKVI_OUT in their environment.

    The second kind are workers that made a session of their own (torchrun's do). A process older than the group's
    first is another's whose number was reused. Empty where the system has no /proc.
    """
    mark = b"\0EKVI_OUT=" + os.fsencode(out_dir) + b"\0"
    found = []
    for pid in _pids(proc):
        p = _living(pid, proc)
        if p is None or pid == os.getpid() or (since_ticks is not None and p.started < since_ticks):
            continue
        if p.pgid == pgid or mark in b"\0" + _read(pid, "environ", proc):
            found.append(p)
    return found


def of_container(container: str, proc: str = PROC) -> list[Process]:
    """What lives in a container, by its id in the processes' control groups; empty where the system has none."""
    mark = container.encode()
    there = (_living(pid, proc) for pid in _pids(proc) if mark in _read(pid, "cgroup", proc))
    return [p for p in there if p is not None]


def _pids(proc: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def _living(pid: int, proc: str) -> Process | None:
    p = inspect(pid, proc)
    return None if p is None or p.state in "ZX" else p


def _read(pid: int, name: str, proc: str) -> bytes:
    """One of a process's files; empty where it is gone or not ours to read."""
    try:
        with open("%s/%d/%s" % (proc, pid, name), "rb") as f:
            return f.read()
    except OSError:
        return b""


def where(p: Process, proc: str = PROC) -> str:
    """What a process waits in, e.g. `S hrtimer_nanosleep (python3)`; `?` where the kernel does not tell."""
    channel = ""
    with contextlib.suppress(OSError), open("%s/%d/wchan" % (proc, p.pid)) as f:
        channel = f.read().strip()
    return "%s %s (%s)" % (p.state, channel if channel not in ("", "0") else "?", p.name)


def signal_group(pgid: int, number: int) -> bool:
    """Send a signal to a process group; False where there is none (yet, or any more)."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def how_it_ended(exit_code: int | None, number: int | None) -> str:
    """In words: an exit code, or a signal's name and, for SIGKILL, who often sends it."""
    if number is None:
        return "exited with code %s" % exit_code
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    hint = ", not by the cockpit: often the kernel, when memory runs out" if number == signal.SIGKILL else ""
    return "was ended by signal %d (%s%s)" % (number, name, hint)


def kill(processes: list[Process]) -> None:
    """SIGKILL to each."""
    for p in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(p.pid, signal.SIGKILL)
