"""The process launcher: exact argv, environment and queue of a planned run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.launch.process import interpreter, plan, queue

CONFIG = "${RUN_DIR}/config.json"
MODULE = ("-m", "runners", "--config", CONFIG, "--stage", "train")
SERVER = ServerSpec(name="left", python="/opt/python")
RUN = RunPlan(
    run="g.left.r1",
    group="g",
    server="left",
    repeat=0,
    sweep={},
    launcher="process",
    stages=(StagePlan(stage="train", module_args=MODULE, timeout_s=60.0, stall_after_s=5.0, env={"A": "1"}),),
    config={"runner": {"name": "megatron"}},
)
COMMAND = replace(RUN, stages=(StagePlan(stage="train", argv=("echo", "$HOME", "${OUT_DIR}")),))


def test_one_process_is_the_interpreter_and_the_module() -> None:
    assert plan(RUN, SERVER) == {
        "run": "g.left.r1",
        "server": "left",
        "env": {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "${CODE_DIR}"},
        "stages": [
            {
                "stage": "train",
                "argv": ["/opt/python", "-m", "runners", "--config", CONFIG, "--stage", "train"],
                "env": {"A": "1"},
                "cwd": None,
                "timeout_s": 60.0,
                "stall_after_s": 5.0,
                "stop_grace_s": 10.0,
            }
        ],
    }


def test_several_processes_start_through_torchrun() -> None:
    run = replace(RUN, stages=(replace(RUN.stages[0], processes=4),))
    assert plan(run, SERVER)["stages"][0]["argv"] == [
        "/opt/python", "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", "4", "-m", "runners", "--config", CONFIG, "--stage", "train",
    ]  # fmt: skip


def test_a_command_is_its_own_argv_and_gets_no_python_path() -> None:
    found = plan(COMMAND, SERVER)
    assert found["stages"][0]["argv"] == ["echo", "$HOME", "${OUT_DIR}"]
    assert found["env"] == {}


def test_the_servers_variables_go_first_but_the_code_stays_on_the_path() -> None:
    server = replace(SERVER, env={"PYTHONPATH": "/site", "NCCL_DEBUG": "INFO", "PYTHONDONTWRITEBYTECODE": ""})
    assert plan(RUN, server)["env"] == {
        "PYTHONPATH": "${CODE_DIR}:/site",
        "NCCL_DEBUG": "INFO",
        "PYTHONDONTWRITEBYTECODE": "",
    }


def test_a_stages_own_python_path_does_not_hide_the_code() -> None:
    module = replace(RUN.stages[0], env={"PYTHONPATH": "/stage"})
    command = replace(COMMAND.stages[0], env={"PYTHONPATH": "/stage"})
    stages = plan(replace(RUN, stages=(module, command)), SERVER)["stages"]
    assert [s["env"]["PYTHONPATH"] for s in stages] == ["${CODE_DIR}:/stage", "/stage"]


@pytest.mark.parametrize(
    ("vendor", "name"), [("nvidia", "CUDA_VISIBLE_DEVICES"), ("amd", "HIP_VISIBLE_DEVICES"), ("cpu", None)]
)
def test_a_subset_of_gpus_is_what_the_run_sees(vendor: str, name: str | None) -> None:
    env = plan(COMMAND, replace(SERVER, vendor=vendor, gpus=(2, 3)))["env"]
    assert env == ({name: "2,3"} if name else {})


def test_the_interpreter_is_the_servers_own_or_a_sensible_one() -> None:
    assert interpreter(SERVER) == "/opt/python"
    assert interpreter(ServerSpec(name="x")) == sys.executable
    assert interpreter(ServerSpec(name="x", address="gpu1")) == "python3"
    assert interpreter(ServerSpec(name="x", address="gpu1", python="~/venv/bin/python")) == "~/venv/bin/python"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mounts": {"/a": "/b"}}, "mounts"),
        ({"files": {"a": "b"}}, "files"),
        ({"secrets": ("HF_TOKEN",)}, "secrets"),
        ({"nodes": ("a", "b")}, "nodes"),
        ({"nodes": ("a", "b"), "secrets": ("HF_TOKEN",)}, "nodes or secrets"),
    ],
)
def test_what_plain_processes_cannot_give_is_refused(change: dict[str, object], word: str) -> None:
    server = replace(SERVER, **change)  # type: ignore[arg-type]
    with pytest.raises(LaunchRefused, match=f"server left: the process launcher .* does not do {word}"):
        plan(RUN, server)


def test_another_launcher_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="server left: launcher 'container' is not supported by this version"):
        plan(replace(RUN, launcher="container"), SERVER)


def _queue(*runs: RunPlan) -> QueuePlan:
    return QueuePlan(
        key="local", address="local", workdir=None, slot="default", slots=1, cooldown_s=1.5, runs=tuple(runs)
    )


def test_the_queue_is_complete_and_json() -> None:
    right = replace(RUN, run="g.right.r1", server="right")
    found = queue(_queue(RUN, right), {"left": SERVER, "right": replace(SERVER, name="right")}, code="c0de" * 16)
    assert json.loads(json.dumps(found)) == found
    assert [r["run"] for r in found.pop("runs")] == ["g.left.r1", "g.right.r1"]
    assert found == {
        "schema": "ekvi.queue/1",
        "group": "g",
        "key": "local",
        "slot": "default",
        "slots": 1,
        "cooldown_s": 1.5,
        "code": "c0de" * 4,
        "telemetry": {"hz": 2.0},
        "spool_max_by": 2**30,
    }


def test_a_queue_of_commands_needs_no_code() -> None:
    assert queue(_queue(COMMAND), {"left": SERVER}, code="c0de" * 16)["code"] is None
    assert queue(_queue(COMMAND, RUN), {"left": SERVER}, code="c0de" * 16)["code"] == "c0de" * 4
