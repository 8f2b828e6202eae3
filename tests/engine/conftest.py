"""A duel whose training is a small program of our own, so that the engine's tests take seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

TRAINER = """
import json, os, sys, time
steps, pause, hold = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
fail = os.environ.get("EKVI_TEST_FAIL")
def say(kind, **fields):
    print("@ekvi " + json.dumps({"type": kind, "t": time.time(), "mono": time.monotonic(), **fields}), flush=True)
print("hello from", os.environ["EKVI_RUN"], flush=True)
for step in range(1, steps + 1):
    time.sleep(pause)
    say("iteration", step=step, total=steps, loss=5.0 / step, step_s=pause, tokens=1000, samples=8, lr=1e-3)
    print("noise", step, flush=True)
    if hold and step == 3:
        while not os.path.exists(hold):
            time.sleep(0.01)
try:
    with open(os.path.join(os.environ["EKVI_OUT"], "result.txt"), "w") as f:
        f.write(os.environ["EKVI_RUN"])
except OSError:
    print("no room for the result", flush=True)
if fail and fail in os.environ["EKVI_RUN"]:
    print("ValueError: this run was told to fail", flush=True)
    sys.exit(3)
"""


@dataclass
class Duel:
    """A profile `toy` of the test's own user, its folders, and ways to run the cockpit on it."""

    home: Path
    runs: Path
    work: Path
    env: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ("-m", "cockpit.cli")  # of `start`

    def write(self, *, steps: int = 20, pause: float = 0.002, repeats: int = 3, hold: bool = False) -> None:
        """Write the profile; with `hold` each run waits at step 3 until `release` is called."""
        trainer = self.home / "trainer.py"
        trainer.write_text(TRAINER)
        argv = [sys.executable, str(trainer), str(steps), str(pause), *([str(self.gate)] if hold else [])]
        profile = {
            "defaults": [
                {"model": "tiny"}, {"data": "synthetic"}, {"training": "cpu"}, {"launcher": "process"},
                {"theme": "nord"}, {"pricing": "none"},
                {"server@servers.left": "local"}, {"server@servers.right": "local"}, "_self_",
            ],
            "description": "a toy",
            "stage": "train",
            "repeats": repeats,
            "runner": {"name": "command", "argv": argv},
            "servers": {"left": {"stop_grace_s": 1.0}, "right": {"stop_grace_s": 1.0}},
        }  # fmt: skip
        folder = self.home / "xdg-config" / "ekvi-cockpit" / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "toy.yaml").write_text(json.dumps(profile))

    @property
    def gate(self) -> Path:
        """The file that lets held runs go on."""
        return self.home / "gate"

    def release(self) -> None:
        """Let held runs go on."""
        self.gate.touch()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """The cockpit as a process of its own, as a user starts it."""
        out, err = (self.home / "out.txt").open("wb"), (self.home / "err.txt").open("wb")
        with out, err:
            return subprocess.Popen(
                [sys.executable, *self.program, *words],
                stdout=out, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **self.env},
            )  # fmt: skip

    def call(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """The cockpit, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "cockpit.cli", *words],
            capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
            env={**os.environ, **self.env}, check=False,
        )  # fmt: skip

    @property
    def group(self) -> dict[str, Any]:
        """The newest group's file."""
        paths = sorted((self.runs / "groups").glob("*.json"))
        document: dict[str, Any] = json.loads(paths[-1].read_text())
        return document

    def meta(self, run: str) -> dict[str, Any]:
        """A run's run.json."""
        document: dict[str, Any] = json.loads((self.runs / run / "run.json").read_text())
        return document

    def steps(self, run: str) -> list[int]:
        """The iterations in a run's journal, in their order."""
        events = [json.loads(line) for line in (self.runs / run / "events.jsonl").read_text().splitlines()]
        return [e["step"] for e in events if e["type"] == "iteration"]

    def pids(self, what: str) -> list[int]:
        """Processes of this test's own folder whose command line holds `what`."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(self.home) in line and what in line:
                found.append(process.info["pid"])
        return found


def eventually(what: Callable[[], Any], seconds: float = 30) -> Any:
    """The first true value of `what()`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


@pytest.fixture
def duel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Duel]:
    """A toy duel; what it started and left is ended afterwards."""
    made = Duel(tmp_path, tmp_path / "runs", tmp_path / "work")
    monkeypatch.setenv("EKVI_RUNS_DIR", str(made.runs))
    monkeypatch.setenv("EKVI_WORKDIR", str(made.work))
    made.write()
    yield made
    for pid in made.pids(""):
        if pid != os.getpid():
            with psutil_gone():
                psutil.Process(pid).kill()


class psutil_gone:
    """Nothing to end where a process has ended by itself."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, psutil.Error)
