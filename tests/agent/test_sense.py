"""Sources that hang, vanish, crash, print and flood: the stream goes on, and says what happened."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.agent.gpu import frames, watch
from tests.agent.support import REPO, gone, until

Line = dict[str, Any]


class Player:
    """`sample` with a source of tests/agent/players.py, which files in `play` turn while it runs."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "ticks.jsonl"
        self.play = folder / "play"
        self.play.mkdir()
        self.words = folder / "words"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, source: str, *words: str, hz: float = 20.0) -> Player:
        command = [sys.executable, "-m", "runners.agent", "sample", "--out", str(self.out), "--vendor", "nvidia"]
        command += ["--hz", str(hz), "--source", f"tests.agent.players:{source}", *words]
        env = {**os.environ, "EKVI_PLAY": str(self.play), "EKVI_RUN": "g.left.r1"}
        with self.words.open("ab") as err:
            self.process = subprocess.Popen(command, cwd=REPO, stderr=err, env=env)
        return self

    def ask(self, name: str) -> None:
        (self.play / name).touch()

    def let(self, name: str) -> None:
        (self.play / name).unlink()

    def lines(self, kind: str | None = None) -> list[Line]:
        data = self.out.read_bytes() if self.out.exists() else b""
        found = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        return [line for line in found if kind in (None, line["type"])]

    def errs(self, code: str) -> list[Line]:
        return [line for line in self.lines("err") if line["code"] == code]

    def wait(self, what: Callable[[], Any], why: str) -> Any:
        return until(what, f"{why}: {[line for line in self.lines() if line['type'] != 'tick']} {self.said()}")

    def wait_ticks(self, more: int, *, stale: bool = False) -> list[Line]:
        """So many further ticks that hold a reading, or say how stale it is."""
        begun = len(self.lines("tick"))

        def found() -> list[Line] | None:
            ticks = [
                t for t in self.lines("tick")[begun:] if t["devices"] and ("stale_s" in t["devices"][0]) == stale
            ]
            return ticks if len(ticks) >= more else None

        ticks: list[Line] = self.wait(found, f"{more} ticks")
        return ticks

    def said(self) -> str:
        return self.words.read_text()

    def child(self) -> psutil.Process | None:
        assert self.process is not None
        found = [p for p in psutil.Process(self.process.pid).children() if "gpu.sense" in " ".join(p.cmdline())]
        return found[0] if found else None

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(15) == 0


@pytest.fixture
def player(tmp_path: Path) -> Iterator[Player]:
    found = Player(tmp_path)
    try:
        yield found
    finally:
        found.end()
        if found.process is not None and found.process.poll() is None:
            found.process.kill()


def _numbered(lines: list[Line]) -> bool:
    """Whether every number from 0 on is a tick's or a gap's, once and in order."""
    seqs: list[int] = []
    for line in lines:
        if line["type"] == "tick":
            seqs.append(line["seq"])
        elif line["type"] == "gap":
            seqs.extend(range(line["from_seq"], line["to_seq"] + 1))
    return seqs == list(range(len(seqs)))


def test_a_source_fills_ticks_and_the_hello(player: Player) -> None:
    player.start("Well", "--gpus", "1").wait_ticks(25)
    player.end()
    hello, ticks = player.lines("hello")[0], player.lines("tick")
    assert (hello["backend"], hello["vendor"], hello["hz"]) == ("well", "nvidia", 20.0)
    assert [device["index"] for device in hello["devices"]] == [1]
    assert hello["devices"][0]["unavailable"] == {"temp_mem_c": ["not_supported", "it has no such sensor"]}
    assert hello["sources"] == [{"name": "Well", "ok": True, "version": "1.0", "code": None, "text": None}]
    device = ticks[5]["devices"][0]
    assert (device["index"], device["util"], device["power_w"], device["clk_sm_mhz"]) == (1, 0.5, 101.0, None)
    told = {key for tick in ticks for key in tick["devices"][0]}
    assert {"sm_active", "energy_j", "energy_at", "mem_total", "procs"} <= told
    first = next(tick["devices"][0] for tick in ticks if "procs" in tick["devices"][0])
    process = first["procs"][0]
    assert (process["mem"], process["run"]) == (5, "g.left.r1")
    assert process["name"].startswith("python")
    host = [tick["t_mono_ns"] for tick in ticks if "host" in tick]
    assert all(b - a >= 0.4e9 for a, b in itertools.pairwise(host)), "at most twice a second"
    assert _numbered(player.lines())


def test_ticks_stand_on_the_grid_and_energy_once_a_second(player: Player) -> None:
    player.start("LateEnergy").wait_ticks(45)
    player.end()
    ticks = player.lines("tick")
    offsets = [tick["t_mono_ns"] - tick["seq"] * 50_000_000 for tick in ticks]
    assert max(offsets) - min(offsets) < 50_000_000, "each at its own grid point"
    counters = [t["devices"][0] for t in ticks if "energy_j" in t["devices"][0]]
    assert 2 <= len(counters) <= 4
    moments = [one["energy_at"] for one in counters]
    assert all(0.9e9 < b - a < 1.1e9 for a, b in itertools.pairwise(moments))


def test_a_source_that_is_slow_to_ask_is_asked_less_often(player: Player) -> None:
    ticks = player.start("Slow").wait_ticks(4)
    assert player.lines("hello")[-1]["hz"] == 2.0
    assert all(0.4e9 < b["t_mono_ns"] - a["t_mono_ns"] < 0.6e9 for a, b in itertools.pairwise(ticks))


def test_a_driver_that_blocks_is_stale_and_then_recovered(player: Player) -> None:
    player.start("Well").wait_ticks(5)
    player.ask("block")
    stale = player.wait_ticks(60, stale=True)  # 3 s
    player.let("block")
    player.wait(lambda: player.errs("recovered"), "it recovers")
    player.wait_ticks(10)
    player.end()
    assert all(tick["devices"][0]["power_w"] is None for tick in stale)
    assert stale[0]["devices"][1]["index"] == 1
    assert 1.0 <= stale[0]["devices"][0]["stale_s"] < 2.0 < stale[-1]["devices"][0]["stale_s"]
    assert len(player.errs("blocked")) == len(player.errs("recovered")) == 1
    assert any(line["reason"] == "late" for line in player.lines("gap")), "the second in which it was awaited"
    assert _numbered(player.lines())


def test_a_gpu_that_is_gone_is_opened_again(player: Player) -> None:
    player.start("Well").wait_ticks(5)
    player.ask("gone")
    lost = player.wait(lambda: player.errs("gone"), "it is gone")
    assert "fell off the bus" in lost[0]["text"]
    player.wait_ticks(5, stale=True)
    player.let("gone")
    player.wait(lambda: player.errs("recovered"), "it is back")
    player.wait_ticks(5)
    player.end()
    assert _numbered(player.lines())


def test_a_driver_that_crashes_is_started_again(player: Player) -> None:
    player.start("Well").wait_ticks(5)
    player.ask("segfault")
    ended = player.wait(lambda: player.errs("ended"), "it ends")
    assert "signal 11 (SIGSEGV)" in ended[0]["text"]
    player.let("segfault")
    player.wait(lambda: player.errs("recovered"), "it is back")
    player.wait_ticks(5)


def test_one_that_crashes_three_times_is_left_out(player: Player) -> None:
    player.start("Dies")
    player.wait(lambda: len(player.errs("ended")) >= 3, "three ends")
    assert "left out" in player.errs("ended")[2]["text"]
    hello = player.wait(lambda: [h for h in player.lines("hello") if h["sources"]], "a hello without it")[-1]
    assert (hello["backend"], hello["devices"], hello["sources"][0]["ok"]) == ("none", [], False)
    assert "again and again" in hello["sources"][0]["text"]
    before = len(player.lines("tick"))
    player.wait(lambda: len(player.lines("tick")) > before + 2, "ticks of the machine alone")
    assert "host" in player.lines("tick")[-1]


def test_one_that_does_not_open_says_why(player: Player) -> None:
    player.start("Broken")
    hello = player.wait(lambda: player.lines("hello"), "a hello")[0]
    assert hello["sources"][0]["text"] == "AttributeError: undefined symbol: amdsmi_get_gpu_vram_info"
    assert hello["backend"] == "none"


def test_no_such_class_is_no_end_of_the_agent(player: Player) -> None:
    player.start("Nowhere")
    hello = player.wait(lambda: player.lines("hello"), "a hello")[0]
    assert "cannot be imported" in hello["sources"][0]["text"]


def test_what_is_printed_goes_to_the_log_as_far_as_it_fits(player: Player) -> None:
    player.start("Floods", hz=50.0).wait_ticks(100)
    player.end()
    assert "players were imported" in player.said()
    assert "no more of it is kept" in player.said()
    assert len(player.said()) < 64 << 10
    assert _numbered(player.lines())
    events = player.errs("event")
    assert 10 <= len(events) < 200
    assert events[0]["event"] == "xid"
    assert any("lines were left out" in line["text"] for line in player.lines("err"))


def test_a_killed_agent_leaves_no_process_even_in_a_driver(player: Player) -> None:
    player.start("Well").wait_ticks(3)
    player.ask("block")
    player.wait_ticks(1, stale=True)
    child = player.child()
    assert child is not None
    assert player.process is not None
    player.process.kill()
    player.process.wait(10)
    until(lambda: gone(child.pid), "the child ends")


def test_the_agent_ends_its_child(player: Player) -> None:
    player.start("Well").wait_ticks(3)
    child = player.child()
    assert child is not None
    player.end()
    assert gone(child.pid)


def test_a_machine_without_gpus_has_no_child(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    command = [sys.executable, "-m", "runners.agent", "sample", "--out", str(out), "--vendor", "cpu"]
    with subprocess.Popen(command, cwd=REPO) as process:
        until(lambda: out.exists() and b'"tick"' in out.read_bytes(), "a tick")
        assert psutil.Process(process.pid).children() == []
        process.send_signal(signal.SIGTERM)


def test_a_child_that_says_nothing_is_killed_and_another_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a driver in a call without end: the child is stopped, and what is 30 s otherwise is 2."""
    monkeypatch.setattr(watch, "KILL_S", 2.0)
    said: list[str] = []
    watched = watch.Watch(watch.Wanted("nvidia", 20.0, source="tests.agent.players:Well"), said.append)
    found: list[frames.Frame] = []

    def step() -> bool:
        ready = select.select(watched.fds(), [], [], 0.02)[0]
        found.extend(watched.step(tuple(ready)))
        return any(isinstance(frame, frames.Tick) for frame in found)

    watched.start(time.monotonic_ns())
    try:
        until(step, "ticks")
        child = next(p for p in psutil.Process().children() if "gpu.sense" in " ".join(p.cmdline()))
        child.suspend()
        until(lambda: step() and any("process is killed" in text for text in said), f"it is killed: {said}")
        until(lambda: step() and any("answers again" in text for text in said), f"another one answers: {said}")
        assert gone(child.pid)
    finally:
        watched.stop()
    codes = [frame.line["code"] for frame in found if isinstance(frame, frames.Err)]
    assert codes == ["blocked", "ended", "recovered"]
