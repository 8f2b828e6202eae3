"""The bounds of a stage that runs: its time, its silence, and the room for its output."""

from __future__ import annotations

from typing import Any

from . import procs, states
from .contained import Contained
from .ending import living
from .files import tail_lines
from .queuefile import Queue, Stage


def passed(stage: Stage, rec: dict[str, Any], quiet_s: float, now: float, spool: str) -> tuple[str, str] | None:
    """The state that a stage is to end in, and why, where it passed one of its bounds; None where it passed none.

    Timeout: since the start. Stall: `quiet_s`, the seconds without a byte of output. An iteration is output, so a
    stage that iterates does not stall; nor does one that prints anything at all.
    """
    if stage.timeout_s is not None and now - rec["mono_start"] >= stage.timeout_s:
        return states.TIMEOUT, "stage %s passed its timeout of %g s" % (stage.stage, stage.timeout_s)
    if stage.stall_after_s is not None and quiet_s >= stage.stall_after_s:
        tail = tail_lines(spool)
        said = "; the last line was: %s" % tail[-1] if tail else ""
        return states.STALLED, "stage %s printed nothing for %g s%s" % (stage.stage, stage.stall_after_s, said)
    return None


def waits_in(rec: dict[str, Any], out_dir: str, inside: Contained | None) -> dict[str, str]:
    """What each process of a stalled stage waits in, by its number."""
    found = inside.processes() if inside is not None else living(rec, out_dir)
    return {str(p.pid): procs.where(p) for p in found}


def room(rec: dict[str, Any], queue: Queue) -> str:
    """One sentence of whether the output is still kept, by the shim's record."""
    if rec["spool_state"] == "full":
        return "no space left under %s: output is not kept, the training goes on" % queue.work
    if rec["spool_state"] == "capped":
        reason = "the output passed its bound of %d bytes and is not kept from here on; the training goes on"
        return reason % queue.spool_max_by
    return "there is space again: output is kept again, %d bytes are missing" % rec["dropped_by"]
