"""A run's segments: their chain, their bound, what a restart and a kill leave, and the energy of a whole day."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.agent import segments, ticks
from runners.agent.segments import Keeper, segment_path, segments_of
from runners.agent.ticks import AWAY, LATE, NO_SPACE, PlainTicks, TickFile
from tests.agent.support import REPO, until

S = 1_000_000_000
HELLO: dict[str, Any] = {"type": "hello", "agent_id": "a", "boot_id": "b1", "hz": 10.0}


class Clock:
    """Both clocks of a machine, as far as a test lets them go."""

    def __init__(self, mono_s: float = 1000.0, wall_s: float = 1e9) -> None:
        self.mono_s, self.wall_s = mono_s, wall_s

    def __call__(self) -> tuple[int, int]:
        return round(self.mono_s * S), round(self.wall_s * S)

    def past(self, seconds: float) -> None:
        self.mono_s += seconds
        self.wall_s += seconds


class Bench:
    """A run's folder, a clock, and a GPU of 300 W whose counter is read once a second."""

    def __init__(self, folder: Path, hz: float = 10.0, keep_by: int = ticks.KEEP_BY) -> None:
        self.folder, self.hz, self.keep_by = folder, hz, keep_by
        self.clock = Clock()
        self.energy_j = 5_000.0
        self.taken = 0

    def open(self, hello: dict[str, Any] = HELLO, background: bool = False) -> TickFile:
        return TickFile(str(self.folder), hello, self.hz, self.keep_by, now=self.clock, background=background)

    def tick(self, file: TickFile, late: int = 0) -> None:
        self.clock.past((late + 1) / self.hz)
        self.energy_j += 300.0 * (late + 1) / self.hz
        mono, wall = self.clock()
        device = '{"index":0,"util":0.5,"power_w":300.0,"throttle":[]'
        if self.taken % max(1, round(self.hz)) == 0:
            device += f',"energy_j":{self.energy_j:.3f},"energy_at":{mono}'
        self.taken += 1
        file.tick(mono, wall, late, {0: device.encode() + b"}"}, None)

    def lines(self) -> list[dict[str, Any]]:
        return [line for first in segments_of(str(self.folder)) for line in self.segment(first)]

    def segment(self, first: int) -> list[dict[str, Any]]:
        return [json.loads(raw) for raw in Path(segment_path(str(self.folder), first)).read_bytes().splitlines()]

    def size(self) -> int:
        return sum(entry.stat().st_size for entry in os.scandir(self.folder))


def _spans(lines: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    for line in lines:
        if line["type"] == "tick":
            yield line.get("from_seq", line["seq"]), line["seq"]
        elif line["type"] == "gap":
            yield line["from_seq"], line["to_seq"]


def _without_holes(lines: list[dict[str, Any]]) -> tuple[int, int]:
    """The first and the last number, each between them being spoken of once."""
    spans = list(_spans(lines))
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans)), spans
    return spans[0][0], spans[-1][1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_devices_are_written_as_they_come_and_the_machine_only_where_it_was_read(bench: Bench) -> None:
    file = bench.open()
    file.tick(1, 2, 0, {3: b'{"index":3,"util":1e-1}', 0: b'{"index":0,"util":null}'}, {"cpu_util": 0.5})
    file.tick(3, 4, 0, {}, None)
    file.close()
    raw = (bench.folder / "telemetry.0.jsonl").read_bytes().splitlines()
    assert raw[2] == (
        b'{"type":"tick","seq":0,"t_mono_ns":1,"t_wall_ns":2,"devices":[{"index":0,"util":null},'
        b'{"index":3,"util":1e-1}],"host":{"cpu_util":0.5}}'
    )
    assert raw[3] == b'{"type":"tick","seq":1,"t_mono_ns":3,"t_wall_ns":4,"devices":[]}'


def test_late_ticks_are_counted_and_a_changed_source_says_hello_again(bench: Bench) -> None:
    file = bench.open()
    bench.tick(file, late=3)  # before the first there is nothing to be late for
    bench.tick(file, late=3)
    file.hello({**HELLO, "backend": "nvidia-smi"})
    file.line({"type": "err", "code": "gone"})
    file.close()
    lines = bench.lines()
    assert [line["type"] for line in lines] == ["segment", "hello", "tick", "gap", "tick", "hello", "err"]
    assert lines[3] == {"type": "gap", "from_seq": 1, "to_seq": 3, "reason": LATE}
    assert lines[5]["backend"] == "nvidia-smi"


def test_each_segment_names_itself_says_hello_and_leads_to_the_next(bench: Bench) -> None:
    bench.keep_by = 64_000
    file = bench.open()
    file.hello({**HELLO, "backend": "later"})
    for _ in range(200):
        bench.tick(file)
    file.close()
    firsts = segments_of(str(bench.folder))
    assert len(firsts) > 2
    for first, following in pairwise(firsts):
        lines = bench.segment(first)
        assert lines[0] == {"type": "segment", "first_seq": first}
        assert lines[-1] == {"type": "segment", "first_seq": following}
        assert lines[1]["type"] == "hello"
        assert next(_spans(lines))[0] == first
    assert bench.segment(firsts[-1])[1]["backend"] == "later"
    assert _without_holes(bench.lines()) == (0, 199)


def test_a_new_agent_goes_on_counting_and_says_how_long_nobody_sampled(bench: Bench) -> None:
    file = bench.open()
    for _ in range(5):
        bench.tick(file)
    path = Path(segment_path(str(bench.folder), 0))
    path.write_bytes(path.read_bytes() + b'{"type":"tick","se')  # it was killed while it wrote
    bench.clock.past(2.05)
    bench.clock.wall_s += 5_000  # somebody set the clock; the machine did not boot
    again = bench.open({**HELLO, "agent_id": "c"})
    bench.tick(again)
    again.close()
    lines = bench.lines()
    assert [line for line in lines if line["type"] == "gap"] == [
        {"type": "gap", "from_seq": 5, "to_seq": 23, "reason": AWAY}
    ]
    assert _without_holes(lines) == (0, 24)


def test_after_a_reboot_the_wall_clock_says_how_long(bench: Bench) -> None:
    file = bench.open()
    bench.tick(file)
    file.close()
    bench.clock.mono_s = 12.0
    bench.clock.wall_s += 60.0
    again = bench.open({**HELLO, "boot_id": "b2"})
    bench.tick(again)
    again.close()
    assert _without_holes(bench.lines()) == (0, 600)


@pytest.mark.parametrize("cut", ["after closing", "before hello", "in the head", "empty"])
def test_a_kill_while_one_segment_gives_way_to_the_next_loses_no_number(bench: Bench, cut: str) -> None:
    bench.keep_by = 64_000
    file = bench.open()
    while len(firsts := segments_of(str(bench.folder))) < 2:
        bench.tick(file)
    last = Path(segment_path(str(bench.folder), firsts[-1]))
    if cut == "after closing":
        last.unlink()
    else:
        head = last.read_bytes().splitlines(keepends=True)[0]
        last.write_bytes({"before hello": head, "in the head": head[:7], "empty": b""}[cut])
    again = bench.open({**HELLO, "agent_id": "c"})
    bench.tick(again)
    again.close()
    assert segments_of(str(bench.folder)) == firsts
    assert bench.segment(firsts[-1])[0] == {"type": "segment", "first_seq": firsts[-1]}
    assert _without_holes(bench.lines())[1] >= firsts[-1]


def test_errors_alone_cannot_fill_the_disk(bench: Bench) -> None:
    bench.keep_by = 64_000
    file = bench.open()
    bench.tick(file)
    for _ in range(2000):
        file.line({"type": "err", "code": "failed", "text": "x" * 50})
    bench.tick(file)
    file.close()
    assert bench.size() < bench.keep_by
    assert _without_holes(bench.lines()) == (0, 1)


def test_a_single_file_has_no_segments_and_is_continued(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(2):
        file = PlainTicks(str(tmp_path / "t.jsonl"), HELLO, 10.0, now=clock)
        file.tick(*clock(), 0, {}, {"cpu_util": None})
        file.close()
        clock.past(1.0)
    lines = [json.loads(raw) for raw in (tmp_path / "t.jsonl").read_bytes().splitlines()]
    assert [line["type"] for line in lines] == ["hello", "tick", "hello", "gap", "tick"]
    assert _without_holes(lines)[0] == 0


# --- bounded on disk


def _energy(lines: list[dict[str, Any]]) -> float:
    """What the counter says from its first to its last reading."""
    readings = []
    for line in lines:
        for device in line.get("devices", ()):
            if "energy_j" in device:
                readings.append(device.get("first", device)["energy_j"])
                readings.append(device["energy_j"])
    assert readings == sorted(readings)
    return float(readings[-1] - readings[0])


def test_a_day_without_a_reader_stays_within_its_bound_and_keeps_its_energy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hz=0.5, keep_by=1_000_000)
    file = bench.open()
    largest, memory = 0, []
    for i in range(43_200):
        bench.tick(file)
        if i % 1000 == 0:
            largest = max(largest, bench.size())
            memory.append(psutil.Process().memory_info().rss)
    file.close()
    lines = bench.lines()
    assert largest <= bench.keep_by
    assert memory[-1] - memory[10] < 2 << 20
    assert _without_holes(lines) == (0, 43_199)
    assert sum(line.get("n", 1) for line in lines if line["type"] == "tick") == 43_200
    assert _energy(lines) == pytest.approx(300.0 * 2 * 43_199)
    means = [d["power_w"] for line in lines for d in line.get("devices", ())]
    assert set(means) == {300.0}


def test_the_oldest_of_the_least_thinned_goes_first_and_the_last_segment_is_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hz=10.0, keep_by=160_000)
    file = bench.open()
    seen: list[list[int]] = []
    for _ in range(20_000):
        bench.tick(file)
    file.close()
    firsts = segments_of(str(tmp_path))
    seen = [[bench.segment(first)[0].get("every_s", 0)] for first in firsts]
    levels = [level for (level,) in seen]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] == 60
    assert levels[-1] == 0
    _without_holes(bench.lines())


def test_what_cannot_be_thinned_any_more_is_removed_and_its_numbers_are_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hz=0.001, keep_by=40_000)
    file = bench.open()
    for _ in range(1000):
        bench.tick(file)
    file.close()
    first, last = _without_holes(bench.lines())
    assert first > 0
    assert last == 999
    assert bench.size() <= bench.keep_by


def test_thinning_goes_on_where_the_agent_before_was_killed_at_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hz=10.0, keep_by=160_000)
    file = bench.open()
    for _ in range(3000):
        bench.tick(file)
    levels = {first: bench.segment(first)[0].get("every_s") for first in segments_of(str(tmp_path))}
    (tmp_path / "telemetry.0.jsonl.tmp").write_bytes(b'{"type":"segment","first_seq":0,"every_s":1}\n{"ty')
    again = bench.open({**HELLO, "agent_id": "c"})
    for _ in range(3000):
        bench.tick(again)
    again.close()
    assert not list(tmp_path.glob("*.tmp"))
    assert levels[0] == 1
    assert bench.segment(0)[0]["every_s"] >= 1
    assert bench.size() <= bench.keep_by
    assert _without_holes(bench.lines())[0] == 0


def test_a_segment_that_the_disk_damaged_does_not_stand_in_the_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hz=10.0, keep_by=160_000)
    file = bench.open()
    while len(segments_of(str(tmp_path))) < 3:
        bench.tick(file)
    path = Path(segment_path(str(tmp_path), 0))
    path.write_bytes(os.urandom(path.stat().st_size))
    for _ in range(5000):
        bench.tick(file)
    file.close()
    assert bench.size() <= bench.keep_by


def test_ticks_do_not_wait_for_thinning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waiting = threading.Event(), threading.Event()

    def stuck(*args: Any) -> int:
        waiting.set()
        assert gate.wait(20)
        return whole(*args)

    whole: Callable[..., int] = Keeper._rewrite
    monkeypatch.setattr(segments.Keeper, "_rewrite", stuck)
    bench = Bench(tmp_path, hz=10.0, keep_by=160_000)
    file = bench.open(background=True)
    while not waiting.is_set():
        bench.tick(file)
        assert bench.size() < 10 * bench.keep_by
    had = bench.taken
    for _ in range(100):
        bench.tick(file)
    gate.set()
    until(lambda: any(bench.segment(0)[0].get("every_s") for _ in "x"), "the oldest is thinned")
    file.close()
    assert bench.taken == had + 100
    assert _without_holes(bench.lines()) == (0, bench.taken - 1)


# --- kill -9

_WRITER = """
import sys, time
from runners.agent.ticks import TickFile
file = TickFile(sys.argv[1], {"type": "hello", "agent_id": "a", "boot_id": "b"}, 1000.0, keep_by=200_000)
while True:
    mono, wall = time.monotonic_ns(), time.time_ns()
    device = b'{"index":0,"util":0.5,"uuid":"%s","energy_j":%d,"energy_at":%d}' % (b"x" * 900, mono // 1000, mono)
    file.tick(mono, wall, 0, {0: device}, None)
    time.sleep(0.0005)
"""


def test_a_killed_agent_leaves_segments_that_can_be_read_and_no_number_is_lost(tmp_path: Path) -> None:
    for turn in range(6):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], cwd=REPO)
        try:
            known = segments_of(str(tmp_path))
            until(lambda: len(set(segments_of(str(tmp_path))).difference(known)) > 8, "segments")  # noqa: B023
            time.sleep(0.003 * turn)  # wherever it is by then: the kill may fall anywhere
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(20)
    file = TickFile(str(tmp_path), HELLO, 1000.0, keep_by=200_000)
    file.tick(time.monotonic_ns(), time.time_ns(), 0, {}, None)
    file.close()
    lines: list[dict[str, Any]] = []
    for first in segments_of(str(tmp_path)):
        lines += [json.loads(raw) for raw in Path(segment_path(str(tmp_path), first)).read_bytes().splitlines()]
    assert _without_holes(lines)[0] == 0
    assert {line["reason"] for line in lines if line["type"] == "gap"} <= {AWAY, LATE}
    assert any(line.get("n", 1) > 1 for line in lines)
    stamps = [line["t_mono_ns"] for line in lines if line["type"] == "tick"]
    assert _energy(lines) * 1000 == pytest.approx(stamps[-2] - stamps[0], rel=0.05)
    assert NO_SPACE not in json.dumps(lines)
