"""Telemetry on a disk that others fill: ticks stop, nothing is damaged, and what is missing is said afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runners.agent.segments import segment_path, segments_of
from runners.agent.spool import MARGIN_BY
from runners.agent.ticks import AWAY, NO_SPACE, TickFile

pytestmark = pytest.mark.hosts

S = 1_000_000_000
HELLO: dict[str, Any] = {"type": "hello", "agent_id": "a", "boot_id": "b", "hz": 10.0}


class Small:
    """A run's folder on a disk of 4 MiB, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at_s = 1000.0
        self.energy_j = 0.0

    def now(self) -> tuple[int, int]:
        return round(self.at_s * S), round((1e9 + self.at_s) * S)

    def open(self, keep_by: int = 256 << 20) -> TickFile:
        return TickFile(str(self.folder), HELLO, 10.0, keep_by, now=self.now, background=False)

    def tick(self, file: TickFile, count: int) -> None:
        for _ in range(count):
            self.at_s += 0.1
            self.energy_j += 30.0
            device = b'{"index":0,"power_w":300.0,"energy_j":%.1f,"energy_at":%d}' % (self.energy_j, self.now()[0])
            file.tick(*self.now(), 0, {0: device}, None)

    def free(self) -> int:
        v = os.statvfs(self.folder)
        return v.f_bavail * v.f_frsize

    def fill(self, leave: int) -> Path:
        path = self.folder.parent / "filler"
        path.write_bytes(b"\1" * max(self.free() - leave, 0))
        return path

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for first in segments_of(str(self.folder)):
            raw = Path(segment_path(str(self.folder), first)).read_bytes()
            assert raw.endswith(b"\n")
            found += [json.loads(line) for line in raw.splitlines()]
        return found


def _whole(lines: list[dict[str, Any]]) -> tuple[int, int]:
    spans: list[tuple[int, int]] = []
    for x in lines:
        if x["type"] in ("tick", "gap"):
            last = x["seq"] if x["type"] == "tick" else x["to_seq"]
            spans.append((x.get("from_seq", last), last))
    assert all(b[0] == a[1] + 1 for a, b in pairwise(spans))
    return spans[0][0], spans[-1][1]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], check=True, timeout=20)
    try:
        (mount / "run").mkdir()
        yield Small(mount / "run")
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True, timeout=20)


def test_ticks_stop_before_what_is_left_for_states_and_go_on_with_a_gap(small: Small) -> None:
    file = small.open()
    small.tick(file, 10)
    filler = small.fill(leave=MARGIN_BY // 2)
    small.tick(file, 500)
    for _ in range(1000):
        file.line({"type": "err", "code": "failed"})
    assert small.free() >= MARGIN_BY // 4
    filler.unlink()
    small.tick(file, 10)
    file.close()
    lines = small.lines()
    assert _whole(lines) == (0, 519)
    assert [x for x in lines if x["type"] == "gap"] == [
        {"type": "gap", "from_seq": 10, "to_seq": 509, "reason": NO_SPACE}
    ]
    ticks = [x["devices"][0] for x in lines if x["type"] == "tick"]
    assert ticks[-1]["energy_j"] - ticks[0]["energy_j"] == pytest.approx(30.0 * 519)


def test_with_no_byte_left_a_line_waits_whole_and_the_end_is_said_when_room_comes(small: Small) -> None:
    file = small.open()
    small.tick(file, 3)
    filler = small.fill(leave=0)
    with filler.open("ab") as more:
        while small.free():
            more.write(b"\1" * 4096)
            more.flush()
    file.hello({**HELLO, "backend": "other", "pad": "x" * 8000})
    small.tick(file, 100)
    small.lines()  # every line is whole
    filler.unlink()  # the agent gives its ballast up before it writes how the run ended
    file.close()
    lines = small.lines()
    assert _whole(lines) == (0, 102)
    assert lines[-2]["backend"] == "other"


def test_an_agent_that_begins_on_a_full_disk_and_one_that_comes_after_it(small: Small) -> None:
    filler = small.fill(leave=0)
    first = small.open()
    small.tick(first, 20)
    small.at_s += 60.0  # killed, nothing is closed
    filler.unlink()
    second = small.open()
    small.tick(second, 5)
    second.close()
    lines = small.lines()
    assert [x["type"] for x in lines[:2]] == ["segment", "hello"]
    assert lines[0]["first_seq"] == 0
    assert _whole(lines)[1] >= 4


def test_thinning_that_finds_no_room_leaves_the_segment_and_is_tried_again(small: Small) -> None:
    file = small.open(keep_by=400_000)
    while len(segments_of(str(small.folder))) < 6:
        small.tick(file, 1)
    filler = small.fill(leave=MARGIN_BY + 20_000)  # ticks fit, another segment does not
    before = small.lines()
    small.tick(file, 2000)
    assert small.lines()[: len(before)] == before
    filler.unlink()
    small.tick(file, 4000)
    file.close()
    lines = small.lines()
    assert not list(small.folder.glob("*.tmp"))
    assert sum(p.stat().st_size for p in small.folder.iterdir()) <= 400_000
    assert _whole(lines)[0] == 0
    assert {x["reason"] for x in lines if x["type"] == "gap"} <= {NO_SPACE, AWAY}
