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

    if not logged.size or np.isfinite(logged).any():
        return logged, None
    config = meta.get("config") or {}
    training = config.get("training") or {}
    length, batch = training.get("sequence_length"), training.get("global_batch")
    if (config.get("runner") or {}).get("name") == "megatron" and length and batch:
        return np.full(logged.size, float(length * batch)), "tokens a step from the configuration, not from the log"
    return logged, None


def window(t: Floats, step_s: Floats, kept: npt.NDArray[np.intp]) -> tuple[float, float] | None:
    """Wall-clock start and end of the steady part in seconds, or None where the log carries no time."""
    if not kept.size:
        return None
    first, last = int(kept[0]), int(kept[-1])
    start, end = float(t[first] - step_s[first]), float(t[last])
    return (start, end) if math.isfinite(start) and math.isfinite(end) and end > start else None


def missing(step: Floats, meta: Mapping[str, Any]) -> int:
    """Steps that were trained but stand in no line: up to the end of a run that succeeded, else up to its last."""
    import numpy as np

    known = np.unique(step[np.isfinite(step)])
    if not known.size:
        return 0
    total = meta.get("total") if meta.get("state") == "SUCCEEDED" else None
    return int(max(known[-1], total or 0) - known[0] + 1) - known.size


def stands_for(step: Floats) -> Floats:
    """Steps since the line before, 1 for the first and for a step that came again."""
    import numpy as np

    gaps = np.diff(step, prepend=step[:1] - 1)
    return np.where(gaps >= 1, gaps, 1.0)
