"""Turns: a slot is a file whose flock the training run's shim holds, across all queues of one WORK folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from .base import try_lock

INFO_BY = 512


class Slot:
    """A slot that is ours until `free`. The lock lives as long as any process holds `fd` open."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def tell(self, info: dict[str, Any]) -> None:
        """Write who holds it, for the waiting; what cannot be written is not missed."""
        data = json.dumps(info, separators=(",", ":")).encode()
        if len(data) < INFO_BY:
            with contextlib.suppress(OSError):
                os.pwrite(self.fd, data.ljust(INFO_BY - 1) + b"\n", 0)

    def free(self) -> None:
        """Note when the slot became free, from where the next one's cool-down counts, and let go."""
        self.tell({"ended": time.time()})
        os.close(self.fd)

    def give_back(self) -> None:
        """Let go of a slot in which nothing ran: the next one's cool-down counts from where it did."""
        os.close(self.fd)

    def rest_s(self, cooldown_s: float, run: str) -> float:
        """Seconds that the slot is to lie idle before `run`; the whole cool-down where the last end is unknown.

        None for a run's next stage, also where another agent started the stage before.
        """
        info = read_info(self.path)
        if not info or info.get("run") == run:
            return 0.0
        ended = info.get("ended")
        past = time.time() - ended if isinstance(ended, (int, float)) else 0.0
        return max(0.0, cooldown_s - max(past, 0.0))


def read_info(path: str) -> dict[str, Any]:
    """Who holds a slot, or since when it is free; empty where nobody ever said."""
    try:
        with open(path, "rb") as f:
            info = json.loads(f.read(INFO_BY) or b"{}")
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def take(work: str, name: str, count: int) -> tuple[Slot | None, str]:
    """A free slot, or None and who holds them all, in words. Raises OSError."""
    folder = os.path.join(work, "slots")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    holders = []
    for i in range(count):
        path = os.path.join(folder, "%s.%d.lock" % (name, i))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(fd):
            return Slot(fd, path), ""
        os.close(fd)
        info = read_info(path)
        who = "run %s of group %s" % (info["run"], info.get("group")) if info.get("run") else "a run that did not say"
        holders.append(who)
    return None, "waits for slot %s, held by %s" % (name, " and ".join(holders))
