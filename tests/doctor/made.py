"""Looks and servers made by hand."""

from __future__ import annotations

from typing import Any

from cockpit.core.records import ServerSpec
from cockpit.hosts.look import Look


def look(**changes: Any) -> Look:
    """A healthy machine, but for `changes`."""
    values: dict[str, Any] = {
        "user": "anna", "at": "/srv", "left_by": 10**12, "refused": None, "there": (), "nvidia": True, "kfd": True,
        "kfd_open": True, "renders": 8, "shm_by": 10**11, "memory_by": 10**12, "free_by": 10**12, "load": 0.1,
        "cores": 64, "busy": (),
    }  # fmt: skip
    return Look(**(values | changes))


def server(**changes: Any) -> ServerSpec:
    """A server named a."""
    return ServerSpec(**({"name": "a"} | changes))
