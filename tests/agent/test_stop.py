"""What ends a run before its time: stop, timeout, stall, kill -9. Nothing of it is left running."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.agent.support import Desk, gone, numbered, python, stage, until

FOREVER = "import time\nprint('up')\nwhile True: time.sleep(0.01)"
# Ignores TERM, and so does its child, which holds the pipe too.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
who = "child" if os.fork() == 0 else "parent"
sys.stdout.write(f"{who} {os.getpid()}\\n")  # one write: print would make several, and both print at once
while True: time.sleep(0.01)
"""
# The main process dies of TERM at once; its child saves for a while and says so.
SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(float(sys.argv[1]))
    print("saved")
    os._exit(0)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, save)
    print("up")
while True: time.sleep(0.01)
"""
# A worker in a session of its own, as torchrun makes them, that ignores TERM.
RUNAWAY = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("worker", os.getpid())
while True: time.sleep(0.01)
"""


def _pids(desk: Desk, run: str) -> list[int]:
    return [int(line.split()[1]) for line in desk.spool(run).splitlines()]


def test_stop_of_one_run_leaves_the_others(desk: Desk) -> None:
    desk.queue({run: [python("train", FOREVER)] for run in ("a", "b")} | {"c": [python("train", "print('c')")]})
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    assert desk.call("stop", str(desk.q), "--run", "a").returncode == 0
    end = desk.wait_ended("a")
    assert (end["state"], end["signal"], end["exit_code"]) == ("CANCELLED", signal.SIGTERM, None)
    assert desk.names("a")[-2:] == ["STOPPING", "CANCELLED"]
    desk.wait_state("b", "RUNNING")
    desk.call("stop", str(desk.q), "--run", "b")
    desk.finish(agent)
    assert desk.last("b")["state"] == "CANCELLED"
    assert desk.last("c")["state"] == "SUCCEEDED"
    refused = desk.call("stop", str(desk.q), "--run", "x")
    assert refused.returncode == 1
    assert b"has no run x; its runs are a, b, c" in refused.stderr


@pytest.mark.parametrize("how", ["control", "SIGTERM", "SIGINT"])
def test_stop_of_all_cancels_what_runs_and_what_waits(desk: Desk, how: str) -> None:
    desk.queue({"a": [python("train", FOREVER)], "b": [python("train", FOREVER)]})
    agent = desk.work_here()
    until(lambda: b"up" in desk.spool("a"), "a is up")
    if how == "control":
        desk.call("stop", str(desk.q))
    else:
        agent.send_signal(signal.Signals[how])
    desk.finish(agent)
    assert desk.names("a") == ["PENDING", "STARTING", "RUNNING", "STOPPING", "CANCELLED"]
    assert desk.names("b") == ["PENDING", "CANCELLED"]
    assert how == "control" or how in desk.last("b")["reason"]
    assert not desk.marked()


def test_what_ignores_term_is_killed_after_the_grace_with_its_children(desk: Desk) -> None:
    desk.queue({"a": [python("train", STUBBORN, stop_grace_s=0.3)]})
    agent = desk.work_here()
    until(lambda: desk.spool("a").count(b"\n") == 2, "both are up")
    pids = _pids(desk, "a")
    desk.call("stop", str(desk.q))
    desk.finish(agent)
    stopping, end = desk.states("a")[-2:]
    assert (end["state"], end["signal"]) == ("CANCELLED", signal.SIGKILL)
    assert end["mono"] - stopping["mono"] >= 0.3
    assert all(gone(pid) for pid in pids)


def test_a_child_has_the_grace_too_and_its_last_words_are_kept(desk: Desk) -> None:
    """The main process is gone at once; its child may save longer than output is drained otherwise."""
    desk.queue({"a": [python("train", SAVES, "3.5", stop_grace_s=15.0)]})
    agent = desk.work_here()
    until(lambda: b"up" in desk.spool("a"), "the child is up")
    desk.call("stop", str(desk.q))
    desk.finish(agent)
    assert desk.spool("a") == b"up\nsaved\n"
    assert desk.last("a")["state"] == "CANCELLED"


def test_a_worker_in_a_session_of_its_own_ends_with_the_run(desk: Desk) -> None:
    desk.queue({"a": [python("train", RUNAWAY, stop_grace_s=0.2)]})
    agent = desk.work_here()
    until(lambda: b"\n" in desk.spool("a"), "the worker is up")
    (pid,) = _pids(desk, "a")
    desk.call("stop", str(desk.q))
    desk.finish(agent)
    assert gone(pid)


def test_timeout(desk: Desk) -> None:
    desk.queue({"a": [python("train", FOREVER, timeout_s=0.5)], "b": [python("train", "print('b')")]})
    desk.work_to_end()
    end = desk.last("a")
    assert end["state"] == "TIMEOUT"
    assert end["reason"] == "stage train passed its timeout of 0.5 s"
    assert end["mono"] - desk.wait_state("a", "RUNNING")["mono"] >= 0.5
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_a_stalled_run_says_its_last_line_and_what_it_waits_in(desk: Desk) -> None:
    desk.queue({"a": [python("train", "import time\nprint('step 7')\ntime.sleep(600)", stall_after_s=0.5)]})
    desk.work_to_end()
    end = desk.last("a")
    assert desk.names("a")[-2:] == ["STOPPING", "STALLED"]
    assert end["reason"] == "stage train printed nothing for 0.5 s; the last line was: step 7"
    pid = str(desk.record("a")["child_pid"])  # type: ignore[index]
    assert list(end["data"]["wchan"]) == [pid]
    assert end["data"]["wchan"][pid].startswith("S ")
    assert end["data"]["tail"] == ["step 7"]


def test_silence_from_the_start_is_a_stall_too(desk: Desk) -> None:
    desk.queue({"a": [stage("train", "sleep", "600", stall_after_s=0.4)]})
    desk.work_to_end()
    assert desk.last("a")["state"] == "STALLED"
    assert desk.last("a")["reason"] == "stage train printed nothing for 0.4 s"


def test_what_prints_does_not_stall(desk: Desk) -> None:
    noise = "import time\nfor i in range(12): print('.', end=''); time.sleep(0.1)"
    desk.queue({"a": [python("train", noise, stall_after_s=0.7)]})
    desk.work_to_end()
    assert desk.last("a")["state"] == "SUCCEEDED"


def test_kill_9_of_the_training_fails_it_alone(desk: Desk) -> None:
    desk.queue({"a": [python("train", FOREVER)], "b": [python("train", "print('b')")]})
    agent = desk.work_here()
    until(lambda: b"up" in desk.spool("a"), "a is up")
    record = desk.record("a")
    assert record is not None
    psutil.Process(record["child_pid"]).kill()
    desk.finish(agent)
    end = desk.last("a")
    assert (end["state"], end["exit_code"], end["signal"]) == ("FAILED", None, 9)
    assert "signal 9 (SIGKILL" in end["reason"]
    assert end["data"]["tail"] == ["up"]
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_a_daemon_that_holds_the_pipe_does_not_hold_the_queue(desk: Desk) -> None:
    daemon = RUNAWAY.replace("while True", "else:\n    raise SystemExit(0)\nwhile True")
    desk.queue({"a": [python("train", daemon)], "b": [python("train", "print('b')")]})
    begun = time.monotonic()
    desk.work_to_end()
    assert time.monotonic() - begun < 10
    (pid,) = _pids(desk, "a")
    assert gone(pid)
    assert desk.last("a")["state"] == "SUCCEEDED"
    assert desk.last("a")["mono"] - desk.wait_state("a", "RUNNING")["mono"] < 2, (
        "the wait for the pipe is not the run's"
    )
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_stop_is_obeyed_when_no_agent_lives(desk: Desk) -> None:
    desk.queue({"a": [python("train", FOREVER)], "b": [python("train", FOREVER)]})
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    desk.kill_agent(agent)
    assert desk.call("stop", str(desk.q)).returncode == 0
    assert desk.wait_ended("a")["state"] == "CANCELLED"
    assert desk.wait_ended("b")["state"] == "CANCELLED"
    until(lambda: not desk.marked(), "nothing is left")


def test_a_stop_begun_by_a_killed_agent_is_carried_through(desk: Desk) -> None:
    desk.queue({"a": [python("train", STUBBORN, stop_grace_s=2.0)]})
    agent = desk.work_here()
    until(lambda: desk.spool("a").count(b"\n") == 2, "both are up")
    agent.send_signal(signal.SIGTERM)  # leaves no control file behind
    desk.wait_state("a", "STOPPING")
    desk.kill_agent(agent)
    desk.work_to_end()
    assert desk.names("a")[-2:] == ["STOPPING", "CANCELLED"]
    assert "SIGTERM" in desk.last("a")["reason"]
    assert numbered(desk.states("a"))


def test_the_shim_answers_no_polite_signal(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = "import os, sys, time\nprint('up')\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('end')"
    desk.queue({"a": [python("train", code, str(gate))]})
    agent = desk.work_here()
    until(lambda: b"up" in desk.spool("a"), "a is up")
    record = desk.record("a")
    assert record is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        psutil.Process(record["pid"]).send_signal(number)
    gate.touch()
    desk.finish(agent)
    assert desk.spool("a") == b"up\nend\n"
    assert desk.last("a")["state"] == "SUCCEEDED"
