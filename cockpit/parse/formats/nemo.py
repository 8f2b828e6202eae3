"""NeMo 2's progress lines, as its Megatron progress printer writes them.

    Training epoch 0, iteration 8/29 | lr: 5.4e-06 | global_batch_size: 512 | global_step: 8 | ... |
    reduced_train_loss: 10.22 | train_step_timing in s: 27.01 | consumed_samples: 4608 | TFLOPS_per_GPU: 48.58

Free `key: value` segments in one line. NeMo counts iterations from 0, so `8/29` is the ninth of thirty; the step here
is the ninth. A word of the validation stands on some lines and goes to `extra`.
"""

from __future__ import annotations

import re

from cockpit.core.events import Event, Iteration
from cockpit.parse.context import Context, split_prefix
from cockpit.parse.values import count, name, number

NAME = "nemo"
NEEDLES = (b"Training epoch ",)

_HEAD = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,18})/(\d{1,18}) ?\|")
_OWN = {"lr": "lr", "reduced_train_loss": "loss", "train_step_timing in s": "step_s", "grad_norm": "grad_norm"}
_EXTRA = {"TFLOPS_per_GPU": "tflops_gpu_reported", "tokens_per_sec_per_gpu": "tokens_per_s_gpu_reported"}
_MAX_EXTRA = 48


def match(line: str, ctx: Context) -> list[Event]:
    """The iteration of a line, the same words of several ranks once."""
    found = _HEAD.search(line)
    if found is None or ctx.wire_iterations:
        return []
    own: dict[str, float | None] = {}
    extra: dict[str, float] = {}
    for segment in line[found.end() :].split("|"):
        key, colon, text = segment.partition(":")
        key = key.strip()
        value = number(text) if colon else None
        if key in _OWN:
            own[_OWN[key]] = value
        elif value is not None and len(extra) < _MAX_EXTRA:
            extra[_EXTRA.get(key) or name(key)] = value
    global_step = extra.get("global_step")
    # Each epoch counts its iterations anew; the global step goes on.
    step = int(global_step) + 1 if global_step is not None and global_step >= 0 else int(found[2]) + 1
    if ctx.repeats(step, split_prefix(line)[0]):
        return []
    samples = count(str(extra["global_batch_size"])) if "global_batch_size" in extra else None
    return [
        Iteration(
            step=step,
            total=int(found[3]) + 1 if int(found[1]) == 0 else None,
            samples=samples,
            loss=own.get("loss"),
            step_s=own.get("step_s"),
            lr=own.get("lr"),
            grad_norm=own.get("grad_norm"),
            extra={"epoch": int(found[1]), **extra},
            offset=ctx.offset,
        )
    ]
