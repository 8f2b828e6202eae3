"""The runners' own lines: `@ekvi ` and a JSON object, anywhere in a line (runners/wire.py prints them)."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from typing import Any

from cockpit.core.events import Artifact, Diagnostic, Event, Iteration, Stage
from cockpit.parse.context import Context
from runners.wire import MARK

NAME = "wire"
NEEDLES = (MARK.encode(),)

_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode  # NaN and infinity are unknown
_OWN = {"type", "t", "step", "total", "loss", "step_s", "tokens", "samples", "lr", "grad_norm", "extra"}
_MOST_OBJECTS = 64  # of one line: several writers may share it
_STATUS = {"start", "done", "skipped", "failed"}


def match(line: str, ctx: Context) -> list[Event]:
    """All objects of a line; a damaged one gives one warning a log."""
    events: list[Event] = []
    at = line.find(MARK)
    escaped = "\\u" in line  # may decode to half a character
    for _ in range(_MOST_OBJECTS):
        if at < 0:
            break
        start = at + len(MARK)
        try:
            obj, at = _decode(line, start)
            if escaped or obj["type"] != "iteration":  # iterations come in thousands and check their own values
                obj = _plain(obj)
            event = _BY_TYPE[obj["type"]](obj, ctx)
            ctx.wire = True
        except (ValueError, KeyError, TypeError, RecursionError):
            event, at = _damaged(line, start, ctx), start
        if event is not None:
            events.append(event)
        at = line.find(MARK, at)
    return events


def _plain(value: Any) -> Any:
    """A JSON value that any file can hold: no halves of characters, no infinity, no number beyond a float's range."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return None if isinstance(value, int) and abs(value) >> 1023 else value


def _damaged(line: str, start: int, ctx: Context) -> Event | None:
    if not ctx.once("wire_damaged"):
        return None
    return Diagnostic(
        level="warning",
        code="wire_damaged",
        message="a line of the runner is damaged and was left out; further ones are not reported.",
        data={"text": line[start : start + 200]},
        offset=ctx.offset,
    )


def _number(value: Any) -> float | None:
    """A finite number or None; raises TypeError on anything else."""
    if value is None:
        return None
    if type(value) is float:
        return value if isfinite(value) else None
    if type(value) is int:
        return float(value) if abs(value) < 1 << 63 else None
    raise TypeError


def _count(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 1 << 63):
        return value
    if type(value) is float and value.is_integer() and 0 <= value < 1 << 63:
        return int(value)
    raise TypeError


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _iteration(obj: dict[str, Any], ctx: Context) -> Event | None:
    step = _count(obj["step"])
    if step is None:
        raise TypeError
    get = obj.get
    extra = get("extra")
    if extra is not None and not isinstance(extra, dict):
        raise TypeError
    others = obj.keys() - _OWN
    extra = {**(extra or {}), **{k: obj[k] for k in sorted(others)}} if others else extra or {}
    for value in extra.values():
        if type(value) is not float or not isfinite(value):
            extra = _plain(extra)
            break
    event = Iteration(
        step=step,
        total=_count(get("total")),
        loss=_number(get("loss")),
        step_s=_number(get("step_s")),
        tokens=_count(get("tokens")),
        samples=_count(get("samples")),
        lr=_number(get("lr")),
        grad_norm=_number(get("grad_norm")),
        extra=extra,
        t=_number(get("t")),
        offset=ctx.offset,
    )
    # The line of another format that stands just before the first wire iteration told the same one already.
    told = not ctx.wire_iterations and ctx.last_step == step
    ctx.wire_iterations = True
    ctx.last_step = step
    return None if told else event


def _stage(obj: dict[str, Any], ctx: Context) -> Event:
    if obj["status"] not in _STATUS:
        raise ValueError
    message = obj.get("message")
    return Stage(
        stage=_text(obj["stage"]),
        status=obj["status"],
        message=None if message is None else _text(message),
        t=_number(obj.get("t")),
        offset=ctx.offset,
    )


def _artifact(obj: dict[str, Any], ctx: Context) -> Event:
    sha256 = obj.get("sha256")
    return Artifact(
        path=_text(obj["path"]),
        bytes=_count(obj.get("bytes")),
        sha256=None if sha256 is None else _text(sha256),
        t=_number(obj.get("t")),
        offset=ctx.offset,
    )


def _diagnostic(obj: dict[str, Any], ctx: Context) -> Event:
    data = obj.get("data") or {}
    if not isinstance(data, dict):
        raise TypeError
    if obj["code"] == "model":
        ctx.wire_iterations = True  # who says this tells its iterations on the wire too
        ctx.seq_length = _count(data.get("seq_length")) or ctx.seq_length
        ctx.global_batch = _count(data.get("global_batch")) or ctx.global_batch
    return Diagnostic(
        level=_text(obj.get("level", "info")),
        code=_text(obj["code"]),
        message=_text(obj.get("message", "")),
        data=data,
        t=_number(obj.get("t")),
        offset=ctx.offset,
    )


_BY_TYPE: dict[str, Callable[[dict[str, Any], Context], Event | None]] = {
    "iteration": _iteration,
    "stage": _stage,
    "artifact": _artifact,
    "diagnostic": _diagnostic,
}
