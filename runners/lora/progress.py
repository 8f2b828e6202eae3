"""How far a training is, as a checkpoint keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Best:
    """The folder with the lowest validation loss; `loss` None where nothing is validated, then it is the newest."""

    folder: str
    step: int
    epoch: float
    loss: float | None


@dataclass
class Progress:
    """`samples` and all tokens are counted over all processes: `tokens` without padding, `padded` with it, `targets`
    what was learnt. `epoch` counts whole epochs, `batch` the micro batches of a rank in the one after them.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    tokens: int = 0
    padded: int = 0
    targets: int = 0
    seconds: float = 0.0  # of all steps
    loss: float | None = None  # of the last step
    validation: float | None = None
    evaluated_at: int = 0  # the step of the last validation
    skipped: int = 0  # steps whose gradient was no number
    reached: bool = False  # the target loss
    best: Best | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> Progress:
        """What `as_json` gave; raises TypeError, KeyError or ValueError for something else."""
        known = {entry.name for entry in fields(cls)}
        best = told.get("best")
        values = {name: value for name, value in told.items() if name in known}
        return cls(**{**values, "best": None if best is None else Best(**best)})
