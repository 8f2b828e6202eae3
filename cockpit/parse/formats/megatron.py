"""Megatron-LM's iteration and validation lines of all years.

    [2025-01-31 09:30:00] iteration  20/ 1000 | consumed samples: 80 | elapsed time per iteration (ms): 1354.9 | ... |

Free `key: value` segments between bars, told by the last rank. `t` stays None: the stamp has no time zone; it stands
in `extra` as logged_at. A skipped iteration has no loss.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from cockpit.core.events import Diagnostic, Event, Iteration
from cockpit.parse.context import Context, split_prefix
from cockpit.parse.values import count, name, number

NAME = "megatron"
NEEDLES = (b"iteration ",)

_WORD = "iteration "
_ITERATION = re.compile(r"iteration +(\d{1,18}) */ *(\d{1,18}) *\|")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?)\]")
_VALIDATION = "validation loss at "
_AT = re.compile(r"iteration +(\d{1,18})")
_SET = re.compile(r"\bon (\w{1,32}) set")
_MAX_EXTRA = 48

# An iteration's own fields: name, and what to divide by for its unit.
_OWN = {
    "elapsed time per iteration (ms)": ("step_s", 1e3),
    "elapsed time per iteration (s)": ("step_s", 1.0),
    "lm loss": ("loss", 1.0),
    "learning rate": ("lr", 1.0),
    "grad norm": ("grad_norm", 1.0),
}
_COUNTS = {
    "consumed samples": "consumed_samples",
    "skipped samples": "skipped_samples",
    "consumed tokens": "consumed_tokens",
    "global batch size": "global_batch",
    "num zeros": "num_zeros",
    "number of skipped iterations": "skipped_iterations",
    "number of nan iterations": "nan_iterations",
}
# Names in `extra` of what the log calls otherwise: the unit in the name, and that it is the log's own word.
_EXTRA = {
    "throughput per GPU (TFLOP/s/GPU)": "tflops_gpu_reported",
    "energy per GPU (J/iter/GPU)": "energy_gpu_iter_j_reported",
    "power per GPU (W/GPU)": "power_gpu_w_reported",
    "tokens per GPU (tokens/s/GPU)": "tokens_per_s_gpu_reported",
    "samples per second": "samples_per_s_reported",
    "TFLOPs": "tflops_gpu_reported",
}


@lru_cache(maxsize=4096)
def _field(key: str) -> tuple[str, float, bool]:
    """What the key of a segment stands for: (name, divisor or 0.0 for what goes to `extra`, whether a count)."""
    key = key.strip()
    own = _OWN.get(key)
    if own is not None:
        return (*own, False)
    return _COUNTS.get(key) or _EXTRA.get(key) or name(key), 0.0, key in _COUNTS


def match(line: str, ctx: Context) -> list[Event]:
    """An event for each distinct iteration of the line: several ranks may share one; or a validation's diagnostic."""
    found = _next(line, 0)
    if found is None:
        return _validation(line, ctx)
    if ctx.wire_iterations:
        return []
    events: list[Event] = []
    before = 0
    while found is not None:
        after = _next(line, found.end())
        body = line[found.end() : after.start() if after else len(line)]
        event = _iteration(line[before : found.start()], int(found[1]), int(found[2]), body, ctx)
        if event is not None:
            events.append(event)
        before, found = found.end(), after
    return events


def _next(line: str, begin: int) -> re.Match[str] | None:
    """The next `iteration N/M |` from `begin` on; a plain search for the word finds it ten times faster."""
    at = line.find(_WORD, begin)
    while at >= 0:
        found = _ITERATION.match(line, at)
        # Not `Training epoch 0, iteration 17/99 |`, which is NeMo's, nor the end of another word.
        if found is not None and line[max(0, at - 2) : at] != ", " and not (at and line[at - 1].isalnum()):
            return found
        at = line.find(_WORD, at + len(_WORD))
    return None


def _iteration(head: str, step: int, total: int, body: str, ctx: Context) -> Event | None:
    extra: dict[str, Any] = {}
    source = ""
    if head and not head.isspace():
        stamp = _STAMP.search(head)
        if stamp is not None:
            extra["logged_at"] = stamp[1]
            head = head[: stamp.start()]
        source = split_prefix(head)[0] if head.strip() else ""
    if ctx.repeats(step, source):
        return None
    values = _values(body, extra)
    samples, tokens = _per_step(step, extra, ctx)
    return Iteration(
        step=step,
        total=total,
        loss=values.get("loss"),
        step_s=values.get("step_s"),
        tokens=tokens,
        samples=samples,
        lr=values.get("lr"),
        grad_norm=values.get("grad_norm"),
        extra=extra,
        offset=ctx.offset,
    )


def _values(body: str, extra: dict[str, Any]) -> dict[str, float | None]:
    """The fields that an iteration has by name; all others go to `extra`."""
    own: dict[str, float | None] = {}
    for segment in body.split("|"):
        key, colon, text = segment.partition(":")
        if not colon:
            continue
        field, divisor, is_count = _field(key)
        value = count(text) if is_count else number(text)
        if divisor:
            own[field] = None if value is None else value / divisor
            if value is None:
                extra[f"{field}_text"] = text.strip()[:32]  # "nan" is news, though no number
        elif value is not None and field and len(extra) < _MAX_EXTRA:
            extra[field] = value
    return own


def _per_step(step: int, extra: dict[str, Any], ctx: Context) -> tuple[int | None, int | None]:
    """Samples and tokens of one step.

    Samples are the growth of `consumed samples` since the last line, per step (a ramped batch shows there), else the
    line's own global batch size, else the arguments'. Tokens are samples x sequence length.
    """
    samples: float | None = extra.get("global_batch") or ctx.global_batch
    consumed = extra.get("consumed_samples")
    if consumed is not None:
        if ctx.consumed is not None and ctx.consumed[0] < step and ctx.consumed[1] < consumed:
            samples = (consumed - ctx.consumed[1]) / (step - ctx.consumed[0])
        ctx.consumed = (step, consumed)
    if samples is None:
        return None, None
    return round(samples), round(samples * ctx.seq_length) if ctx.seq_length else None


def _validation(line: str, ctx: Context) -> list[Event]:
    """`validation loss at iteration 100 | lm loss value: 8.0E+00 | lm loss PPL: 3.0E+03 |`."""
    begin = line.find(_VALIDATION)
    head, bar, body = line[begin:].partition("|")
    at, which = _AT.search(head), _SET.search(head)
    if begin < 0 or not bar:
        return []
    data: dict[str, Any] = {"step": int(at[1]) if at else None, "set": which[1] if which else "validation"}
    for segment in body.split("|"):
        key, colon, text = segment.partition(":")
        if colon and len(data) < _MAX_EXTRA:
            data[name(key)] = number(text)
    data["loss"] = data.get("lm_loss_value")
    when = f" at iteration {data['step']}" if at else ""
    loss = "unknown" if data["loss"] is None else f"{data['loss']:.6g}"
    return [
        Diagnostic(
            level="info",
            code="validation",
            message=f"{data['set']} loss {loss}{when}.",
            data=data,
            offset=ctx.offset,
        )
    ]
