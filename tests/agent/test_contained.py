"""What the agent does about an engine that hangs, refuses or is not there: only the engine itself is a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from runners.agent import engine, procs
from runners.agent.engine import Answer
from tests.agent.support import Desk, python, stage

# Hangs, with a child of its own, at the commands that it is told to hang at.
HANGS = """
import os, sys, time
if any(word in sys.argv for word in os.environ["HANG_AT"].split()):
    while True: time.sleep(0.05)
sys.stderr.write(os.environ.get("SAYS", "Error: No such container: x") + "\\n")
sys.exit(1)
"""


def _contained(desk: Desk, **more: Any) -> dict[str, Any]:
    desk.work.mkdir(exist_ok=True)
    program = desk.work / "engine.py"
    program.write_text(HANGS)
    words = [sys.executable, "-S", str(program), "create", "image"]
    return stage("train", *words, container={"engine": "docker", "name": "ekvi-x"}, **more)


@pytest.mark.parametrize("hang_at", ["inspect ps", "create ps"])
def test_an_engine_that_hangs_stops_no_timeout_and_no_other_slot(
    desk: Desk, hang_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG_AT", hang_at)
    spin = "import time\nfor i in range(20): print(i); time.sleep(0.02)"
    desk.queue({"a": [_contained(desk, timeout_s=0.5, stop_grace_s=0.0)], "b": [python("train", spin)]}, slots=2)
    agent = desk.work_here()
    assert desk.wait_ended("b")["state"] == "SUCCEEDED"
    desk.wait_state("a", "STOPPING")
    assert desk.last("b")["mono"] - desk.wait_state("b", "RUNNING")["mono"] < 5
    assert len(desk.ticks("a")) > 5
    assert agent.poll() is None
    assert "passed its timeout of 0.5 s" in desk.last("a")["reason"]


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("permission denied while trying to connect to the socket", "permission denied while trying"),
        ("Error: No such container: x", "the container could not be made: No such container: x"),
    ],
)
def test_a_refusal_is_told_in_its_words(desk: Desk, says: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANG_AT", "nothing")
    monkeypatch.setenv("SAYS", says)
    desk.queue({"a": [_contained(desk)], "b": [python("train", "print('b')")]})
    desk.work_to_end()
    end = desk.last("a")
    assert (end["state"], end["exit_code"]) == ("FAILED", 125)
    assert words in end["reason"]
    assert "RUNNING" not in desk.names("a")
    assert says.encode() in desk.spool("a")
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_an_engine_that_is_not_there_is_one_sentence(desk: Desk) -> None:
    words = ["no-such-engine", "create", "image"]
    desk.queue({"a": [stage("train", *words, container={"engine": "docker", "name": "ekvi-x"})]})
    desk.work_to_end()
    reason = "the container could not be made: no-such-engine cannot be started: No such file or directory"
    assert reason in desk.last("a")["reason"]


def test_a_containers_processes_are_known_by_their_control_group(tmp_path: Path) -> None:
    made = "0123456789abcdef" * 4
    for pid, group in ((7, f"0::/docker/{made}"), (8, "0::/user.slice"), (9, f"4:memory:/x/libpod-{made}/sub")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(group + "\n")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python3) S 1 {pid} {pid} 0 -1" + " 0" * 40)
    assert sorted(p.pid for p in procs.of_container(made, str(tmp_path))) == [7, 9]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T03:17:21Z", 1795231041.0),
        ("2026-11-21T03:17:21.5Z", 1795231041.5),
        ("2026-11-21 04:17:21.5 +0100 CET", 1795231041.5),
        ("2026-11-21T01:47:21-01:30", 1795231041.0),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
    ],
)
def test_times_of_both_engines(text: str | None, seconds: float | None) -> None:
    assert engine._epoch(text) == seconds


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "Error response from daemon: No such image: x:1\n\nRun 'docker create --help' for more information",
            "No such image: x:1",
        ),
        ("Error response from daemon: no device\nError: failed to start containers: abc", "no device"),
        ("WARNING: swap limit is not supported\nError: boom.", "boom"),
        ("", "exit status 125"),
    ],
)
def test_the_complaint_is_one_line(said: str, why: str) -> None:
    assert Answer(125, "", said).why == why
