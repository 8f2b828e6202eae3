"""What the agent must not do: end what is not its own, begin a queue that is gone, die of odd words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from runners.agent import queuefile, record, worker
from runners.agent.base import AgentError, start_ticks, try_lock
from tests.agent.support import COUNT, REPO, Desk, python, stage, until


@pytest.mark.parametrize("boot", ["the same", "another"])
def test_a_group_number_that_another_has_by_now_is_left_alone(desk: Desk, tmp_path: Path, boot: str) -> None:
    gate = tmp_path / "gate"
    desk.queue({"a": [python("train", COUNT, "4", str(gate))]})
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    desk.kill_agent(agent)
    gate.touch()
    until(lambda: (desk.record("a") or {}).get("ended"), "the training ends while no agent lives")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as bystander:
        try:
            rec = desk.record("a")
            assert rec is not None
            assert (start_ticks(bystander.pid) or 0) >= rec["child_start_ticks"], "as a number that was reused"
            rec["pgid"] = bystander.pid
            rec["boot_id"] = rec["boot_id"] if boot == "the same" else "0"
            fd = os.open(desk.run_dir("a") / "shim.0.json", os.O_RDWR)
            record.write(fd, rec)
            os.close(fd)
            desk.work_to_end()
            assert desk.last("a")["state"] == "SUCCEEDED"
            assert bystander.poll() is None, "a process of somebody else was killed"
        finally:
            bystander.kill()


def test_a_queue_that_is_cleaned_meanwhile_is_not_worked_anew(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.queue({"a": [python("train", "print(1)")]})
    queue = queuefile.load(str(desk.q))

    def cleaned_first(fd: int) -> bool:
        shutil.rmtree(desk.q)
        return try_lock(fd)

    monkeypatch.setattr(worker, "try_lock", cleaned_first)
    with pytest.raises(AgentError, match="cleaned away"):
        worker.take_queue(queue)
    assert not desk.q.exists()


def test_no_shim_stays_a_zombie(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = {name: [python("train", "print(1)")] for name in ("a", "b", "c")}
    desk.queue({**first, "d": [python("train", COUNT, "4", str(gate))]})
    agent = desk.work_here()
    desk.wait_state("d", "RUNNING")

    def zombies() -> list[psutil.Process]:
        children = psutil.Process(agent.pid).children()
        return [p for p in children if p.status() == psutil.STATUS_ZOMBIE]

    until(lambda: not zombies(), "the ended shims are waited for")
    gate.touch()
    desk.finish(agent)


@pytest.mark.parametrize("program", ["é" * 900, "\U0001f600" * 400, "no-\ud800-such"], ids=["wide", "astral", "odd"])
def test_a_program_of_any_name_that_is_not_there_is_said(desk: Desk, program: str) -> None:
    desk.queue({"a": [stage("train", program)]})
    desk.work_to_end()
    ended = desk.last("a")
    assert ended["state"] == "FAILED"
    assert "cannot start" in ended["reason"]
    assert "shim" not in ended["reason"]


def test_a_damaged_line_of_states_is_passed_over(desk: Desk) -> None:
    desk.queue({"a": [python("train", "print(1)")]})
    folder = desk.run_dir("a")
    folder.mkdir(parents=True)
    good = {"agent_seq": 0, "t": 1.0, "mono": 1.0, "state": "PENDING", "reason": "x", "stage": None, "data": {}}
    damaged = [json.dumps({"agent_seq": 1}), json.dumps({"agent_seq": 1, "state": "STOPPING", "data": 5}), "\0" * 40]
    (folder / "states.jsonl").write_text("\n".join([json.dumps(good), *damaged, ""]))
    desk.work_to_end()
    lines = (folder / "states.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["state"] == "SUCCEEDED"


def test_odd_lines_of_telemetry_do_not_keep_an_agent_from_going_on(desk: Desk) -> None:
    desk.queue({"a": [python("train", "print(1)")]})
    folder = desk.run_dir("a")
    folder.mkdir(parents=True)
    odd = [{"type": "tick", "seq": 3, "t_wall_ns": None}, {"type": "gap", "from_seq": 4}, {"type": ["tick"]}]
    (folder / "telemetry.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in odd))
    desk.work_to_end()
    assert desk.last("a")["state"] == "SUCCEEDED"
    seqs = [line["seq"] for line in desk.ticks("a")[2:] if line["type"] == "tick"]
    assert seqs[:1] in ([], [4])


def test_a_queue_may_have_more_runs_than_a_process_open_files(desk: Desk) -> None:
    desk.queue({f"r{i}": [stage("train", "true")] for i in range(120)})
    (desk.q / "control").mkdir()
    (desk.q / "control" / "stop").touch()  # every run is noted, none is started
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *desk.command, "work", str(desk.q)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert {desk.last(f"r{i}")["state"] for i in range(120)} == {"CANCELLED"}


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_an_agent_starts_where_its_caller_has_closed_its_files(desk: Desk, closed: str) -> None:
    desk.queue({"a": [python("train", "import sys; print(sys.stdin.read() == '')")]})
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *desk.command, "start", str(desk.q)]
    subprocess.run(command, cwd=REPO, capture_output=True, timeout=60, check=False)
    assert desk.wait_ended("a")["state"] == "SUCCEEDED", desk.log()
    assert desk.spool("a") == b"True\n"
    assert json.loads((desk.q / "queue.json").read_text()), "nothing was written into what took a standard number"
