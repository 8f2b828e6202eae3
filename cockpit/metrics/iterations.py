"""A run's iterations as columns: what a line stands for, what it leaves out, when the steady part was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Columns = Mapping[str, Floats]


def column(columns: Columns, name: str, size: int | None) -> Floats:
    """A column, or `size` unknown values where there is none."""
    import numpy as np

    found = columns.get(name)
    if found is None:
        return np.full(size or 0, math.nan)
    return np.asarray(found, dtype=np.float64)


def tokens_of(logged: Floats, meta: Mapping[str, Any]) -> tuple[Floats, str | None]:
    """Tokens of each step as logged, else from the configuration of a Megatron run, which fixes them."""
    import numpy as np

    config = meta.get("config") or {}
    if not logged.size or np.isfinite(logged).any():
        padded = logged.size and (config.get("runner") or {}).get("name") == "lora"
        return logged, "padding is not counted" if padded else None
    training = config.get("training") or {}
    length, batch = training.get("sequence_length"), training.get("global_batch")
    if (config.get("runner") or {}).get("name") == "megatron" and length and batch:
        return np.full(logged.size, float(length * batch)), "tokens a step from the configuration, not from the log"
    return logged, None


def window(t: Floats, took: Floats, kept: npt.NDArray[np.intp]) -> tuple[float, float] | None:
    """Wall-clock start and end of the steady part in seconds, or None where the log carries no time.

    `took` is what the steps of each line took together, in seconds.
    """
    if not kept.size:
        return None
    first, last = int(kept[0]), int(kept[-1])
    start, end = float(t[first] - took[first]), float(t[last])
    return (start, end) if math.isfinite(start) and math.isfinite(end) and end > start else None


def missing(step: Floats, weight: Floats, meta: Mapping[str, Any]) -> int:
    """Steps that were trained but for which no line stands: up to the end of a run that succeeded, else its last."""
    import numpy as np

    finite = np.isfinite(step)
    known, at = np.unique(step[finite], return_index=True)
    if not known.size:
        return 0
    stood = weight[finite][at]
    total = meta.get("total") if meta.get("state") == "SUCCEEDED" else None
    span = max(known[-1], total or 0) - known[0] + stood[0]
    return max(0, int(span - stood.sum()))


def stands_for(step: Floats) -> Floats:
    """How many steps each line of a log stands for: what its time and its tokens a step weigh in a sum.

    A log that tells every tenth step tells the mean of ten, or one for ten. A line stands for the steps since the
    line before, but for no more than the log's interval: what is beyond that is a hole, and the step after a hole
    says nothing of those in it. An interval comes twice on end, which holes do not. The first line, and one after a
    restart, stand for the interval too, but never for more steps than there were. 1 where the step is unknown.
    """
    import numpy as np

    gaps = np.diff(step)
    seen = gaps[gaps >= 1]
    usual = seen[1:][seen[1:] == seen[:-1]]
    most = float(usual.max()) if usual.size else float(seen.min()) if seen.size else 1.0
    back = np.where(gaps < 1, np.minimum(step[1:], most), gaps)
    first = np.minimum(step[:1], most)
    weight: Floats = np.clip(np.nan_to_num(np.concatenate([first, back]), nan=1.0), 1.0, most)
    return weight


def passed(step: Floats, weight: Floats) -> Floats:
    """Steps since the line before, also those that stand in no line; `weight` for the first and after a restart."""
    import numpy as np

    gaps = np.diff(step)
    return np.concatenate([weight[:1], np.where(gaps >= 1, gaps, weight[1:])])
