"""The sampler over a long time: no tick late in ten minutes, and memory that stays what it was over a day's ticks."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.agent.support import REPO, pack, until
from tests.fakes.library import environment
from tests.fakes.nvml import FakeNvml, build_nvml

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

REAL_S = 600.0
DAY = 24 * 3600 * 10  # ticks at 10 Hz
GROWTH_BY = 2 << 20


@contextmanager
def _agent(
    command: list[str], env: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """The agent, and both of its processes once the second one is there."""
    with subprocess.Popen(command, cwd=REPO, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            both = psutil.Process(process.pid)
            until(both.children, "the process that asks the GPUs")
            yield process, [both, *both.children()]
        finally:
            process.terminate()


def test_eight_gpus_for_ten_minutes_none_late(tmp_path: Path) -> None:
    """The packed agent, the real binding, a library with eight GPUs."""
    (tmp_path / "fake").mkdir()
    driver = FakeNvml(tmp_path / "fake", build_nvml(tmp_path), gpus=8)
    out = tmp_path / "ticks.jsonl"
    command = [sys.executable, str(pack(tmp_path / "agent.pyz")), "sample", "--out", str(out), "--vendor", "nvidia"]
    with _agent(command, {**os.environ, **environment(driver.program)}) as (process, both):
        until(lambda: out.exists() and out.read_bytes().count(b'"tick"') > 50, "ticks")
        begun, before = time.monotonic(), sum(p.cpu_times().user + p.cpu_times().system for p in both)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(REAL_S)
        cpu = sum(p.cpu_times().user + p.cpu_times().system for p in both) - before
        share = cpu / (time.monotonic() - begun)
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [line for line in lines if line["type"] in ("gap", "err")] == []
    assert sum(line["type"] == "tick" for line in lines) >= REAL_S * 10
    assert share < 0.01, f"{share:.2%} of a core"


def test_memory_is_flat_over_a_day_of_ticks() -> None:
    """At a hundred times the rate; a tick that comes late there is counted, and no matter."""
    words = ["stream", "--vendor", "nvidia", "--hz", "1000", "--source", "tests.agent.players:Fast"]
    sizes: list[list[int]] = []
    seq, tail = 0, b""
    with _agent([sys.executable, "-m", "runners.agent", *words]) as (process, both):
        assert process.stdout is not None
        while seq < DAY:
            assert select.select([process.stdout], [], [], 30)[0], f"nothing comes after tick {seq}"
            tail = (tail + os.read(process.stdout.fileno(), 1 << 20))[-8192:]
            found = re.findall(rb'"type":"tick","seq":(\d+)', tail)
            seq = int(found[-1]) if found else seq
            if seq > DAY * (len(sizes) + 1) // 10:
                sizes.append([p.memory_info().rss for p in both])
    first, last = sizes[0], sizes[-1]
    assert all(b - a < GROWTH_BY for a, b in zip(first, last, strict=True)), sizes
