"""A group from its start to its comparison, over a real agent and real processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
from typing import Any

import pytest

from tests.engine.conftest import Duel, eventually

pytestmark = pytest.mark.timeout(180)


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_duel_runs_in_turns_and_ends_with_a_comparison(duel: Duel) -> None:
    done = duel.call("run", "--profile", "toy", "--output", "json")
    assert done.returncode == 0, done.stderr
    lines = _lines(done.stdout)
    last = lines[-1]
    assert (last["type"], last["state"], len(last["runs"])) == ("group", "SUCCEEDED", 6)
    for run in last["runs"]:
        steps = [e["step"] for e in lines if e.get("run") == run and e["type"] == "iteration"]
        assert steps == list(range(1, 21))
        assert duel.steps(run) == steps
        assert (duel.runs / run / "artifacts" / "result.txt").read_text() == run
    began = sorted(last["runs"], key=lambda r: duel.meta(r)["started"])
    assert [duel.meta(r)["server"] for r in began] == ["left", "right"] * 3
    ends = [(duel.meta(r)["started"], duel.meta(r)["ended"]) for r in began]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends)), "two runs shared the one slot at a time"
    compared = duel.call("compare", "last", "--output", "json")
    document = json.loads(compared.stdout)
    assert document["schema"] == "ekvi.compare/1"
    assert [s["name"] for s in document["sides"]] == ["left", "right"]


def test_seq_counts_from_0_without_holes_and_the_states_come_in_order(duel: Duel) -> None:
    assert duel.call("run", "--profile", "toy", "--repeats", "1", "--servers", "left").returncode == 0
    (run,) = duel.group["runs"]
    events = _lines((duel.runs / run / "events.jsonl").read_text())
    assert [e["seq"] for e in events] == list(range(len(events)))
    states = [e["state"] for e in events if e["type"] == "state"]
    assert states == ["SUBMITTED", "PENDING", "STARTING", "RUNNING", "SUCCEEDED"]
    assert events[-1]["type"] == "state", "the end comes after the last line of output"


def test_a_killed_cockpit_costs_nothing(duel: Duel) -> None:
    duel.write(hold=True)
    cockpit = duel.start("run", "--profile", "toy")
    first = eventually(lambda: next((r for r in _runs(duel) if len(duel.steps(r)) >= 3), None))
    assert first.endswith("left.r1")
    cockpit.send_signal(signal.SIGKILL)
    cockpit.wait(10)
    duel.release()
    attached = duel.call("attach", "last", "--output", "json")
    assert attached.returncode == 0, attached.stderr
    lines = _lines(attached.stdout)
    assert lines[-1]["state"] == "SUCCEEDED"
    for run in lines[-1]["runs"]:
        shown = [e["step"] for e in lines if e.get("run") == run and e["type"] == "iteration"]
        assert shown == list(range(1, 21)), run
        assert duel.steps(run) == shown
        summary = json.loads((duel.runs / run / "summary.json").read_text())
        assert summary["iterations"]["total"] == 20


def _runs(duel: Duel) -> list[str]:
    try:
        return [r for r in duel.group["runs"] if (duel.runs / r / "events.jsonl").exists()]
    except IndexError:
        return []


def test_a_killed_agent_is_started_again_and_no_byte_is_lost(duel: Duel) -> None:
    duel.write(hold=True, repeats=1)
    cockpit = duel.start("run", "--profile", "toy", "--output", "json")
    first = eventually(lambda: next((r for r in _runs(duel) if len(duel.steps(r)) >= 3), None))
    agent = json.loads(next(duel.work.glob("groups/*/agent.json")).read_text())
    os.kill(agent["pid"], signal.SIGKILL)
    duel.release()
    assert cockpit.wait(90) == 0, (duel.home / "err.txt").read_text()
    assert "started it again" in (duel.home / "err.txt").read_text()
    output = (duel.runs / first / "stdout.log").read_text().splitlines()
    assert [line for line in output if line.startswith("noise")] == [f"noise {i}" for i in range(1, 21)]
    for run in duel.group["runs"]:
        assert duel.steps(run) == list(range(1, 21))


def test_a_killed_training_fails_with_its_signal_and_the_others_go_on(duel: Duel) -> None:
    duel.write(hold=True, repeats=2)
    cockpit = duel.start("run", "--profile", "toy")
    first = eventually(lambda: next((r for r in _runs(duel) if len(duel.steps(r)) >= 3), None))
    (training,) = [pid for pid in duel.pids("trainer.py") if "shim" not in " ".join(_cmdline(pid))]
    os.kill(training, signal.SIGKILL)
    duel.release()
    assert cockpit.wait(90) == 1
    states = {r: duel.meta(r) for r in duel.group["runs"]}
    assert (states[first]["state"], states[first]["signal"], states[first]["exit_code"]) == ("FAILED", 9, None)
    assert [m["state"] for r, m in states.items() if r != first] == ["SUCCEEDED"] * 3
    said = (duel.home / "err.txt").read_text()
    assert "signal 9" in said
    assert "noise 3" in said, "its last lines are shown"


def _cmdline(pid: int) -> list[str]:
    import psutil

    return list(psutil.Process(pid).cmdline())


def test_ctrl_c_stops_the_group_and_exits_130(duel: Duel) -> None:
    duel.write(hold=True)
    cockpit = duel.start("run", "--profile", "toy")
    eventually(lambda: next((r for r in _runs(duel) if len(duel.steps(r)) >= 3), None))
    cockpit.send_signal(signal.SIGINT)
    assert cockpit.wait(60) == 130
    assert {duel.meta(r)["state"] for r in duel.group["runs"]} == {"CANCELLED"}
    assert duel.group["state"] == "CANCELLED"
    assert not duel.pids("trainer.py")


def test_detach_attach_stop_and_a_second_cockpit(duel: Duel) -> None:
    duel.write(hold=True)
    detached = duel.call("run", "--profile", "toy", "--detach")
    assert detached.returncode == 0
    group = detached.stdout.strip()
    follower = duel.start("attach", group)
    eventually(lambda: any(len(duel.steps(r)) >= 3 for r in _runs(duel)))
    second = duel.call("attach", "last")
    assert second.returncode == 3
    assert str(follower.pid) in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1
    stopped = duel.call("stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    assert follower.wait(60) == 1
    assert duel.group["state"] == "CANCELLED"


def test_resume_runs_only_what_failed(duel: Duel) -> None:
    duel.env["EKVI_TEST_FAIL"] = "right.r2"
    assert duel.call("run", "--profile", "toy", "--output", "json").returncode == 1
    before = duel.group["runs"]
    failed = next(r for r in before if duel.meta(r)["state"] == "FAILED")
    assert duel.meta(failed)["exit_code"] == 3
    del duel.env["EKVI_TEST_FAIL"]
    done = duel.call("run", "--resume", "last", "--output", "json")
    assert done.returncode == 0, done.stderr
    after = duel.group["runs"]
    assert [b for a, b in zip(before, after, strict=True) if a != b] == [f"{failed}.try2"]
    assert after.index(f"{failed}.try2") == before.index(failed)
    ran = {e["run"] for e in _lines(done.stdout) if e["type"] == "state" and e["state"] == "RUNNING"}
    assert f"{failed}.try2" in ran
    again = duel.call("run", "--resume", "last")
    assert again.returncode == 0
    assert "nothing is left to do" in again.stderr


def test_what_is_home_is_taken_off_the_server(duel: Duel) -> None:
    assert duel.call("run", "--profile", "toy", "--repeats", "1").returncode == 0
    assert list((duel.work / "groups").iterdir()) == []
    assert duel.call("attach", "last").returncode == 0, "a finished group can be looked at again"


def test_a_replay_tells_what_the_live_run_told(duel: Duel) -> None:
    live = duel.call("run", "--profile", "toy", "--repeats", "1", "--output", "json", "--with", "log")
    played = duel.call("replay", "last", "--speed", "1000", "--output", "json", "--with", "log")
    assert played.returncode == 0, played.stderr
    both = [_lines(live.stdout), _lines(played.stdout)]
    for run in duel.group["runs"]:
        for kind in ("iteration", "state"):
            told = [[e for e in lines if e.get("run") == run and e["type"] == kind] for lines in both]
            assert told[0] == told[1]
            assert told[0]
        text = ["".join(e["text"] for e in lines if e.get("run") == run and e["type"] == "log") for lines in both]
        assert text[0] == text[1] == (duel.runs / run / "stdout.log").read_text()


def test_a_lost_queue_is_said_and_not_waited_for(duel: Duel) -> None:
    import shutil

    duel.write(hold=True, repeats=1)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0
    eventually(lambda: duel.pids("trainer.py"))
    for pid in duel.pids(""):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(duel.work / "groups")
    done = duel.call("attach", "last")
    assert done.returncode == 1
    assert {duel.meta(r)["state"] for r in duel.group["runs"]} == {"LOST"}


def test_attaching_to_a_group_that_is_done_speaks_of_no_dead_agent(duel: Duel) -> None:
    assert duel.call("run", "--profile", "toy", "--repeats", "1", "--detach").returncode == 0
    states = f"groups/*/runs/{duel.group['runs'][-1]}/states.jsonl"
    eventually(lambda: any('"SUCCEEDED"' in path.read_text() for path in duel.work.glob(states)))
    eventually(lambda: not duel.pids("agent"))
    attached = duel.call("attach", "last")
    assert attached.returncode == 0, attached.stderr
    assert "warning" not in attached.stderr
    assert not list(duel.work.glob("groups/*")), "and its queue is tidied up"


def test_ctrl_c_in_attach_leaves_the_group_running(duel: Duel) -> None:
    duel.write(hold=True, repeats=1)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0
    follower = duel.start("attach", "last")
    eventually(lambda: any(len(duel.steps(r)) >= 3 for r in _runs(duel)))
    follower.send_signal(signal.SIGINT)
    assert follower.wait(30) == 130
    assert "goes on by itself" in (duel.home / "err.txt").read_text()
    duel.release()
    assert duel.call("attach", "last").returncode == 0
    assert [duel.steps(r) for r in duel.group["runs"]] == [list(range(1, 21))] * 2


def test_fetch_brings_home_what_is_there_and_does_not_wait(duel: Duel) -> None:
    duel.write(hold=True, repeats=1)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0
    spool = eventually(
        lambda: next((p for p in duel.work.glob("groups/*/runs/*/spool.log") if b"noise 3" in p.read_bytes()), None)
    )
    fetched = duel.call("fetch", "last")
    assert fetched.returncode == 0, fetched.stderr
    assert fetched.stdout.splitlines() == [str(duel.runs / r) for r in duel.group["runs"]]
    assert duel.steps(spool.parent.name) == [1, 2, 3]
    listed = duel.call("runs")
    assert "as last seen" in listed.stderr
    duel.release()
    assert duel.call("attach", "last").returncode == 0
