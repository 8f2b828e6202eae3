"""Several nodes: each has a queue of its own, equal runs, and one place where all meet."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import Access, GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.launch import queue, render

NODES = ("ann@alpha", "beta")
SERVER = ServerSpec(name="pair", address=NODES[0], nodes=NODES, master_port=30000, python="/opt/python")
MODULE = ("-m", "runners", "--config", "${RUN_DIR}/config.json", "stage=train")
TRAIN = StagePlan(stage="train", module_args=MODULE, processes=4)
RUN = RunPlan(
    run="g.pair.r1", group="g", server="pair", repeat=0, sweep={}, launcher="process", stages=(TRAIN,), config={}
)  # fmt: skip
PLAN = QueuePlan(
    key="k", address=NODES[0], workdir=None, slot="default", slots=1, cooldown_s=0.0, runs=(RUN,),
    nodes=tuple(Access(address=node) for node in NODES),
)  # fmt: skip


def _queue(node: int, *, run: RunPlan = RUN, server: ServerSpec = SERVER, **options: Any) -> dict[str, Any]:
    plan = replace(PLAN, runs=(run,), **options.pop("plan", {}))
    return queue(plan, {"pair": server}, code="c" * 64, node=node, token=options.pop("token", "ab" * 16), **options)


def test_each_node_starts_one_torchrun_that_meets_on_the_first() -> None:
    for node in (0, 1):
        run = _queue(node, master="10.0.0.1")["runs"][0]
        assert run["stages"][0]["argv"] == [
            "/opt/python", "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
            "--nproc-per-node", "2", "--master-addr", "10.0.0.1", "--master-port", "30000",
            "--rdzv-id", "g.pair.r1.train", *MODULE,
        ]  # fmt: skip
        found = {k: v for k, v in run["env"].items() if not k.startswith("PYTHON")}
        assert found == {
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "30000", "NNODES": "2", "NODE_RANK": str(node)
        }  # fmt: skip


def test_a_calibration_runs_on_all_nodes_as_one_however_few_processes_each_has() -> None:
    stage = StagePlan(stage="calibrate", module_args=MODULE, processes=2)
    argv = _queue(1, run=replace(RUN, stages=(stage,)))["runs"][0]["stages"][0]["argv"]
    assert argv[argv.index("--nproc-per-node") + 1] == "1"
    assert argv[argv.index("--rdzv-id") + 1] == "g.pair.r1.calibrate"


def test_the_agents_are_told_of_each_other() -> None:
    first, second = (_queue(node, master="10.0.0.1")["peers"] for node in (0, 1))
    assert first == {
        "rank": 0, "names": list(NODES), "address": "10.0.0.1", "port": 30001, "token": "ab" * 16, "silence_s": 30.0
    }  # fmt: skip
    assert second == first | {"rank": 1}


@pytest.mark.parametrize(
    ("server", "master", "address"),
    [
        (SERVER, None, "alpha"),
        (replace(SERVER, master_addr="10.9.9.9"), None, "10.9.9.9"),
        (replace(SERVER, master_addr="10.9.9.9"), "10.1.1.1", "10.1.1.1"),
    ],
)
def test_the_first_nodes_address(server: ServerSpec, master: str | None, address: str) -> None:
    assert _queue(1, server=server, master=master)["peers"]["address"] == address


def test_a_stage_of_one_process_runs_plainly_on_every_node() -> None:
    run = replace(RUN, stages=(StagePlan(stage="data", module_args=MODULE), TRAIN))
    stages = _queue(1, run=run)["runs"][0]["stages"]
    assert stages[0]["argv"] == ["/opt/python", *MODULE]
    one_each = _queue(1, run=replace(RUN, stages=(replace(TRAIN, processes=2),)))["runs"][0]["stages"][0]["argv"]
    assert one_each[one_each.index("--nproc-per-node") + 1] == "1"


def test_a_command_finds_where_to_meet_in_its_environment() -> None:
    run = replace(RUN, stages=(StagePlan(stage="train", argv=("./go", "x")),))
    found = _queue(1, run=run)["runs"][0]
    assert found["stages"][0]["argv"] == ["./go", "x"]
    assert found["env"] == {"MASTER_ADDR": "alpha", "MASTER_PORT": "30000", "NNODES": "2", "NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("run", "options", "says"),
    [
        (replace(RUN, stages=(replace(TRAIN, processes=3),)), {}, "3 processes do not divide by its 2 nodes"),
        (replace(RUN, stages=(replace(TRAIN, processes=1),)), {}, "1 processes do not divide by its 2 nodes"),
        (RUN, {"token": None}, "no token"),
        (RUN, {"plan": {"slots": 2}}, "2 nodes take one run at a time, and slots is 2"),
        (RUN, {"server": replace(SERVER, env={"MASTER_ADDR": "x"})}, "env sets MASTER_ADDR"),
        (RUN, {"server": replace(SERVER, nodes=("local", "beta"))}, "first node is this machine"),
        (
            replace(RUN, launcher="container", launch={"image": "i", "network": "bridge"}),
            {},
            "launcher.network is 'bridge'",
        ),
    ],
)
def test_what_cannot_meet_is_refused(run: RunPlan, options: dict[str, Any], says: str) -> None:
    with pytest.raises(LaunchRefused, match=says) as caught:
        _queue(0, run=run, **options)
    assert "pair" in caught.value.message


def test_one_slot_is_not_for_servers_of_other_nodes() -> None:
    single = replace(SERVER, name="single", nodes=())
    runs = (RUN, replace(RUN, run="g.single.r1", server="single"))
    with pytest.raises(LaunchRefused, match="servers pair and single share the slot"):
        queue(replace(PLAN, runs=runs), {"pair": SERVER, "single": single}, code="", token="ab" * 16)


SSH = """#!/bin/sh
printf '%s\\n' "$*" >> "$STUBS/argv"
for last; do before=$now; now=$last; done
unset XDG_STATE_HOME; export HOME="$STUBS/$before"; mkdir -p "$HOME"
exec sh -c "$last"
"""


def test_the_dry_run_gives_every_node_its_queue_and_one_word_that_stands_in_no_argument(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    command = replace(RUN, stages=(StagePlan(stage="train", argv=("./go",)),))
    server = replace(SERVER, python="/bin/true")
    group = GroupPlan(
        group="g", profile="p", overrides=(), servers={"pair": server}, queues=(replace(PLAN, runs=(command,)),)
    )
    script = render(group, agent="a" * 64, code="c" * 64, masters={"k": "10.0.0.1"})
    script = script.replace(f"{shlex.quote(sys.executable)} -m cockpit.telemetry ", "printf ")
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STUBS": str(tmp_path)}
    done = subprocess.run(["sh"], input=script, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    tokens = set()
    for node, address in enumerate(NODES):
        (path,) = (tmp_path / address).rglob("queue.json")
        found = json.loads(path.read_text())
        token = found["peers"]["token"]
        expected = queue(replace(PLAN, runs=(command,)), {"pair": server}, code="c" * 64, node=node, token=token,
                         master="10.0.0.1")  # fmt: skip
        assert found == expected
        tokens.add(token)
    (token,) = tokens
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert token not in (tmp_path / "argv").read_text()
