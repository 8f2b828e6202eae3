"""What the tests of the NVML source share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from runners.agent.gpu.nvml_hot import SHARE_S
from tests.fakes.nvml import FakeNvml
from tests.gpu.driven import Driven

WATTS = 433.0
LIMIT_S = 30

Drive = Callable[[FakeNvml], Driven]


def opened(drive: Drive, fake: FakeNvml) -> Driven:
    """The source of a driver, open."""
    driven = drive(fake)
    driven.ask("open")
    return driven


def rates(driven: Driven, pause_s: float = SHARE_S + 0.01) -> list[dict[str, Any]]:
    """The slow reading over two samples."""
    driven.ask("slow")
    time.sleep(pause_s)  # nearer to each other GPM and the counters of throttling say nothing
    found = driven.ask("slow")
    assert isinstance(found, list)
    return found
