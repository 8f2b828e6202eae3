"""Loss parity: do the sides learn the same, within what repeats of one side differ among themselves?

Equality is the wrong question between vendors, whose sums round otherwise. The tolerance is drawn from the repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cockpit.metrics.sides import Side

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

FLOOR = 1e-3  # repeats on one machine may agree to the bit, which no other machine can be asked to
_SCALE_FLOOR = 0.01  # of the largest loss: a loss near zero must not make small differences look large


def loss_parity(sides: Sequence[Side]) -> dict[str, Any]:
    """The `loss_parity` object of ekvi.compare/1.

    verdict: same, differs, or unknown (also where iterations of a side have no finite loss). `max_rel_diff` is the
    largest relative difference between the sides' mean curves, aligned by consumed tokens (by step where tokens are
    unknown); `final_rel_diff` that of loss_final. `tolerance` is the largest difference between two repeats of one
    side, 0.1 % at least, or None where no side has two. Several sides are held against the first.
    """
    finals = {s.name: _final(s) for s in sides}
    final = _rel([v for v in finals.values() if v is not None])
    curves = _curves(sides)
    if curves is None:
        known = {"final_rel_diff": final, "finals": finals, "aligned_by": None}
        return {"verdict": "unknown", "max_rel_diff": None, "tolerance": None, "note": "no loss curves", **known}
    by, members = curves
    means = [sum(c[1:], c[0]) / len(c) for c in members]
    apart = max((_distance(means[0], other) for other in means[1:]), default=None)
    repeats = [_distance(a, b) for c in members for i, a in enumerate(c) for b in c[i + 1 :]]
    tolerance = max([FLOOR, *repeats]) if repeats else None
    verdict, note = _verdict(apart, tolerance)
    lost = {s.name: n for s in sides if (n := _lost(s))}
    if lost and verdict == "same":  # the curves speak only of the steps where every run has a loss
        verdict = "unknown"
    if lost:
        told = ", ".join(f"{n} of {name}" for name, n in lost.items())
        note = f"{note}; iterations without a finite loss are left out: {told}"
    return {
        "verdict": verdict,
        "max_rel_diff": apart,
        "tolerance": tolerance,
        "note": note,
        "final_rel_diff": final,
        "finals": finals,
        "aligned_by": by,
    }


def _verdict(apart: float | None, tolerance: float | None) -> tuple[str, str]:
    if apart is None:
        return "unknown", "one side alone"
    if tolerance is None:
        return "unknown", "no side has two repeats to draw a tolerance from"
    source = "what repeats of one side differ by" if tolerance > FLOOR else "the least asked; repeats differ by less"
    return ("same" if apart <= tolerance else "differs"), source


def _lost(side: Side) -> int:
    """Iterations of the side's runs whose loss is not finite: diverged, skipped or not told."""
    import numpy as np

    return sum(int((~np.isfinite(r.loss["loss"])).sum()) for r in side.counted if r.loss is not None)


def _final(side: Side) -> float | None:
    values = [v for r in side.counted if (v := r.metric("loss_final")) is not None]
    return sum(values) / len(values) if values else None


def _rel(values: Sequence[float]) -> float | None:
    largest = max(map(abs, values), default=0.0)
    return (max(values) - min(values)) / largest if len(values) > 1 and largest > 0 else None


def _curves(sides: Sequence[Side]) -> tuple[str, list[list[Floats]]] | None:
    """(axis, curves by side) on the points that all runs share, or None where a side has no curve."""
    import numpy as np

    columns = [[r.loss for r in s.counted if r.loss is not None and _has_loss(r.loss)] for s in sides]
    if not columns or not all(columns):
        return None
    flat = [c for side in columns for c in side]
    by = "tokens" if all(_known(c.get("tokens")) for c in flat) else "step"
    lines = [[_line(c, by) for c in side] for side in columns]
    every = [line for side in lines for line in side]
    first = every[0][0]
    if all(x.size == first.size and np.array_equal(x, first) for x, _ in every):
        return by, [[y for _, y in side] for side in lines]
    low, high = max(x[0] for x, _ in every), min(x[-1] for x, _ in every)
    shared = [x[(x >= low) & (x <= high)] for x, _ in every]
    grid = min(shared, key=len)  # the coarsest: a fine curve is known at its points, a coarse one not between its own
    if not grid.size:
        return None
    return by, [[np.interp(grid, x, y) for x, y in side] for side in lines]


def _has_loss(columns: Mapping[str, Floats]) -> bool:
    import numpy as np

    return bool(columns["loss"].size and np.isfinite(columns["loss"]).any())


def _known(column: Floats | None) -> bool:
    import numpy as np

    return column is not None and bool(column.size) and bool(np.isfinite(column).all())


def _line(columns: Mapping[str, Floats], by: str) -> tuple[Floats, Floats]:
    """(axis, loss) of one run without unknown losses; consumed tokens are summed over all steps up to each.

    A step that is not in the log (one line for ten steps, lost output) consumed what its next one did. Of a step that
    was trained again after a restart, the last time counts.
    """
    import numpy as np

    axis = np.asarray(columns["step"], dtype=np.float64)
    if by == "tokens":
        axis = np.cumsum(columns["tokens"] * np.diff(axis, prepend=0.0))
    loss = np.asarray(columns["loss"], dtype=np.float64)
    known = np.isfinite(loss)
    axis, loss = axis[known], loss[known]
    if (np.diff(axis) > 0).all():
        return axis, loss
    unique, last = np.unique(axis[::-1], return_index=True)
    return unique, loss[::-1][last]


def _distance(a: Floats, b: Floats) -> float:
    """The largest difference of two curves, relative to the larger of the two losses at that point."""
    import numpy as np

    scale = np.maximum(np.abs(a), np.abs(b))
    top = float(scale.max())
    if top == 0:
        return 0.0
    return float((np.abs(a - b) / np.maximum(scale, _SCALE_FLOOR * top)).max())
