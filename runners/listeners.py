"""Who listens to a training: each is told what happens, and writes it where its readers look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One optimizer step, counted from 1. `loss` is None where it is no number; `tokens` and `samples` are of this
    step over all processes, `seconds` is wall time.
    """

    step: int
    loss: float | None
    seconds: float
    tokens: int
    samples: int
    rate: float
    grad_norm: float | None = None
    extra: Mapping[str, float] = field(default_factory=dict)


class Listener:
    """The base: hears everything and does nothing. Only one process's listeners are told."""

    def started(self, facts: Mapping[str, Any]) -> None:
        """The training is about to begin; `facts` are flat: model, sizes, batches, rates, world."""

    def step(self, step: Step) -> None:
        """A step was made."""

    def evaluating(self, step: int) -> None:
        """A validation begins after `step`."""

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """The validation's mean loss after `step`, over `samples` samples and `tokens` target tokens."""

    def finished(self, status: str) -> None:
        """The training ended: "success", "aborted"."""


class Chorus(Listener):
    """Tells several listeners, in order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = tuple(listeners)

    def started(self, facts: Mapping[str, Any]) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.started(facts)

    def step(self, step: Step) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.step(step)

    def evaluating(self, step: int) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.evaluating(step)

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.evaluated(step, loss, samples, tokens)

    def finished(self, status: str) -> None:
        """Tell all."""
        for listener in self.listeners:
            listener.finished(status)
