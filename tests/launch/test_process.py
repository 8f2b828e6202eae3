"""The process launcher: exact argv, environment and queue of a planned run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.launch import interpreter, plan, queue

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
        "gpus": None,
        "links": {},
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
                "container": None,
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
    ("vendor", "env"),
    [
        ("nvidia", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3"}),
        ("amd", {"HIP_VISIBLE_DEVICES": "2,3"}),
        ("cpu", {}),
    ],
)
def test_a_subset_of_gpus_is_what_the_run_sees(vendor: str, env: dict[str, str]) -> None:
    found = plan(COMMAND, replace(SERVER, vendor=vendor, gpus=(2, 3)))
    assert (found["env"], found["gpus"]) == (env, [2, 3])


@pytest.mark.parametrize(("vendor", "name"), [("nvidia", "CUDA_VISIBLE_DEVICES"), ("amd", "ROCR_VISIBLE_DEVICES")])
def test_gpus_are_not_chosen_twice(vendor: str, name: str) -> None:
    server = replace(SERVER, vendor=vendor, gpus=(2, 3), env={name: "0"})
    with pytest.raises(LaunchRefused, match=f"sets {name}, and gpus chooses them too"):
        plan(COMMAND, server)
    assert plan(COMMAND, replace(server, gpus=None))["env"] == {name: "0"}


def test_the_interpreter_is_the_servers_own_or_a_sensible_one() -> None:
    assert interpreter(SERVER) == "/opt/python"
    assert interpreter(ServerSpec(name="x")) == sys.executable
    assert interpreter(ServerSpec(name="x", address="gpu1")) == "python3"
    assert interpreter(ServerSpec(name="x", address="gpu1", python="~/venv/bin/python")) == "~/venv/bin/python"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mounts": {"/a": "/b"}}, "mounts are for containers"),
        ({"files": {"a": "/b"}}, "'a' is to be at /b, and plain processes get their files in the run's own folder"),
        ({"files": {"a": "b"}}, "'a' of its files was not packed"),
    ],
)
def test_what_plain_processes_cannot_give_is_refused(change: dict[str, object], says: str) -> None:
    server = replace(SERVER, **change)  # type: ignore[arg-type]
    with pytest.raises(LaunchRefused, match=says) as caught:
        plan(RUN, server)
    assert caught.value.message.startswith("server left: ")


def test_another_launcher_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="server left: launcher 'slurm' is not supported by this version"):
        plan(replace(RUN, launcher="slurm"), SERVER)


def test_secrets_are_told_by_the_path_of_their_file() -> None:
    server = replace(SERVER, secrets=("WANDB_API_KEY", "HUGGINGFACE_HUB_TOKEN", "HF_TOKEN"))
    assert plan(COMMAND, server)["env"] == {
        "HF_TOKEN_PATH": "${SECRETS_DIR}/HF_TOKEN",
        "WANDB_API_KEY_FILE": "${SECRETS_DIR}/WANDB_API_KEY",
    }
    with pytest.raises(LaunchRefused, match="its env sets HF_TOKEN_PATH, which the cockpit sets itself"):
        plan(COMMAND, replace(server, env={"HF_TOKEN_PATH": "/x"}))


def test_files_are_links_in_the_runs_folder_and_their_archives_are_named_once() -> None:
    server = replace(SERVER, files={"./a.yaml": "conf/a.yaml", "tool": "tool"})
    files = {"./a.yaml": f"{'a' * 16}/a.yaml", "tool": f"{'b' * 16}/tool", "other": f"{'c' * 16}/x"}
    found = queue(_queue(COMMAND, COMMAND), {"left": server}, code="", files=files)
    assert found["files"] == ["a" * 16, "b" * 16]
    assert found["runs"][0]["links"] == {
        "conf/a.yaml": f"${{FILES_DIR}}/{'a' * 16}/a.yaml",
        "tool": f"${{FILES_DIR}}/{'b' * 16}/tool",
    }


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
        "files": [],
        "peers": None,
        "telemetry": {"hz": 2.0, "vendor": "cpu", "idle_s": 0.0, "keep_by": 1 << 28, "node_power": None},
        "spool_max_by": 2**30,
    }


def test_a_queue_of_commands_needs_no_code() -> None:
    assert queue(_queue(COMMAND), {"left": SERVER}, code="c0de" * 16)["code"] is None
    assert queue(_queue(COMMAND, RUN), {"left": SERVER}, code="c0de" * 16)["code"] == "c0de" * 4
