"""The agent may be killed at any moment: nothing is lost, done twice or damaged, and another one goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from runners.agent import record
from runners.agent.base import is_locked
from tests.agent.support import COUNT, Desk, gone, numbered, python, stage, until

STEP_COUNT = 4
# Prints in bursts, notes each start, and goes on only when the file named by its line exists.
STEPS = """
import os, sys, time
out, gates, n = os.environ["EKVI_OUT"], sys.argv[1], int(sys.argv[2])
with open(out + "/starts", "a") as f: f.write("started\\n")
for i in range(n):
    for j in range(40):
        print(f"line {i * 40 + j:06d} " + "x" * 50)
    while not os.path.exists(f"{gates}/{i}"):
        time.sleep(0.003)
"""


def _expected(n: int) -> bytes:
    return b"".join(b"line %06d %s\n" % (i, b"x" * 50) for i in range(n))


def _events(desk: Desk, run: str, gates: Path) -> Iterator[tuple[str, Callable[[], bool]]]:
    """What a run's files show one after the other. Its gates are opened while no agent lives."""

    def told(state: str) -> bool:
        return state in desk.names(run)

    def reached(*phases: str) -> bool:
        return (desk.record(run) or {"phase": None})["phase"] in phases

    def printed(lines: int) -> bool:
        return desk.spool(run).count(b"\n") == lines

    yield "PENDING", partial(told, "PENDING")
    yield "STARTING", partial(told, "STARTING")
    yield "a new record", partial(reached, "new", "starting", "running")
    yield "a shim", partial(reached, "starting", "running")
    yield "a process", partial(reached, "running")
    yield "RUNNING", partial(told, "RUNNING")
    for step in range(STEP_COUNT):
        yield f"step {step}", partial(printed, 40 * (step + 1))
        (gates / str(step)).touch()
    yield "the end", partial(reached, "ended")
    yield "SUCCEEDED", partial(told, "SUCCEEDED")


def _took(desk: Desk, agent: subprocess.Popen[bytes]) -> bool:
    """Whether an agent has the queue, or has already ended what was left of it."""
    return is_locked(str(desk.q / "agent.lock")) or agent.poll() is not None


def test_an_agent_killed_at_every_event_loses_and_repeats_nothing(packed: Desk, tmp_path: Path) -> None:
    gates = {run: tmp_path / run for run in ("a", "b")}
    for folder in gates.values():
        folder.mkdir()
    packed.queue({run: [python("train", STEPS, str(gates[run]), str(STEP_COUNT))] for run in gates})
    kills = 0
    for run, folder in gates.items():
        for what, happened in _events(packed, run, folder):
            agent = packed.work_here()
            until(partial(_took, packed, agent), "the agent has the queue")
            until(happened, f"{what} of {run}: {packed.names(run)} {packed.log()}")
            packed.kill_agent(agent)
            kills += 1
    packed.work_to_end()
    assert kills >= 20
    for run in gates:
        assert packed.spool(run) == _expected(STEP_COUNT * 40)
        assert (packed.run_dir(run) / "out" / "starts").read_text() == "started\n"
        lines = packed.states(run)
        assert numbered(lines)
        # a reason may be told anew while a run waits; what happened is told once
        told = [line["state"] for line in lines if line["state"] != "PENDING"]
        assert told == ["STARTING", "RUNNING", "SUCCEEDED"]
        seqs: list[int] = []
        for tick in packed.ticks(run):
            if tick["type"] == "tick":
                seqs.append(tick["seq"])
            elif tick["type"] == "gap":
                seqs.extend(range(tick["from_seq"], tick["to_seq"] + 1))
        assert seqs == list(range(len(seqs)))


def test_what_happened_while_no_agent_lived_is_told_at_its_time(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    desk.queue({"a": [python("data", COUNT, "100", str(gate)), python("train", "print('trained')")]})
    agent = desk.work_here()
    until(lambda: desk.spool("a").count(b"\n") == 51, "half of it is printed")
    desk.kill_agent(agent)
    gate.touch()
    until(lambda: (desk.record("a") or {}).get("ended"), "the stage ends without an agent")
    ended = desk.record("a")
    assert ended is not None
    assert (ended["exit_code"], ended["bytes_in"], ended["dropped_by"]) == (0, len(desk.spool("a")), 0)
    assert desk.record("a", 1) is None
    desk.work_to_end()
    states = desk.states("a")
    assert [(s["state"], s["stage"]) for s in states][2:] == [
        ("RUNNING", "data"),
        ("RUNNING", "train"),
        ("SUCCEEDED", "train"),
    ]
    assert numbered(states)
    assert states[2]["mono"] == ended["mono_start"]
    assert desk.spool("a").endswith(b"trained\n")


def test_an_end_that_no_agent_saw_has_the_records_time_and_code(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fail = COUNT + "\nsys.exit(7)"
    desk.queue({"a": [python("train", fail, "10", str(gate))], "b": [python("train", "print('b')")]})
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    desk.kill_agent(agent)
    gate.touch()
    until(lambda: (desk.record("a") or {}).get("ended"), "the training ends without an agent")
    desk.work_to_end()
    ended = desk.record("a")
    end = desk.last("a")
    assert ended is not None
    assert (end["state"], end["exit_code"], end["t"], end["mono"]) == ("FAILED", 7, ended["t_end"], ended["mono_end"])
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_a_killed_agent_frees_no_slot(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    desk.queue({"a": [python("train", COUNT, "10", str(gate))]})
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    desk.kill_agent(agent)
    other = Desk(desk.work)
    other.q = desk.work / "groups" / "g2.k1"
    other.queue({"z": [python("train", "print('z')")]}, group="g2")
    second = other.work_here()
    desk.agents.append(second)
    assert "held by run a of group g1" in other.wait_state("z", "PENDING")["reason"]
    gate.touch()
    other.finish(second)
    ended = desk.record("a")
    assert ended is not None
    assert other.wait_state("z", "RUNNING")["mono"] >= ended["mono_end"]


def test_a_torn_last_line_is_cut(desk: Desk) -> None:
    desk.queue({"a": [python("train", "print('a')")]})
    folder = desk.run_dir("a")
    folder.mkdir(parents=True)
    whole = json.dumps({"agent_seq": 0, "t": 1.0, "mono": 1.0, "state": "PENDING", "reason": "x", "stage": None})
    (folder / "states.jsonl").write_text(whole + '\n{"agent_seq":1,"t":17')
    desk.work_to_end()
    assert (folder / "states.jsonl").read_text().startswith(whole + "\n{")
    assert numbered(desk.states("a"))
    assert desk.last("a")["state"] == "SUCCEEDED"


def _record_left(desk: Desk, **fields: object) -> None:
    """A record that a shim left: its lock is free."""
    desk.queue({"a": [python("train", "print('ran')")], "b": [python("train", "print('b')")]})
    folder = desk.run_dir("a")
    folder.mkdir(parents=True)
    os.close(record.create(str(folder / "shim.0.json"), {**record.fresh("train"), **fields}))


@pytest.mark.parametrize("phase", [record.NEW, record.STARTING])
def test_a_stage_whose_shim_died_before_it_started_anything_is_started(desk: Desk, phase: str) -> None:
    _record_left(desk, phase=phase)
    desk.work_to_end()
    assert desk.spool("a") == b"ran\n"
    assert desk.names("a") == ["PENDING", "STARTING", "RUNNING", "SUCCEEDED"]


def test_a_stage_of_another_boot_is_a_node_failure(desk: Desk) -> None:
    _record_left(
        desk, phase=record.RUNNING, pid=1, child_pid=1, pgid=1, boot_id="another", t_start=5.0, mono_start=5.0
    )
    desk.work_to_end()
    assert desk.last("a")["state"] == "NODE_FAIL"
    assert "restarted" in desk.last("a")["reason"]
    assert desk.spool("a") == b""
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_a_damaged_record_fails_the_run_and_runs_nothing_twice(desk: Desk) -> None:
    _record_left(desk)
    path = desk.run_dir("a") / "shim.0.json"
    path.write_bytes(path.read_bytes().replace(b"train", b"brain"))
    desk.work_to_end()
    assert desk.last("a")["state"] == "FAILED"
    assert "record" in desk.last("a")["reason"]
    assert desk.spool("a") == b""


def test_a_killed_shim_ends_its_training_and_the_queue_goes_on(desk: Desk) -> None:
    quiet = "import time\nprint('up')\nwhile True: time.sleep(0.01)"
    desk.queue({"a": [python("train", quiet)], "b": [python("train", "print('b')")]})
    agent = desk.work_here()
    until(lambda: b"up" in desk.spool("a"), "a is up")
    desk.wait_state("a", "RUNNING")
    left = desk.record("a")
    assert left is not None
    psutil.Process(left["pid"]).kill()
    desk.finish(agent)
    assert desk.last("a")["state"] == "FAILED"
    assert "the shim of stage train was killed" in desk.last("a")["reason"]
    assert desk.last("a")["exit_code"] is None
    assert gone(left["child_pid"])
    assert desk.last("b")["state"] == "SUCCEEDED"


def test_clean_is_refused_while_a_training_runs_without_an_agent(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    desk.queue({"a": [python("train", COUNT, "10", str(gate))]})
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    desk.kill_agent(agent)
    refused = desk.call("clean", str(desk.q))
    assert refused.returncode == 1
    assert b"still runs a" in refused.stderr
    gate.touch()
    desk.work_to_end()
    assert desk.last("a")["state"] == "SUCCEEDED"
    assert desk.call("clean", str(desk.q)).returncode == 0


def test_a_timeout_counts_from_the_start_over_a_change_of_agents(desk: Desk) -> None:
    desk.queue({"a": [stage("train", sys.executable, "-S", "-c", "import time; time.sleep(600)", timeout_s=1.0)]})
    agent = desk.work_here()
    started = desk.wait_state("a", "RUNNING")["mono"]
    desk.kill_agent(agent)
    desk.work_to_end()
    assert desk.last("a")["state"] == "TIMEOUT"
    assert 1.0 <= desk.last("a")["mono"] - started < 6.0
