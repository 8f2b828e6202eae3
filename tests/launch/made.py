"""Runs, servers and queues that the tests of launchers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cockpit.core.records import ContainerFacts, GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.launch import queue

MODULE = ("-m", "runners", "--config", "${RUN_DIR}/config.json", "stage=train")
TRAIN = StagePlan(stage="train", module_args=MODULE, processes=2, env={"NCCL_DEBUG": "INFO"})
COMMAND = StagePlan(stage="train", argv=("train.sh", "--out", "${OUT_DIR}/x"))
FACTS = ContainerFacts(
    engine="docker", groups=(44, 109), entrypoint=("/opt/entry.sh",), home="/home/ann", uid=1000, gid=1001
)


def run(stage: StagePlan = TRAIN, launcher: str = "container", **launch: Any) -> RunPlan:
    """A run on the server `s`; `launch` are settings of the container launcher."""
    if launcher == "container":
        launch = {"image": "example/train:1", **launch}
    return RunPlan(
        run="g.s.r1", group="g", server="s", repeat=0, sweep={}, launcher=launcher, stages=(stage,), config={},
        launch=launch,
    )  # fmt: skip


def server(facts: ContainerFacts | None = FACTS, **changes: Any) -> ServerSpec:
    """The server `s`, whose engine was asked."""
    return replace(ServerSpec(name="s", address="gpu1", container=facts), **changes)


def group(run_: RunPlan, server_: ServerSpec, **changes: Any) -> GroupPlan:
    """A group of that one run."""
    plan = QueuePlan(
        key="k", address=server_.address, workdir=server_.workdir, slot="default", slots=1, cooldown_s=0.0,
        runs=(run_,), access=server_.access,
    )  # fmt: skip
    return GroupPlan(group="g", profile="p", overrides=(), servers={"s": server_}, queues=(replace(plan, **changes),))


def stage_of(run_: RunPlan, server_: ServerSpec, files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The first stage of the run's queue.json."""
    plan = group(run_, server_).queues[0]
    found: dict[str, Any] = queue(plan, {"s": server_}, code="c" * 64, files=files)["runs"][0]["stages"][0]
    return found


def argv_of(run_: RunPlan, server_: ServerSpec, files: Mapping[str, str] | None = None) -> list[str]:
    """The words of its `ENGINE create`."""
    return list(stage_of(run_, server_, files)["argv"])
