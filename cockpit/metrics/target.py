"""Time to target, as a runner timed it: from the start of its first step to the validation that reached the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def minutes(said: Mapping[str, Any] | None, wanted: object) -> tuple[float | None, str]:
    """The minutes, or None, and a note: to what, or why not.

    `said` is the data of the run's `target` diagnostic, `wanted` the loss that its configuration asks for.
    """
    if said is None:
        return None, "no target is configured" if wanted is None else "the run did not come as far as its target"
    goal, last, seconds, after = (_number(said.get(key)) for key in ("target_loss", "loss", "seconds", "samples"))
    name = "the target" if goal is None else f"loss {goal:g}"
    if said.get("reached") is True and said.get("seconds", 0) is None:
        return None, f"{name} was reached, but from a checkpoint on: the time before it is not in this run"
    if said.get("reached") is not True or seconds is None:
        at = "" if last is None else f": the last validation was at {last:.4g}"
        return None, f"{name} was not reached{at}"
    return seconds / 60, f"to {name}" + ("" if after is None else f" after {after:,.0f} samples")


def _number(value: object) -> float | None:
    """A number that can be one of these, whatever a runner printed."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return None
    return float(value)
