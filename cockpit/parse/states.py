"""The agent's states.jsonl: a run's changes of state."""

from __future__ import annotations

import json
import math
from typing import Any

from cockpit.core.events import State, StateChange


def parse_states(data: bytes) -> list[StateChange]:
    """The changes in whole lines of a states.jsonl, each with its `agent_seq`; what follows the last newline is left.

    A line that cannot be read is left out: an agent that was killed tears one, and tells it again.
    """
    found = []
    for line in data[: data.rfind(b"\n") + 1].split(b"\n"):
        change = _change(line) if line.strip() else None
        if change is not None:
            found.append(change)
    return found


def _change(line: bytes) -> StateChange | None:
    try:
        obj = json.loads(line)
        state = State(obj["state"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return StateChange(
        state=state,
        reason=_text(obj.get("reason")),
        exit_code=_integer(obj.get("exit_code")),
        signal=_integer(obj.get("signal")),
        stage=_text(obj.get("stage")),
        data=obj.get("data") if isinstance(obj.get("data"), dict) else None,
        t=_seconds(obj.get("t")),
        agent_seq=_integer(obj.get("agent_seq")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _seconds(value: Any) -> float | None:
    try:
        return float(value) if type(value) in (int, float) and math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None
