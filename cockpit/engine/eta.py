"""How long a group will still take, from what its runs have shown so far."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from cockpit.core.state import RunState

_RECENT = 20  # iterations whose median is taken for the coming ones


def eta_s(runs: Iterable[RunState]) -> float | None:
    """Seconds until the last run ends, or None where nothing is known yet.

    Runs of one queue take turns, queues go on side by side: the longest queue counts.
    """
    queues: dict[str, list[RunState]] = defaultdict(list)
    for run in runs:
        queues[run.queue].append(run)
    waits = [_queue_s(members) for members in queues.values()]
    known = [w for w in waits if w is not None]
    return max(known) if known and len(known) == len(waits) else None


def _queue_s(runs: list[RunState]) -> float | None:
    open_ = [r for r in runs if not r.state.ended]
    if not open_:
        return 0.0
    whole = _whole_run_s(runs)
    busy = [0.0] * max(1, open_[0].slots)  # when each slot is free again
    for run in open_:
        rest = _rest_s(run, whole) if run.started_t is not None else whole
        if rest is None:
            return None
        first = busy.index(min(busy))
        busy[first] += rest
    return max(busy)


def _whole_run_s(runs: list[RunState]) -> float | None:
    """What one run takes: the mean of those that are done, else the running one extrapolated."""
    done = [
        r.ended_t - r.started_t
        for r in runs
        if r.ended_t is not None and r.started_t is not None and not r.state.failed
    ]
    if done:
        return statistics.fmean(done)
    for run in runs:
        rest = _rest_s(run, None)
        if rest is not None and run.last and run.last.t is not None and run.started_t is not None:
            return run.last.t - run.started_t + rest
    return None


def _rest_s(run: RunState, whole: float | None) -> float | None:
    """What is left of a run that has started."""
    if run.last is None or run.total is None:
        return whole
    recent = [s for s in run.series.step_s[-_RECENT:] if not math.isnan(s)]
    if not recent:
        return whole
    return max(0, run.total - run.last.step) * statistics.median(recent)
