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
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        p = inspect(pid, proc)
        if (
            p is None
            or p.state in "ZX"
            or pid == os.getpid()
            or (since_ticks is not None and p.started < since_ticks)
        ):
            continue
        if p.pgid == pgid or mark in _environ(pid, proc):
            found.append(p)
    return found


def began(pid: int, proc: str = PROC) -> float | None:
    """When a process started, in seconds since the epoch; None where it is gone or the system does not say."""
    p = inspect(pid, proc)
    try:
        with open(proc + "/stat") as f:
            booted = next(float(line.split()[1]) for line in f if line.startswith("btime "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return booted + p.started / os.sysconf("SC_CLK_TCK") if p is not None else None


def family(pid: int, proc: str = PROC) -> list[Process]:
    """A process and all that descend from it; of a container's main process that is all that runs in it."""
    children: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []
    for child in pids:
        with contextlib.suppress(OSError, IndexError, ValueError), open("%s/%d/stat" % (proc, child), "rb") as f:
            children.setdefault(int(f.read().rpartition(b")")[2].split()[1]), []).append(child)
    found, todo = [], [pid]
    while todo:
        p = inspect(todo.pop(), proc)
        if p is not None and p.state not in "ZX":
            found.append(p)
            todo.extend(children.get(p.pid, []))
    return found


def _environ(pid: int, proc: str) -> bytes:
    try:
        with open("%s/%d/environ" % (proc, pid), "rb") as f:
            return b"\0" + f.read()
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
