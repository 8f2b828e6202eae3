"""A work folder with one queue, the real agent as a subprocess, and waiting on what it writes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from cockpit.telemetry.pack import build_agent
from runners.agent import record
from runners.agent.segments import segment_path, segments_of

T = TypeVar("T")
REPO = Path(__file__).parents[2]
DEADLINE_S = 20.0
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "STALLED", "NODE_FAIL"}

# A training stand-in: prints its lines, each once, and waits for its turn on a file between two halves.
COUNT = """
import sys, os, time
n, gate = int(sys.argv[1]), sys.argv[2]
for i in range(n):
    print(f"line {i:06d} " + "x" * 40)
    while gate and i == n // 2 and not os.path.exists(gate):
        time.sleep(0.005)
"""


def until(what: Callable[[], T], why: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of `what`, looked for 100 times a second; an AssertionError after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {why}")
        select.select([], [], [], 0.01)


def pack(path: Path) -> Path:
    """The agent as one file, the way the cockpit packs it."""
    path.write_bytes(build_agent().data)
    return path


def stage(name: str, *argv: str, **more: Any) -> dict[str, Any]:
    """A stage of queue.json."""
    return {"stage": name, "argv": list(argv), **more}


def python(name: str, code: str, *args: str, **more: Any) -> dict[str, Any]:
    """A stage that runs a small Python program, without waiting for the site packages."""
    return stage(name, sys.executable, "-S", "-c", code, *args, **more)


class Desk:
    """WORK with one queue; `agents` are the processes that this test started."""

    def __init__(self, work: Path, command: list[str] | None = None) -> None:
        self.work = work
        self.q = work / "groups" / "g1.k1"
        self.command = command or [sys.executable, "-m", "runners.agent"]
        self.agents: list[subprocess.Popen[bytes]] = []

    def queue(self, runs: dict[str, list[dict[str, Any]]], **more: Any) -> Desk:
        """Write queue.json: stages by run."""
        self.q.mkdir(parents=True, exist_ok=True)
        body = {
            "schema": "ekvi.queue/1",
            "group": "g1",
            "key": "k1",
            "slot": "default",
            "slots": 1,
            "cooldown_s": 0.0,
            "code": None,
            "telemetry": {"hz": 20.0},
            "runs": [{"run": run, "server": "left", "env": {}, "stages": stages} for run, stages in runs.items()],
            **more,
        }
        (self.q / "queue.json").write_text(json.dumps(body))
        return self

    def call(self, *words: str, timeout: float = DEADLINE_S) -> subprocess.CompletedProcess[bytes]:
        """Run one command of the agent to its end."""
        return subprocess.run([*self.command, *words], cwd=REPO, capture_output=True, timeout=timeout, check=False)

    def work_here(self) -> subprocess.Popen[bytes]:
        """An agent in the foreground, so that the test can wait for it and kill it."""
        agent = subprocess.Popen(
            [*self.command, "work", str(self.q)], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.agents.append(agent)
        return agent

    def finish(self, agent: subprocess.Popen[bytes], deadline_s: float = DEADLINE_S) -> None:
        """Wait until an agent has done its queue."""
        out, err = agent.communicate(timeout=deadline_s)
        assert agent.returncode == 0, (out + err).decode()

    def work_to_end(self) -> None:
        """One agent, from start to end."""
        self.finish(self.work_here())

    def kill_agent(self, agent: subprocess.Popen[bytes]) -> None:
        """kill -9."""
        agent.kill()
        agent.communicate(timeout=DEADLINE_S)

    def run_dir(self, run: str) -> Path:
        return self.q / "runs" / run

    def states(self, run: str) -> list[dict[str, Any]]:
        """The whole lines of states.jsonl; every one must be JSON."""
        try:
            data = (self.run_dir(run) / "states.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def names(self, run: str) -> list[str]:
        return [line["state"] for line in self.states(run)]

    def last(self, run: str) -> dict[str, Any]:
        return self.states(run)[-1]

    def wait_state(self, run: str, state: str) -> dict[str, Any]:
        """The first line with this state."""
        found = until(
            lambda: [line for line in self.states(run) if line["state"] == state], f"{run} {state}: {self.log()}"
        )
        return found[0]

    def wait_ended(self, run: str) -> dict[str, Any]:
        until(lambda: self.states(run) and self.last(run)["state"] in ENDED, f"{run} ends: {self.names(run)}")
        return self.last(run)

    def spool(self, run: str) -> bytes:
        try:
            return (self.run_dir(run) / "spool.log").read_bytes()
        except FileNotFoundError:
            return b""

    def record(self, run: str, index: int = 0) -> dict[str, Any] | None:
        return record.read(str(self.run_dir(run) / f"shim.{index}.json"))

    def ticks(self, run: str) -> list[dict[str, Any]]:
        """The lines of all segments of a run's telemetry, in order, but for those that name segments."""
        folder = str(self.run_dir(run))
        texts = [Path(segment_path(folder, first)).read_bytes() for first in segments_of(folder)]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        return [line for line in lines if line["type"] not in ("segment", ["tick"])]

    def log(self) -> str:
        try:
            return (self.q / "agent.log").read_text()
        except FileNotFoundError:
            return ""

    def marked(self) -> list[psutil.Process]:
        """Every process that this desk's runs or agents left."""
        found = []
        for p in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if p.pid == os.getpid() or p.status() == psutil.STATUS_ZOMBIE:
                    continue
                out = p.environ().get("EKVI_OUT", "")
                if str(self.work) in " ".join(p.cmdline()) or out.startswith(str(self.work)):
                    found.append(p)
        return found

    def close(self) -> None:
        """End what a failing test left."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
            agent.communicate()
        for p in self.marked():
            with contextlib.suppress(psutil.Error):
                p.send_signal(signal.SIGKILL)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def numbered(lines: list[dict[str, Any]]) -> bool:
    """Whether agent_seq counts from 0 without holes."""
    return [line["agent_seq"] for line in lines] == list(range(len(lines)))


@contextlib.contextmanager
def desk_at(work: Path, command: list[str] | None = None) -> Iterator[Desk]:
    desk = Desk(work, command)
    try:
        yield desk
    finally:
        desk.close()
