"""torchtitan's metric lines, told by the ranks that its configuration lets speak.

    [rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319
    memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%

`tps` is tokens a second of one device, averaged since the line before. The line does not say how long a step took:
that is the time between two lines over the steps between them, by the log's own clock (milliseconds). A validation
tells a line of its own (`validate step: 14  loss: ...`): it is no iteration, and its time is nobody's. Words are in
colour by default, so nothing may be expected of what stands before them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cockpit.core.events import Event, Iteration
from cockpit.parse.context import Context, split_prefix
from cockpit.parse.values import number

NAME = "torchtitan"
NEEDLES = (b"tps: ", b"grad_norm: ", b" - Training starts at step ")

_BEGIN = re.compile(r" - Training starts at step \d")
_LINE = re.compile(r"\b(validate )?step: {1,8}(\d{1,18})  ?loss: {1,8}(\S{1,32})")
_PAIR = re.compile(r"\b(grad_norm|memory|tps|tflops|mfu|lr|step_time|time): {1,8}(\S{1,32})")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})")
_EXTRA = {"tps": "tokens_per_s_gpu_reported", "tflops": "tflops_gpu_reported", "mfu": "mfu_percent_reported"}


def match(line: str, ctx: Context) -> list[Event]:
    """The iteration of a line, the same step of several ranks once."""
    found = _LINE.search(line)
    if found is None or ctx.wire_iterations:
        if _BEGIN.search(line):
            ctx.state.pop(NAME, None)  # the time since the line before is that of a start
        return []
    step = int(found[2])
    if found[1]:
        _step_s(line, step, ctx)
        return []
    if ctx.repeats(step, split_prefix(line)[0]):
        return []
    values = {key: number(text) for key, text in _PAIR.findall(line)}
    extra = {_EXTRA[k]: v for k, v in values.items() if k in _EXTRA and v is not None}
    if "memory" in values and values["memory"] is not None:
        extra["memory_gib_reported"] = values["memory"]
    return [
        Iteration(
            step=step,
            loss=number(found[3]),
            step_s=_step_s(line, step, ctx),
            lr=values.get("lr"),
            grad_norm=values.get("grad_norm"),
            extra=extra,
            offset=ctx.offset,
        )
    ]


def _step_s(line: str, step: int, ctx: Context) -> float | None:
    """Seconds a step since the line before; None for the first line, after a restart and without a stamp."""
    stamp = _STAMP.search(line)
    before: tuple[int, float] | None = ctx.state.get(NAME)
    if stamp is None:
        return None
    try:
        now = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() + int(stamp[2]) / 1e3
    except ValueError:
        return None
    ctx.state[NAME] = (step, now)
    if before is None or before[0] >= step or before[1] >= now:
        return None
    return round((now - before[1]) / (step - before[0]), 6)
