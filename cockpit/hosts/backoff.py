"""Pauses between tries: full jitter, so that twenty cut connections do not come back in one beat."""

from __future__ import annotations

import random


class Backoff:
    """Pauses in seconds, each anywhere between 0 and a ceiling that doubles from `first` to `most`."""

    def __init__(self, first: float = 0.5, most: float = 30.0) -> None:
        self._first = first
        self._most = most
        self._ceiling = first

    def next(self) -> float:
        """The next pause; the ceiling of the one after it is twice as high."""
        pause = random.uniform(0, self._ceiling)  # noqa: S311  spreads tries, guards nothing
        self._ceiling = min(self._ceiling * 2, self._most)
        return pause

    def reset(self) -> None:
        """Begin anew: what was tried has worked."""
        self._ceiling = self._first
