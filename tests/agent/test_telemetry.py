"""Telemetry of a CPU server: /proc and RAPL as they are, None where they are not, gaps where ticks are missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from runners.agent.hostread import CpuSource, Rapl
from runners.agent.telemetry import Sampler
from runners.agent.ticks import PlainTicks
from tests.agent.support import REPO, Desk, until


class Tree:
    """A /proc and a powercap tree that a test sets."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.powercap = root / "powercap"
        self.proc.mkdir()
        self.cpu(1000, 3000)
        (self.proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\n")
        (self.proc / "cpuinfo").write_text("processor : 0\nmodel name : A CPU\n")

    def cpu(self, busy: int, idle: int) -> None:
        """Ticks since boot; half of the idle ones wait for disks, and guests are counted in user already."""
        (self.proc / "stat").write_text(f"cpu  {busy} 0 0 {idle // 2} {idle - idle // 2} 0 0 0 {busy} 0\ncpu0 1 2\n")

    def zone(self, number: int, name: str, uj: int, wrap: int = 1_000_000) -> Path:
        folder = self.powercap / f"intel-rapl:{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(name + "\n")
        (folder / "max_energy_range_uj").write_text(f"{wrap}\n")
        (folder / "energy_uj").write_text(f"{uj}\n")
        return folder

    def source(self) -> CpuSource:
        return CpuSource(str(self.proc), str(self.powercap))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_use_is_a_share_of_the_time_since_the_sample_before(tree: Tree) -> None:
    source = tree.source()
    assert source.sample()["cpu_util"] is None
    tree.cpu(1000 + 30, 3000 + 70)
    assert source.sample()["cpu_util"] == pytest.approx(0.3)
    assert source.sample()["cpu_util"] is None  # no time passed: unknown, not 0


def test_memory_in_use_is_what_no_program_could_get(tree: Tree) -> None:
    sample = tree.source().sample()
    assert (sample["mem_used"], sample["mem_total"]) == (600 * 1024, 1000 * 1024)


def test_energy_sums_the_packages_over_a_wrap_and_leaves_psys_out(tree: Tree) -> None:
    tree.zone(0, "package-0", 999_000)
    tree.zone(1, "package-1", 100)
    tree.zone(2, "psys", 500_000)
    source = tree.source()
    first = source.sample()
    assert (first["energy_src"], first["power_w"]) == ("rapl", None)
    tree.zone(0, "package-0", 1_000)
    tree.zone(1, "package-1", 600)
    second = source.sample()
    assert second["energy_j"] - first["energy_j"] == pytest.approx((2_000 + 500) / 1e6)
    assert second["power_w"] > 0
    assert source.unavailable == {}


def test_power_is_energy_over_time(tree: Tree) -> None:
    tree.zone(0, "package-0", 0, wrap=10**12)
    rapl = Rapl(str(tree.powercap))
    with mock.patch("runners.agent.hostread.time.monotonic", side_effect=[10.0, 12.0]):
        rapl.sample()
        tree.zone(0, "package-0", 300_000_000)
        assert rapl.sample() == (300.0, 150.0)


def test_a_counter_that_cannot_be_read_is_none_for_that_tick_and_loses_nothing(tree: Tree) -> None:
    tree.zone(0, "package-0", 1_000)
    source = tree.source()
    source.sample()
    tree.zone(0, "package-0", 0).joinpath("energy_uj").write_text("oops")
    assert source.sample()["energy_j"] is None
    tree.zone(0, "package-0", 5_000)
    assert source.sample()["energy_j"] == pytest.approx(5_000 / 1e6)


def test_what_is_missing_is_none_and_says_why(tmp_path: Path) -> None:
    source = CpuSource(str(tmp_path / "no"), str(tmp_path / "no"))
    assert set(source.sample().values()) == {None}
    assert set(source.unavailable) == {"cpu_util", "mem_used", "mem_total", "energy_j", "power_w"}
    assert "no RAPL package energy" in source.unavailable["energy_j"]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def _covered(lines: list[dict[str, Any]]) -> list[int]:
    """Every seq that a tick or a gap speaks of, in order."""
    found: list[int] = []
    for line in lines:
        if line["type"] == "tick":
            found.append(line["seq"])
        elif line["type"] == "gap":
            found.extend(range(line["from_seq"], line["to_seq"] + 1))
    return found


# --- the sampler


class SlowSource(CpuSource):
    """A driver that takes its time: `wait_s` a sample, or until `gate` is set."""

    def __init__(self, tree: Tree, wait_s: float) -> None:
        super().__init__(str(tree.proc), str(tree.powercap))
        self.wait_s = wait_s
        self.gate = threading.Event()
        self.entered = threading.Event()

    def sample(self) -> dict[str, Any]:
        self.entered.set()
        self.gate.wait(self.wait_s)
        return super().sample()


def test_ticks_stand_at_absolute_times_however_long_a_sample_takes(tree: Tree, tmp_path: Path) -> None:
    """30 ticks of 15 ms each at 50 Hz: were the wait counted from the end of a sample, 0.45 s would be lost."""
    out = tmp_path / "t.jsonl"
    sampler = Sampler(SlowSource(tree, 0.015), 50.0, "a", PlainTicks)
    sampler.activate({str(out): None})
    sampler.start()
    until(lambda: _covered(_read(out)[1:])[-1:] >= [30], "30 ticks")
    sampler.stop()
    ticks = [line for line in _read(out) if line["type"] == "tick"]
    lasted_s = (ticks[-1]["t_mono_ns"] - ticks[0]["t_mono_ns"]) / 1e9
    assert lasted_s == pytest.approx((ticks[-1]["seq"] - ticks[0]["seq"]) / 50, abs=0.2)


def test_a_driver_that_hangs_holds_nobody_up(tree: Tree, tmp_path: Path) -> None:
    source = SlowSource(tree, 30.0)
    sampler = Sampler(source, 10.0, "a", PlainTicks)
    sampler.activate({str(tmp_path / "a.jsonl"): None})
    sampler.start()
    assert source.entered.wait(10)
    sampler.activate({str(tmp_path / "b.jsonl"): None})
    assert [line["type"] for line in _read(tmp_path / "b.jsonl")] == ["hello"]
    source.gate.set()
    until(lambda: len(_read(tmp_path / "b.jsonl")) >= 3, "ticks for the second")
    sampler.stop()
    assert [line["type"] for line in _read(tmp_path / "a.jsonl")] == ["hello"]


class FailingSource(CpuSource):
    """A machine whose values cannot be read for a while."""

    tries = 0

    def sample(self) -> dict[str, Any]:
        self.tries += 1
        if self.tries <= 5:
            raise RuntimeError("no values")
        return super().sample()


def test_a_failure_is_said_once_and_the_ticks_come_when_it_is_over(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.telemetry.FAILED_S", 0.01)
    out, said = tmp_path / "t.jsonl", list[str]()
    sampler = Sampler(FailingSource(str(tree.proc), str(tree.powercap)), 50.0, "a", PlainTicks, say=said.append)
    sampler.activate({str(out): None})
    sampler.start()
    until(lambda: len(_read(out)) >= 3, "ticks")
    sampler.stop()
    (text,) = said
    assert "no values" in text


# --- the command


def test_sample_writes_at_its_rate_until_it_is_stopped(desk: Desk, tmp_path: Path) -> None:
    out = tmp_path / "ticks.jsonl"
    command = [sys.executable, "-m", "runners.agent", "sample", "--out", str(out), "--hz", "50", "--vendor", "cpu"]
    sampler = subprocess.Popen(command, cwd=REPO)
    try:
        until(lambda: out.exists() and out.read_bytes().count(b'"tick"') >= 10, "ten ticks")
    finally:
        sampler.send_signal(signal.SIGTERM)
        assert sampler.wait(10) == 0
    lines = _read(out)
    hello, ticks = lines[0], [line for line in lines if line["type"] == "tick"]
    assert (hello["schema"], hello["backend"], hello["vendor"], hello["hz"]) == ("ekvi.gpu/1", "cpu", "cpu", 50.0)
    assert hello["devices"] == ticks[0]["devices"] == []
    seqs = _covered(lines)
    assert seqs == list(range(len(seqs)))
    assert all(0 <= tick["host"]["cpu_util"] <= 1 for tick in ticks[1:] if tick["host"]["cpu_util"] is not None)
    assert ticks[-1]["host"]["mem_used"] > 0


def test_sample_ends_by_itself_and_refuses_a_senseless_rate(desk: Desk, tmp_path: Path) -> None:
    out = str(tmp_path / "t.jsonl")
    assert desk.call("sample", "--out", out, "--hz", "20", "--seconds", "0.2").returncode == 0
    assert len(_read(tmp_path / "t.jsonl")) >= 2
    refused = desk.call("sample", "--out", out, "--hz", "0")
    assert refused.returncode == 1
    assert b"--hz must lie in" in refused.stderr


def test_sample_says_what_it_samples_and_refuses_a_file_that_cannot_be(desk: Desk, tmp_path: Path) -> None:
    done = desk.call("sample", "--out", str(tmp_path / "t.jsonl"), "--vendor", "cpu", "--seconds", "0.1")
    assert done.stderr.decode() == "No GPU was looked for: the machine's own values, 2 samples a second\n"
    assert (tmp_path / "t.jsonl").stat().st_mode & 0o777 == 0o600
    out = tmp_path / "missing" / "t.jsonl"
    refused = desk.call("sample", "--out", str(out), "--vendor", "cpu", "--seconds", "0.1")
    assert refused.returncode == 1
    assert refused.stderr.decode() == f"--out {out} cannot be written: No such file or directory.\n"
