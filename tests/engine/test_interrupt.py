"""Ctrl-C at every moment of a command: a group is stopped whole, and only by those commands that are about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.engine.conftest import Duel, eventually

pytestmark = pytest.mark.timeout(120)


def test_ctrl_c_in_the_middle_of_a_launch_stops_what_is_launched(duel: Duel) -> None:
    duel.write(hold=True)
    cockpit = duel.start("run", "--profile", "toy", "--repeats", "1")
    eventually(lambda: list((duel.runs / "groups").glob("*.json")))  # on disk before any agent is started
    cockpit.send_signal(signal.SIGINT)
    assert cockpit.wait(60) == 130
    assert duel.group["state"] == "CANCELLED"
    assert {duel.meta(r)["state"] for r in duel.group["runs"]} == {"CANCELLED"}
    assert not duel.pids("trainer.py")


def test_ctrl_c_ends_a_replay_and_speaks_of_no_group_to_stop(duel: Duel) -> None:
    assert duel.call("run", "--profile", "toy", "--repeats", "1").returncode == 0
    replay = duel.start("replay", "last", "--speed", "0.02")
    err = duel.home / "err.txt"
    eventually(lambda: "SUBMITTED" in err.read_text())
    replay.send_signal(signal.SIGINT)
    assert replay.wait(20) == 130
    assert "top" not in err.read_text(), "nothing is stopped, and nothing is said to be"
    assert (duel.home / "out.txt").read_text() == "", "no summary of runs that were not played"


def test_a_reader_that_goes_away_ends_the_following_and_not_the_group(duel: Duel) -> None:
    duel.write(hold=True)
    words = [sys.executable, "-m", "cockpit.cli", "run", "--profile", "toy", "--repeats", "1", "--output", "json"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) as cockpit:
        assert cockpit.stdout is not None
        assert cockpit.stderr is not None
        next(line for line in cockpit.stdout if json.loads(line).get("step") == 3)
        cockpit.stdout.close()
        duel.release()
        assert cockpit.wait(30) == 0
        assert "Error" not in cockpit.stderr.read()
    attached = duel.call("attach", "last", "--output", "json")
    assert json.loads(attached.stdout.splitlines()[-1])["state"] == "SUCCEEDED"
