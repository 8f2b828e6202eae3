"""states.jsonl of one run: numbered without holes over every life of the agent."""

from __future__ import annotations

import time
from typing import Any

from .files import LineFile, read_whole_lines

PENDING, STARTING, RUNNING, STOPPING = "PENDING", "STARTING", "RUNNING", "STOPPING"
SUCCEEDED, FAILED, CANCELLED = "SUCCEEDED", "FAILED", "CANCELLED"
TIMEOUT, STALLED, NODE_FAIL = "TIMEOUT", "STALLED", "NODE_FAIL"
ENDED = frozenset((SUCCEEDED, FAILED, CANCELLED, TIMEOUT, STALLED, NODE_FAIL))


class StateLog:
    """The state changes of one run. `last` is the newest, written or waiting for room; `seen` its (state, stage)s."""

    def __init__(self, path: str) -> None:
        self.file = LineFile(path)
        self.flush()  # cuts a torn line before it is read
        lines = [line for line in read_whole_lines(path) if _is_state(line)]
        self.next_seq: int = lines[-1]["agent_seq"] + 1 if lines else 0
        self.last: dict[str, Any] | None = lines[-1] if lines else None
        self.seen = {(line.get("state"), line.get("stage")) for line in lines}

    @property
    def state(self) -> str | None:
        """The newest state, or None before the first."""
        return self.last["state"] if self.last else None

    @property
    def reason(self) -> str | None:
        """The newest reason, or None."""
        return self.last["reason"] if self.last else None

    @property
    def waiting(self) -> bool:
        """Whether a line waits for room on the disk."""
        return bool(self.file.pending)

    def add(
        self,
        state: str,
        reason: str | None = None,
        *,
        stage: str | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        data: dict[str, Any] | None = None,
        t: float | None = None,
        mono: float | None = None,
    ) -> None:
        """Note a state; `t` (wall, seconds) and `mono` are now where it is not told when it happened."""
        line = {
            "agent_seq": self.next_seq,
            "t": time.time() if t is None else t,
            "mono": time.monotonic() if mono is None else mono,
            "state": state,
            "reason": reason,
            "exit_code": exit_code,
            "signal": signal,
            "stage": stage,
            "data": data or {},
        }
        self.next_seq += 1
        self.last = line
        self.seen.add((state, stage))
        self.file.append(line)
        self.flush()

    def flush(self) -> bool:
        """Write what waits; False where there is no room still. Nothing is held open: a queue may have many runs."""
        written = self.file.flush(sync=True)
        if written:
            self.file.close()
        return written


def _is_state(line: dict[str, Any]) -> bool:
    """Whether a line is one of ours: what a damaged disk made of one is passed over."""
    return (
        isinstance(line.get("agent_seq"), int)
        and isinstance(line.get("state"), str)
        and "reason" in line
        and isinstance(line.get("data", {}), dict)
    )
