"""Tagged lines of PyTorch scripts: [STEP] [DDP] [DATA] [COLLATE] [MODEL] [TRAIN] [EPOCH] [BATCH] [RESULT] [DONE].

After a tag stand free words with `name=value`, `name: value` or `name value` among them. [TRAIN] with a step, or an
epoch's loss where no steps are told, is an iteration; the others are diagnostics with the tag's name as code
(log_data and log_model: data and model are what a runner says of the whole run).
A runner that speaks on the wire says all this there, and its tags are for people only.
"""

from __future__ import annotations

import re
from typing import Any

from cockpit.core.events import Diagnostic, Event, Iteration
from cockpit.parse.context import Context, split_prefix
from cockpit.parse.values import name, number

NAME = "tags"
_TAGS = ("STEP", "DDP", "DATA", "COLLATE", "MODEL", "TRAIN", "EPOCH", "BATCH", "RESULT", "DONE")
NEEDLES = tuple(f"[{tag}]".encode() for tag in _TAGS)

_TAG = re.compile(rf"\[({'|'.join(_TAGS)})\]\s*(.*)")
_NUMBER = r"[+-]?(?:\d[\d,]*+\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?"
_PAIR = re.compile(
    rf"([A-Za-z][\w/]*)\s*(?:[=:]\s*|\s)({_NUMBER}|nan|inf|[Tt]rue|[Ff]alse)(?:\s*/\s*(\d+))?(?=[\s,;)|a-z%]|$)"
)
_RATE = re.compile(rf"({_NUMBER})\s*(tokens|samples)/s")
_LEVELS = {"BATCH": "debug", "COLLATE": "debug"}
_CODES = {"DATA": "log_data", "MODEL": "log_model"}
_MOST_TEXT = 500


def match(line: str, ctx: Context) -> list[Event]:
    """An iteration or a diagnostic; the same words of several ranks once."""
    found = _TAG.search(line)
    if found is None or ctx.wire:
        return []
    tag, text = found[1], found[2].strip()[:_MOST_TEXT]
    values = _values(text)
    if tag in ("TRAIN", "EPOCH"):
        event = _iteration(values, split_prefix(line)[0], ctx)
        if event is not None or tag == "TRAIN":
            return [event] if event is not None else []
    if not ctx.once(f"tag {tag}", text):
        return []
    plain = {k: v[0] for k, v in values.items()}
    return [
        Diagnostic(
            level=_LEVELS.get(tag, "info"),
            code=_CODES.get(tag, tag.lower()),
            message=text,
            data=plain,
            offset=ctx.offset,
        )
    ]


def _values(text: str) -> dict[str, tuple[Any, int | None]]:
    """Names to (value, what follows a slash)."""
    found: dict[str, tuple[Any, int | None]] = {}
    for key, value, of in _PAIR.findall(text):
        known = value.lower() == "true" if value.lower() in ("true", "false") else number(value)
        found.setdefault(name(key), (known, int(of) if of and len(of) < 18 else None))
    for value, what in _RATE.findall(text):
        found[f"{what}_per_s"] = (number(value), None)
    return found


def _iteration(values: dict[str, tuple[Any, int | None]], source: str, ctx: Context) -> Event | None:
    """The iteration of a step, or of an epoch as long as no steps were told; None where there is none."""
    stepped = "step" in values
    if not stepped and ctx.state.get(NAME):
        return None
    number_, total = values.get("step" if stepped else "epoch", (None, None))
    loss = _one(values, "loss", "avg_loss", "mean_loss", "train_loss")
    if number_ is None or loss is None or number_ < 0 or number_ != int(number_):
        return None
    if stepped:
        ctx.state[NAME] = True
    if ctx.wire_iterations or ctx.repeats(int(number_), source):
        return None
    own = {"step", "epoch", "loss", "lr", "grad_norm"} if stepped else {"epoch", "loss", "lr", "grad_norm"}
    return Iteration(
        step=int(number_),
        total=total,
        loss=loss,
        step_s=_one(values, "step_s", "time_s", "elapsed_s") if stepped else _one(values, "epoch_s", "time_s"),
        lr=_one(values, "lr", "learning_rate"),
        grad_norm=_one(values, "grad_norm"),
        extra={k: v for k, (v, _) in values.items() if k not in own and v is not None},
        offset=ctx.offset,
    )


def _one(values: dict[str, tuple[Any, int | None]], *names: str) -> float | None:
    for key in names:
        value = values.get(key, (None, None))[0]
        if isinstance(value, float):
            return value
    return None
