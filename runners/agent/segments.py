"""The segments of one run's telemetry on disk, and their bound."""

from __future__ import annotations

import os
import re
from typing import List

SEGMENT_BY = 2 << 20
_NAME = re.compile(r"telemetry\.(0|[1-9]\d{0,17})\.jsonl")


def segment_path(run_dir: str, first_seq: int) -> str:
    """Where the segment that begins with `first_seq` lies."""
    return os.path.join(run_dir, "telemetry.%d.jsonl" % first_seq)


def segments_of(run_dir: str) -> List[int]:
    """The first numbers of the segments in a folder, in order."""
    try:
        names = os.listdir(run_dir)
    except FileNotFoundError:
        return []
    return sorted(int(match.group(1)) for match in map(_NAME.fullmatch, names) if match)


class Keeper:
    """Keeps the closed segments of `run_dir` within `keep_by` bytes, the open one counted as full."""

    def __init__(self, run_dir: str, keep_by: int, segment_by: int, background: bool) -> None:
        self.run_dir = run_dir

    def begin(self, closed: List[int]) -> None:
        """What the agent before left."""

    def add(self, first_seq: int, size: int) -> None:
        """A segment was closed."""

    def close(self) -> None:
        """End the thread."""
