"""How a run ends: its stop, what the end of a stage means, the sweep after it, and what the last word tells."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from . import procs, states
from .base import boot_id, start_ticks
from .contained import Contained
from .files import Log, tail_lines

KILL_AGAIN_S = 0.5
SWEEP_S = 10.0  # how long processes may take to vanish after SIGKILL before the queue goes on without them


class Stopping:
    """A stop under way: `because` is the state that the run will end in."""

    def __init__(self, because: str, reason: str, wchan: dict[str, str], kill_at: float) -> None:
        self.because = because
        self.reason = reason
        self.wchan = wchan
        self.kill_at = kill_at
        self.told: int | None = None  # the process group that has its TERM
        self.next_kill = kill_at

    @property
    def fate(self) -> dict[str, Any]:
        """state, reason and rec of the end that it leads to."""
        return {"state": self.because, "reason": self.reason, "rec": {}}

    def drive(self, rec: dict[str, Any], out_dir: str, now: float) -> None:
        """TERM to the stage's group, once; KILL to all that lives of it when the grace is over."""
        if self.told != rec["pgid"]:  # another one where a container's minder was started again
            with contextlib.suppress(ProcessLookupError):
                os.kill(rec["pid"], signal.SIGUSR1)  # the whole group has the grace, not only its main process
            if procs.signal_group(rec["pgid"], signal.SIGTERM):
                self.told = rec["pgid"]
        if now >= self.next_kill:
            self.next_kill = now + KILL_AGAIN_S
            procs.signal_group(rec["pgid"], signal.SIGKILL)
            procs.kill(living(rec, out_dir))


def living(rec: dict[str, Any] | None, out_dir: str) -> list[procs.Process]:
    """What lives of a run: its group, while its leader pins that number, and all that carry its EKVI_OUT.

    Once the leader is reaped its number may be anyone's, a shell's for instance, however late it is looked at.
    """
    if rec is None or rec["boot_id"] != boot_id():
        return procs.of_run(None, None, out_dir)
    since = rec["child_start_ticks"]
    pinned = since is not None and start_ticks(rec["pgid"]) == since
    return procs.of_run(rec["pgid"] if pinned else None, since, out_dir)


def verdict(rec: dict[str, Any], stopping: Stopping | None, inside: Contained | None) -> tuple[str, str | None]:
    """The state that the end of a stage means for its run, and why; `rec` tells how the stage ended."""
    if stopping is not None:
        return stopping.because, stopping.reason
    if rec["error"] is not None:
        return states.FAILED, "stage %s: %s." % (rec["stage"], rec["error"])
    if inside is not None:
        return _verdict_on(inside, rec)
    if rec["exit_code"] == 0:
        return states.SUCCEEDED, None
    return states.FAILED, "stage %s %s" % (rec["stage"], procs.how_it_ended(rec["exit_code"], rec["signal"]))


def _verdict_on(inside: Contained, rec: dict[str, Any]) -> tuple[str, str | None]:
    why = inside.failure(rec)
    if why is None:
        return states.SUCCEEDED, None
    if inside.rebooted:
        return states.NODE_FAIL, "the server restarted while stage %s ran; it %s" % (rec["stage"], why)
    return states.FAILED, "stage %s %s" % (rec["stage"], why)


class Sweep:
    """The end of every process that a stage left, so that the next one has the machine to itself.

    `because` and `reason` are what the run ends in where no stage follows; `rec` is the shim's record, if any.
    """

    def __init__(self, because: str, reason: str | None, rec: dict[str, Any] | None) -> None:
        self.because = because
        self.reason = reason
        self.rec = rec
        self._until = time.monotonic() + SWEEP_S

    @property
    def fate(self) -> dict[str, Any]:
        """state, reason and rec of the run's end where no stage follows."""
        return {"state": self.because, "reason": self.reason, "rec": self.rec or {}}

    def done(self, now: float, out_dir: str, inside: Contained | None, log: Log, run: str) -> bool:
        """Kill what is left and look whether any is; True also where it is given up."""
        left = living(self.rec, out_dir)
        procs.kill(left)
        if left and now < self._until:
            return False
        if inside is not None and not inside.tidied(now):
            return False
        if left:
            names = ", ".join("%d %s" % (p.pid, procs.where(p)) for p in left)
            log.say("run %s: processes that do not end: %s" % (run, names))
        return True


def last_word(
    records: list[dict[str, Any] | None],
    rec: dict[str, Any],
    spool: str,
    stopping: Stopping | None,
    notes: list[str],
) -> dict[str, Any]:
    """What a run's last state tells beside its reason (`data`): the tail of its output, its size, what is missing.

    `records` are the shim's of all stages, `rec` the one that decided.
    """
    return {
        "tail": rec.get("tail") or tail_lines(spool),
        "wchan": stopping.wchan if stopping is not None else {},
        "spool_by": os.path.getsize(spool) if os.path.exists(spool) else 0,
        "dropped_by": sum(each["dropped_by"] for each in records if each),
        **({"notes": notes} if notes else {}),
    }
