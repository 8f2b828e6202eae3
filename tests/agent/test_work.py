"""A queue from start to end: order, slots, environment, how stages end, code that travels with the queue."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from tests.agent.support import COUNT, Desk, desk_at, numbered, python, stage, until

WAIT = "import os, sys, time\nprint('up')\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.005)"


def test_runs_and_stages_go_in_order_and_are_noted(desk: Desk) -> None:
    desk.queue(
        {
            "a": [python("data", "print('data')"), python("train", COUNT, "10", "")],
            "b": [python("train", "print('b')")],
        }
    )
    desk.work_to_end()
    a, b = desk.states("a"), desk.states("b")
    assert [(s["state"], s["stage"]) for s in a] == [
        ("PENDING", None),
        ("STARTING", "data"),
        ("RUNNING", "data"),
        ("RUNNING", "train"),
        ("SUCCEEDED", "train"),
    ]
    assert numbered(a)
    assert numbered(b)
    assert [s["mono"] for s in a] == sorted(s["mono"] for s in a)
    assert a[-1]["exit_code"] == 0
    assert desk.spool("a").startswith(b"data\nline 000000")
    assert a[-1]["data"]["spool_by"] == len(desk.spool("a"))
    assert b[2]["mono"] >= a[-1]["mono"], "b started before a had ended"
    made = [
        p
        for top in ("runs", "agent.log", "agent.json", "ballast")
        for p in [desk.q / top, *(desk.q / top).rglob("*")]
    ]
    assert {oct(p.stat().st_mode)[-3:] for p in made} == {"700", "600"}


def test_a_failed_stage_ends_its_run_and_not_the_queue(desk: Desk) -> None:
    fail = "import sys\nfor i in range(30): print('line', i)\nsys.exit(3)"
    desk.queue({"a": [python("data", fail), python("train", "print('never')")], "b": [python("train", "print(1)")]})
    desk.work_to_end()
    end = desk.last("a")
    assert (end["state"], end["stage"], end["exit_code"], end["signal"]) == ("FAILED", "data", 3, None)
    assert end["reason"] == "stage data exited with code 3"
    assert end["data"]["tail"] == [f"line {i}" for i in range(10, 30)]
    assert b"never" not in desk.spool("a")
    assert desk.last("b")["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("more", "argv", "words"),
    [
        ({}, ["no-such-program-here"], "cannot start no-such-program-here: No such file or directory"),
        ({}, ["${RUN_DIR}"], "Permission denied"),
        ({"cwd": "/no/such/folder"}, ["true"], "cannot enter the folder /no/such/folder: No such file"),
    ],
)
def test_what_cannot_be_started_says_why(desk: Desk, more: dict[str, str], argv: list[str], words: str) -> None:
    desk.queue({"a": [stage("train", *argv, **more)]})
    desk.work_to_end()
    end = desk.last("a")
    assert end["state"] == "FAILED"
    assert words in end["reason"]
    assert "RUNNING" not in desk.names("a")


def test_a_stage_gets_its_environment_folder_and_a_clean_process(desk: Desk) -> None:
    code = """
import json, os, signal, sys
names = ("A", "EKVI_OUT", "EKVI_CACHE", "EKVI_RUN", "EKVI_STAGE", "PYTHONUNBUFFERED")
print(json.dumps({
    "env": {name: os.environ.get(name) for name in names},
    "cwd": os.getcwd(), "argv": sys.argv[1:], "stdin": sys.stdin.read(),
    "leader": os.getpid() == os.getpgid(0) == os.getsid(0),
    "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
}))
"""
    desk.queue({"a": [python("train", code, "${OUT_DIR}", "${HOME}", env={"A": "${CACHE_DIR}/x"})]})
    desk.work_to_end()
    seen = json.loads(desk.spool("a"))
    run = str(desk.run_dir("a"))
    cache = str(desk.work / "cache")
    assert seen["env"] == {
        "A": cache + "/x",
        "EKVI_OUT": run + "/out",
        "EKVI_CACHE": cache,
        "EKVI_RUN": "a",
        "EKVI_STAGE": "train",
        "PYTHONUNBUFFERED": "1",
    }
    assert (seen["cwd"], seen["argv"], seen["stdin"]) == (run, [run + "/out", "${HOME}"], "")
    assert seen["leader"] is True
    assert seen["term"] is True
    assert seen["fds"] == [0, 1, 2], "a file of ours is open in the training: it could hold a slot for ever"


def test_slots_let_as_many_runs_go_at_once(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    desk.queue({name: [python("train", WAIT, str(gate))] for name in ("a", "b", "c")}, slots=2)
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    desk.wait_state("b", "RUNNING")
    assert desk.names("c") == ["PENDING"]
    gate.touch()
    desk.finish(agent)
    assert {desk.last(run)["state"] for run in "abc"} == {"SUCCEEDED"}
    ends = min(desk.last(run)["mono"] for run in "ab")
    assert desk.wait_state("c", "RUNNING")["mono"] >= ends


def test_two_queues_share_a_slot_and_name_who_holds_it(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    desk.queue({"a": [python("train", WAIT, str(gate))]})
    first = desk.work_here()
    desk.wait_state("a", "RUNNING")
    with desk_at(desk.work) as other:
        other.q = desk.work / "groups" / "g2.k1"
        other.queue({"z": [python("train", "print('z')")]}, group="g2")
        second = other.work_here()
        pending = other.wait_state("z", "PENDING")
        assert pending["reason"] == "waits for slot default, held by run a of group g1"
        gate.touch()
        desk.finish(first)
        other.finish(second)
        assert other.wait_state("z", "RUNNING")["mono"] >= desk.last("a")["mono"]
        assert other.last("z")["state"] == "SUCCEEDED"


def test_a_slot_cools_down_between_runs_and_not_before_the_first(desk: Desk) -> None:
    desk.queue({"a": [stage("train", "true")], "b": [stage("train", "true")]}, cooldown_s=0.4)
    desk.work_to_end()
    assert [s["reason"] for s in desk.states("a")][:2] == ["its turn has come", None]
    assert "waits for a cool-down of 0.4 s" in [s["reason"] for s in desk.states("b")]
    started = desk.wait_state("b", "STARTING")["mono"]
    assert 0.4 <= started - desk.last("a")["mono"] < 2.0


def test_telemetry_goes_into_the_run_that_is_active(desk: Desk) -> None:
    hold = "import time\nfor i in range(10): print(i); time.sleep(0.03)"
    desk.queue({"a": [python("train", hold)], "b": [python("train", hold)]})
    desk.work_to_end()
    for run in ("a", "b"):
        lines = desk.ticks(run)
        assert lines[0]["type"] == "hello"
        ticks = [line for line in lines if line["type"] == "tick"]
        assert len(ticks) >= 3
        start, end = desk.wait_state(run, "STARTING")["mono"], desk.last(run)["mono"]
        assert all(start - 0.1 <= tick["t_mono_ns"] / 1e9 <= end + 0.5 for tick in ticks)
        assert ticks[0]["seq"] == 0
    assert desk.ticks("a")[1]["host"]["cpu_util"] is None


# --- code that travels with the queue


def _archive(desk: Desk, name: str = "runners/hello.py") -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr(name, "print('hello from code')\n")
    sha16 = hashlib.sha256(packed.getvalue()).hexdigest()[:16]
    (desk.work / "code").mkdir(parents=True, exist_ok=True)
    (desk.work / "code" / f"{sha16}.zip").write_bytes(packed.getvalue())
    return sha16


def test_code_is_unpacked_once_read_only_and_used(desk: Desk) -> None:
    sha16 = _archive(desk)
    half = desk.work / "code" / f"{sha16}.tmp" / "runners"
    half.mkdir(parents=True)
    (half / "left.py").write_text("an agent was killed here")
    desk.queue({"a": [stage("train", sys.executable, "-S", "${CODE_DIR}/runners/hello.py")]}, code=sha16)
    desk.work_to_end()
    assert desk.spool("a") == b"hello from code\n"
    folder = desk.work / "code" / sha16
    assert [p.name for p in folder.rglob("*.py")] == ["hello.py"]
    assert all(not p.stat().st_mode & 0o222 for p in [folder, *folder.rglob("*")])
    assert not half.parent.exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [("missing", "did not travel with the queue"), ("cut", "is damaged: its sha256"), ("outside", "lies outside")],
)
def test_bad_code_fails_the_runs_and_says_why(desk: Desk, damage: str, words: str) -> None:
    sha16 = _archive(desk, "../evil.py" if damage == "outside" else "runners/hello.py")
    archive = desk.work / "code" / f"{sha16}.zip"
    if damage == "missing":
        archive.unlink()
    elif damage == "cut":
        archive.write_bytes(archive.read_bytes()[:-30])
    desk.queue({"a": [stage("train", "true")]}, code=sha16)
    desk.work_to_end()
    assert desk.last("a")["state"] == "FAILED"
    assert words in desk.last("a")["reason"]
    assert not (desk.work / "evil.py").exists()
    assert not (desk.work / "code" / "evil.py").exists()


# --- start, status, clean


def test_start_returns_when_the_queue_is_taken_and_leaves_the_caller(packed: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    packed.queue({"a": [python("train", WAIT, str(gate))]})
    told = json.loads(packed.call("start", str(packed.q)).stdout)
    assert (told["started"], told["already"]) == (True, False)
    assert os.getsid(told["pid"]) not in (os.getsid(0), told["pid"]), "no session of its own without a leader"
    again = packed.call("start", str(packed.q))
    assert again.returncode == 0
    assert json.loads(again.stdout) == {**told, "started": False, "already": True}
    assert packed.call("work", str(packed.q)).returncode == 0
    packed.wait_state("a", "RUNNING")
    status = json.loads(packed.call("status", str(packed.q)).stdout)
    assert (status["alive"], status["pid"]) == (True, told["pid"])
    assert [(run["run"], run["state"], run["shim"]) for run in status["runs"]] == [("a", "RUNNING", True)]
    refused = packed.call("clean", str(packed.q))
    assert refused.returncode == 1
    assert b"is being worked" in refused.stderr
    gate.touch()
    until(lambda: not json.loads(packed.call("status", str(packed.q)).stdout)["alive"], "the agent leaves")
    assert packed.last("a")["state"] == "SUCCEEDED"
    assert packed.call("clean", str(packed.q)).returncode == 0
    assert not packed.q.exists()
    assert (packed.work / "slots").exists()


def test_start_says_what_is_wrong_with_a_queue(desk: Desk) -> None:
    desk.queue({"a": []})
    refused = desk.call("start", str(desk.q))
    assert refused.returncode == 1
    assert b"stages must not be empty" in refused.stderr
    assert desk.call("start", str(desk.work)).returncode == 1
    assert desk.call("launch", str(desk.q)).returncode == 2


def test_a_queue_that_is_done_is_not_worked_again(desk: Desk) -> None:
    desk.queue({"a": [python("train", "print('once')")]})
    desk.work_to_end()
    before = desk.states("a")
    desk.work_to_end()
    assert desk.states("a") == before
    assert desk.spool("a") == b"once\n"


def test_a_queue_whose_run_made_links_is_cleaned_away_and_what_they_lead_to_stays(desk: Desk, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "kept").write_text("mine")
    links = (
        "import os, sys\nout = os.environ['EKVI_OUT']\nos.mkdir(out + '/epoch-1')\n"
        "os.symlink('epoch-1', out + '/best')\nos.symlink(sys.argv[1], out + '/apart')"
    )
    desk.queue({"a": [python("train", links, str(apart))]})
    desk.work_to_end()
    cleaned = desk.call("clean", str(desk.q))
    assert cleaned.returncode == 0, cleaned.stderr
    assert not desk.q.exists()
    assert (apart / "kept").read_text() == "mine"
