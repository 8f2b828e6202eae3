"""The idle baseline: telemetry of a run of which nothing was started; and which GPUs each run gets to see."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from runners.agent.baseline import PATIENCE_S, Baseline
from runners.agent.gpu.watch import Wanted, Watch
from runners.agent.hostread import CpuSource
from runners.agent.telemetry import Sampler
from runners.agent.ticks import PlainTicks
from tests.agent.support import Desk, python, until

IDLE = {"hz": 20.0, "vendor": "cpu", "idle_s": 0.6}


def test_a_run_waits_until_its_idle_ticks_are_taken(desk: Desk) -> None:
    desk.queue({"a": [python("data", "print(1)"), python("train", "print(2)")]}, telemetry=IDLE)
    desk.work_to_end()
    assert desk.names("a") == ["PENDING", "STARTING", "RUNNING", "RUNNING", "SUCCEEDED"]
    begun, running = desk.wait_state("a", "STARTING")["mono"], desk.wait_state("a", "RUNNING")["mono"]
    assert 0.6 <= running - begun < 3.0
    idle = [t for t in desk.ticks("a") if t["type"] == "tick" and t["t_mono_ns"] / 1e9 < running]
    assert idle[-1]["t_mono_ns"] - idle[0]["t_mono_ns"] >= 0.5e9
    second = [line["mono"] for line in desk.states("a") if line["state"] == "RUNNING"][1]
    assert second - running < 0.5, "once a run, not once a stage"


def test_a_stop_while_it_idles_starts_nothing(desk: Desk) -> None:
    desk.queue({"a": [python("train", "print(1)")]}, telemetry={**IDLE, "idle_s": 60})
    agent = desk.work_here()
    desk.wait_state("a", "STARTING")
    until(lambda: any(line["type"] == "tick" for line in desk.ticks("a")), "a tick")
    assert desk.call("stop", str(desk.q)).returncode == 0
    desk.finish(agent)
    assert desk.last("a")["state"] == "CANCELLED"
    assert desk.record("a") is None


def test_an_agent_that_is_killed_while_it_idles_is_taken_over(desk: Desk) -> None:
    desk.queue({"a": [python("train", "print(1)")]}, telemetry=IDLE)
    agent = desk.work_here()
    desk.wait_state("a", "STARTING")
    desk.kill_agent(agent)
    assert desk.record("a") is None
    desk.work_to_end()
    assert desk.names("a") == ["PENDING", "STARTING", "RUNNING", "SUCCEEDED"]
    assert sum(line["type"] == "hello" for line in desk.ticks("a")) in (1, 2)


def test_it_is_counted_in_ticks_but_no_run_waits_for_ever(tmp_path: Path) -> None:
    since: list[float | None] = [None]
    record = tmp_path / "shim.0.json"
    baseline = Baseline(2.0, lambda: since[0])
    assert baseline.holds(str(record), 100.0)
    since[0] = 101.0
    assert baseline.holds(str(record), 102.9)
    assert not baseline.holds(str(record), 103.0)
    silent = Baseline(2.0, lambda: None)
    assert silent.holds(str(record), 100.0)
    assert silent.holds(str(record), 101.9 + PATIENCE_S)
    assert not silent.holds(str(record), 102.0 + PATIENCE_S)
    record.touch()
    assert not Baseline(2.0, lambda: None).holds(str(record), 0.0), "something of it was started already"


def test_a_gpu_server_without_a_driver_trains_and_says_why(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    desk.queue({"a": [python("train", "import time; time.sleep(2)")]}, telemetry={"hz": 10.0, "vendor": "nvidia"})
    desk.work_to_end()
    assert desk.last("a")["state"] == "SUCCEEDED"
    hello = [line for line in desk.ticks("a") if line["type"] == "hello"][-1]
    assert (hello["vendor"], hello["backend"], hello["devices"]) == ("nvidia", "none", [])
    assert [source["name"] for source in hello["sources"]] == ["nvml", "nvidia-smi"]
    assert all(source["text"] and not source["ok"] for source in hello["sources"])


def test_each_run_keeps_its_own_gpus(tmp_path: Path) -> None:
    watch = Watch(Wanted("nvidia", 20.0, source="tests.agent.players:Eight"), lambda text: None)
    sampler = Sampler(CpuSource(), 20.0, "a", PlainTicks, watch=watch)
    wanted: dict[str, Any] = {str(tmp_path / "a"): (0, 2), str(tmp_path / "b"): None}
    sampler.activate(wanted)
    sampler.start()

    def lines(name: str, kind: str) -> list[dict[str, Any]]:
        path = tmp_path / name
        data = path.read_bytes() if path.exists() else b""
        found = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        return [line for line in found if line["type"] == kind]

    until(lambda: len(lines("a", "tick")) >= 5 and len(lines("b", "tick")) >= 5, "ticks")
    begun = sampler.since(str(tmp_path / "a"))
    sampler.stop()
    assert begun is not None
    assert 0 < time.monotonic() - begun < 20
    for name, gpus in (("a", [0, 2]), ("b", list(range(8)))):
        assert [device["index"] for device in lines(name, "hello")[-1]["devices"]] == gpus
        assert all([device["index"] for device in tick["devices"]] == gpus for tick in lines(name, "tick"))


def test_what_was_read_until_a_run_ended_is_its_own_and_no_other_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.gpu.watch.BATCH", 100)  # so that there are always frames that wait
    watch = Watch(Wanted("nvidia", 20.0, source="tests.agent.players:Eight", batch_s=0.9), lambda text: None)
    sampler = Sampler(CpuSource(), 20.0, "a", PlainTicks, watch=watch)

    def stamps(name: str) -> list[int]:
        path = tmp_path / name
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [tick["t_mono_ns"] for tick in map(json.loads, lines) if tick["type"] == "tick"]

    sampler.activate({str(tmp_path / "a"): None})
    sampler.start()
    until(lambda: stamps("a") and time.monotonic_ns() > stamps("a")[-1] + 3e8, "frames that wait")
    switched = time.monotonic_ns()
    sampler.activate({str(tmp_path / "b"): None})
    assert switched - stamps("a")[-1] < 1.5e8, "the first run's last ticks"
    until(lambda: stamps("b") and time.monotonic_ns() > stamps("b")[-1] + 3e8, "frames that wait")
    stopped = time.monotonic_ns()
    sampler.stop()
    assert switched < stamps("b")[0] < stamps("b")[-1] > stopped - 1.5e8
