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


def short(value: float | None) -> str:
    """A number of any size in three digits: 0.00312, 3.41, 12.0k, 4.56M."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size and not 1e-3 <= size < 999.5e12:
        return f"{value:.2e}"
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 0.9995 * scale and (unit != "k" or size >= 9999.5):
            return _digits(value / scale) + unit
    return _digits(value)


def _digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    size = abs(value)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    while size and size < 0.9995 and decimals < 6:
        size *= 10
        decimals += 1
    return f"{value:.{decimals}f}"


def loss(value: float | None) -> str:
    """A loss with three decimals where it has a usual size."""
    if value is None or math.isnan(value):
        return DASH
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else short(value)


def gib(count: float) -> float:
    """Bytes as GiB."""
    return count / 2**30
