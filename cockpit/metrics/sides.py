"""What a comparison sets against each other: sides, each with its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run: its id, summary (ekvi.summary/1), run.json, and its columns (step, loss, tokens) for loss parity."""

    id: str
    summary: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Floats] | None = None

    @property
    def state(self) -> str | None:
        """How the run ended, as run.json or else the summary says."""
        found = self.meta.get("state") or self.summary.get("state")
        return str(found) if found else None

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What made the run: run.json's provenance and what the runner said."""
        return {**(self.meta.get("provenance") or {}), **(self.summary.get("provenance") or {})}

    @property
    def open_ended(self) -> bool:
        """Whether it was imported from a log that does not tell how the run ended."""
        return self.state == "LOST" and "imported" in (self.meta.get("provenance") or {})

    def metric(self, name: str) -> float | None:
        """A metric's value, or None where the run does not know it."""
        value = ((self.summary.get("metrics") or {}).get(name) or {}).get("value")
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def reason(self, name: str) -> str | None:
        """Why a metric has no value, as the summary says."""
        note = ((self.summary.get("metrics") or {}).get(name) or {}).get("note")
        return str(note) if note else None


@dataclass(frozen=True, slots=True)
class Side:
    """A named set of runs of one workload on one server."""

    name: str
    runs: Sequence[RunFacts]

    @property
    def counted(self) -> list[RunFacts]:
        """The runs that succeeded, and imported ones whose end nobody knows; only these speak."""
        return [r for r in self.runs if r.state == "SUCCEEDED" or r.open_ended]

    @property
    def left_out(self) -> list[RunFacts]:
        """Runs that did not succeed."""
        return [r for r in self.runs if r.state != "SUCCEEDED" and not r.open_ended]


def check_sides(sides: Sequence[Side]) -> None:
    """Raise UsageError where there is nothing to compare, a name stands twice, or a run meets itself."""
    if not sides:
        raise UsageError("there is nothing to compare.", hint="Name a group, or two runs.")
    seen: dict[str, str] = {}
    for side in sides:
        if not side.runs:
            raise UsageError(f"side {side.name} has no runs.")
        for run in side.runs:
            if run.id in seen:
                raise UsageError(
                    f"run {run.id} stands on both sides ({seen[run.id]}, {side.name}): "
                    "a comparison of a run with itself says nothing."
                    if seen[run.id] != side.name
                    else f"run {run.id} stands twice on side {side.name}.",
                    hint="Name two different runs, groups or servers.",
                )
            seen[run.id] = side.name
    names = [s.name for s in sides]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"two sides are called {twice!r}.")
