"""For how much of the time GPUs were slowed, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit.metrics.telemetry import Reading, Telemetry
from cockpit.metrics.tickcolumns import SLOWED, THROTTLE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cockpit.metrics.tickcolumns import Floats

_GAP = 2.5  # periods: a tick speaks for no longer
_COUNTED = {"thr_power": "power", "thr_thermal": "thermal"}


def throttled(telemetry: Telemetry, window: tuple[float, float] | None) -> Reading:
    """Share of the time (0..1) in `window` in which any GPU was slowed by power, heat or hardware.

    Of ticks, each weighted with its time; where no GPU tells reasons, of what the drivers count themselves. The note
    names the reasons, and what the drivers' own counters say of the same time.
    """
    import numpy as np

    if not telemetry.devices:
        return Reading(None, "no GPU telemetry")
    inside = telemetry.inside(window)
    flags = np.stack([c["throttled"][inside] for c in telemetry.devices.values()])
    known = np.asarray(np.isfinite(flags).any(axis=0))
    counted = _counted(telemetry, inside)
    if known.sum() < 2:
        if not counted:
            return Reading(None, "no GPU reports throttling")
        return Reading(max(counted.values()), f"by the drivers' counters: {_shares(counted)}; no reasons are told")
    weight = _weights(telemetry, inside, known)
    any_one = np.nan_to_num(flags[:, known]).max(axis=0)
    if weight.sum() <= 0:
        return Reading(float(any_one.mean()))
    ratio = float((any_one * weight).sum() / weight.sum())
    notes = [_shares(_reasons(telemetry, inside, known, any_one * weight / weight.sum()))]
    notes.append(f"by the drivers' counters: {_shares(counted)}" if counted else "")
    return Reading(ratio, "; ".join(n for n in notes if n) or None)


def _weights(telemetry: Telemetry, inside: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]) -> Floats:
    """Seconds each known tick speaks for: since the one before, but no gap; the first only where it is thinned."""
    import numpy as np

    clock, span = telemetry.clock[inside][known], telemetry.span[inside][known]
    since = np.concatenate((np.where(np.isfinite(span[:1]), span[:1], 0.0), np.diff(clock)))
    plain = since[1:][span[1:] == 0]
    usual = _GAP * float(np.median(plain)) if plain.size else np.inf
    return np.where(span > 0, np.where(since > 0, np.minimum(span, since), 0.0), np.minimum(since, usual))


def _reasons(
    telemetry: Telemetry, inside: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_], share: Floats
) -> dict[str, float]:
    """Share of the time by reason; several may hold at once."""
    import numpy as np

    masks = np.stack([c["throttle"][inside][known] for c in telemetry.devices.values()])
    bits = np.bitwise_or.reduce(np.maximum(masks, 0).astype(np.int64), axis=0)
    found = {r: float(share[(bits & (1 << i)) > 0].sum()) for i, r in enumerate(THROTTLE) if SLOWED & (1 << i)}
    return {reason: value for reason, value in found.items() if value > 0}


def _counted(telemetry: Telemetry, inside: npt.NDArray[np.bool_]) -> dict[str, float]:
    """What the drivers count themselves, of the GPU where it is most: share of the time by reason, {} where none.

    Each share is of the time since the one before, or of a thinned tick's span.
    """
    import numpy as np

    out: dict[str, float] = {}
    for name, reason in _COUNTED.items():
        means = []
        for column in (c[name][inside] for c in telemetry.devices.values()):
            known = np.asarray(np.isfinite(column))
            weight = _weights(telemetry, inside, known)
            if weight.sum() > 0:
                means.append(float(np.average(column[known].astype(np.float64), weights=weight)))
            elif known.any():
                means.append(float(column[known].mean()))
        if means:
            out[reason] = max(means)
    return out


def _shares(found: dict[str, float]) -> str:
    return ", ".join(f"{reason} {100 * v:{'.0f' if v >= 0.1 else '.2g'}} %" for reason, v in found.items())
