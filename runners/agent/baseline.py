"""The idle baseline: a run's telemetry is taken for a while before anything of it is started."""

from __future__ import annotations

import os
from typing import Callable, Optional

PATIENCE_S = 5.0  # a source that gives no tick holds a run up no longer than this beside


class Baseline:
    """Counts `idle_s` seconds of ticks. `since` says when the run got its first tick (monotonic), None before.

    `begun` while it lasts.
    """

    def __init__(self, idle_s: float, since: Callable[[], Optional[float]]) -> None:
        self.idle_s = idle_s
        self.begun = False
        self._since = since
        self._from = 0.0

    def holds(self, record: str, now: float) -> bool:
        """Whether a run is not to start yet; `record` is there once something of it was started."""
        if self.idle_s <= 0 or os.path.exists(record):
            self.begun = False
            return False
        if not self.begun:
            self.begun, self._from = True, now
        since = self._since()
        if since is None:
            return now - self._from < self.idle_s + PATIENCE_S
        return now - max(since, self._from) < self.idle_s
