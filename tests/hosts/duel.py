"""A user who runs the cockpit against the two machines: folders, profiles, and the command line as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.hosts.machines import HOME, Machine, Machines, Many

T = TypeVar("T")
BASE = "ekvi-test/training:1"
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "STALLED", "NODE_FAIL", "PREEMPTED"}


def eventually(what: Callable[[], T | None], seconds: float, why: str | Callable[[], str]) -> T:
    """The first true value of `what()`; AssertionError that says `why` after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"after {seconds:g} s: {why if isinstance(why, str) else why()}"
        time.sleep(0.05)
    return found


@dataclass
class User:
    """Someone with a home of their own, who runs the cockpit as a process."""

    home: Path
    machines: Machines
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        """Where runs are kept."""
        return self.home / "runs"

    @property
    def env(self) -> dict[str, str]:
        """The environment of the cockpit: nothing of whoever runs the tests."""
        own = {f"XDG_{n}_HOME": str(self.home / f"xdg-{n.lower()}") for n in ("CONFIG", "DATA", "STATE", "CACHE")}
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "COVERAGE_PROCESS_START")}
        return {**kept, **own, "HOME": str(self.home), "EKVI_RUNS_DIR": str(self.runs)}

    def write_profile(self, name: str, profile: dict[str, Any]) -> None:
        """Write a profile into the user's folder; `ssh` of a server that has none leads to the machines."""
        for server in profile["servers"].values():
            server.setdefault("ssh", {"config": str(self.machines.ssh_config), "keepalive_s": 1.0})
        folder = self.home / "xdg-config" / "ekvi-cockpit" / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(json.dumps(profile))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """The cockpit as a process; what it says goes to `said()`."""
        with (self.home / "out.txt").open("ab") as out, (self.home / "err.txt").open("ab") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "cockpit.cli", *words],
                stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=self.env,
            )  # fmt: skip
        self.started.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9."""
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def said(self) -> str:
        """The last that the started processes said on stderr."""
        file = self.home / "err.txt"
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    def call(self, *words: str, timeout: float = 60, rc: int | None = 0) -> subprocess.CompletedProcess[str]:
        """The cockpit, to its end; AssertionError with its words where it exits otherwise than `rc`."""
        done = subprocess.run(
            [sys.executable, "-m", "cockpit.cli", *words],
            capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, env=self.env, check=False,
        )  # fmt: skip
        assert rc is None or done.returncode == rc, (
            f"{' '.join(words)}: {done.returncode}\n{done.stderr}\n{done.stdout}"
        )
        return done

    def json(self, *words: str, **how: Any) -> Any:
        """What a command prints as one JSON document."""
        return json.loads(self.call(*words, "--output", "json", **how).stdout)

    @property
    def group(self) -> dict[str, Any] | None:
        """The newest group's file, None before there is one."""
        paths = sorted((self.runs / "groups").glob("*.json"), key=lambda p: p.stat().st_mtime)
        return dict(json.loads(paths[-1].read_text())) if paths else None

    def meta(self, run: str) -> dict[str, Any]:
        """A run's run.json."""
        return dict(json.loads((self.runs / run / "run.json").read_text()))

    def metas(self) -> list[dict[str, Any]]:
        """Each run's run.json, sorted by its id."""
        return [json.loads(p.read_text()) for p in sorted(self.runs.glob("*/run.json"))]

    def events(self, run: str, kind: str) -> list[dict[str, Any]]:
        """A run's journal of one kind; whole lines only, since it may be written to."""
        file = self.runs / run / "events.jsonl"
        text = file.read_text() if file.exists() else ""
        events = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [e for e in events if e["type"] == kind]

    def states(self, run: str) -> list[str]:
        """The states in a run's journal."""
        return [e["state"] for e in self.events(run, "state")]

    def steps(self, run: str) -> list[int]:
        """The iterations in a run's journal, in their order."""
        return [e["step"] for e in self.events(run, "iteration")]


@contextmanager
def user(home: Path, machines: Machines) -> Iterator[User]:
    """Someone new; the processes that they started are ended."""
    someone = User(home, machines)
    try:
        yield someone
    finally:
        for process in someone.started:
            if process.poll() is None:
                process.kill()
            process.wait(10)


def queues(machine: Machine) -> list[Path]:
    """The queue folders on a machine, as they are seen from here."""
    return sorted(machine.home.glob(".local/state/ekvi-cockpit/*/groups/*"))


def spool(machine: Machine, run: str) -> Path | None:
    """A run's raw output on its machine."""
    found = [p for q in queues(machine) if (p := q / "runs" / run / "spool.log").exists()]
    return found[0] if found else None


def agents_ended(machine: Machine) -> bool:
    """Whether no agent lives there any more."""
    found = machine.exec("pgrep", "-f", "agent-[0-9a-f]*.pyz", check=False)
    return found.returncode != 0


def duel_profile(**changes: Any) -> dict[str, Any]:
    """The duel of both machines: a million parameters on the CPU, in a container each, with the vendors' flags."""
    profile: dict[str, Any] = {
        "defaults": [
            {"model": "tiny"}, {"data": "pydoc"}, {"training": "cpu"}, {"runner": "megatron"},
            {"launcher": "container"}, {"theme": "nord"}, {"pricing": "none"}, "_self_",
        ],
        "description": "two test machines, trained on their CPUs",
        "repeats": 3,
        "stall_after_s": 120,
        "data": {"samples": 40},
        "training": {"train_iters": 20, "sequence_length": 64, "global_batch": 4, "micro_batch": 2},
        "launcher": {"base_image": BASE, "ulimits": {"memlock": None, "stack": None}},
        "servers": {
            "cuda-host": {"address": "cuda-host", "vendor": "nvidia", "training": "cpu"},
            "rocm-host": {"address": "rocm-host", "vendor": "amd", "training": "cpu"},
        },
    }  # fmt: skip
    return {**profile, **changes}


def twenty_profile(many: Many) -> dict[str, Any]:
    """A run on each of many servers, which says where it is and waits until there is a file `gate` at home."""
    program = f"echo on $WHERE; while [ ! -e {HOME}/gate ]; do sleep 0.2; done; echo done"
    return {
        "defaults": [
            {"model": "tiny"}, {"data": "synthetic"}, {"training": "cpu"}, {"launcher": "process"},
            {"theme": "nord"}, {"pricing": "none"}, "_self_",
        ],
        "stage": "train",
        "repeats": 1,
        "runner": {"name": "command", "argv": ["sh", "-c", program]},
        "servers": {
            name: {"address": name, "training": "cpu", "workdir": str(HOME / name), "env": {"WHERE": address}}
            for name, address in zip(many.names, many.addresses, strict=True)
        },
    }  # fmt: skip
