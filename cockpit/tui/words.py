"""Numbers as a narrow panel says them. Unknown is a dash or n/a, never 0."""

from __future__ import annotations

import math

from cockpit.core.events import State
from cockpit.core.state import RunState

DASH = "–"
GLYPHS = {
    State.PLANNED: "·",
    State.SUBMITTED: "·",
    State.PENDING: "·",
    State.STARTING: "▷",
    State.RUNNING: "▶",
    State.STOPPING: "■",
    State.SUCCEEDED: "✓",
    State.CANCELLED: "■",
}


def glyph(state: State) -> str:
    """One character for a state; whatever went wrong is a cross."""
    return GLYPHS.get(state, "✗")


def run_colour(state: State) -> str:
    """The semantic colour of a state."""
    if state is State.SUCCEEDED:
        return "run.done"
    if state.failed:
        return "run.failed"
    return "run.running" if state in (State.STARTING, State.RUNNING, State.STOPPING) else "muted"


def run_name(run: RunState) -> str:
    """What a run is called beside its server's name: `r2`, with its sweep point where it has one."""
    point = " ".join(f"{k.rsplit('.', 1)[-1]}={v}" for k, v in run.sweep.items())
    return f"r{run.repeat + 1} {point}".rstrip()


def clock(seconds: float | None) -> str:
    """`3:05`, `1:02:03`, or a dash."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    minutes, s = divmod(round(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def age(seconds: float) -> str:
    """How old something is: whole seconds, then minutes and hours."""
    if seconds < 60:
        return f"{int(max(0.0, seconds))} s"
    return f"{int(seconds // 60)} min" if seconds < 3600 else f"{int(seconds // 3600)} h"


def short(value: float | None, digits: int = 3) -> str:
    """A number of any size in about six characters: 0.00312, 3.41, 12.3k, 4.56M."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    for limit, unit in ((1e15, ""), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}.get(unit)
            return (
                f"{value / scale:.{digits}g}{unit}" if scale and size / scale < 999.5 else f"{value:.{digits - 1}e}"
            )
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if size < 0.001 or size == 0 else f"{value:.{digits + (size < 1)}g}"


def loss(value: float | None) -> str:
    """A loss with three decimals where it has a usual size."""
    if value is None or math.isnan(value):
        return DASH
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else short(value)


def gib(count: float) -> float:
    """Bytes as GiB."""
    return count / 2**30
