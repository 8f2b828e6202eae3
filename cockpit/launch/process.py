"""The process launcher: a run as plain processes on its server, no container around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import RunPlan, ServerSpec
from cockpit.launch import common
from cockpit.launch.common import ALONE, Place

SECRETS = "${SECRETS_DIR}"


def plan(run: RunPlan, server: ServerSpec, place: Place = ALONE) -> dict[str, Any]:
    """One run of queue.json. Raises LaunchRefused where `server` asks for what plain processes cannot give."""
    _refuse(run, server)
    python = common.interpreter(server)
    told = common.variables(run, server, place, SECRETS)
    stages = []
    for stage in run.stages:
        argv = common.words(stage, run, server, place, python)
        # A stage's variables go over the run's: a path of its own must not hide the runners' source.
        own = _with_code(stage.env) if stage.module_args and "PYTHONPATH" in stage.env else stage.env
        stages.append(common.stage_entry(stage, argv=argv, env=own))
    links = {target: place.file(server, local) for local, target in server.files.items()}
    return common.run_entry(run, server, env=_environment(run, server, told), stages=stages, links=links)


def _refuse(run: RunPlan, server: ServerSpec) -> None:
    if server.mounts:
        raise LaunchRefused(
            f"server {server.name}: mounts are for containers, and its launcher is process.",
            hint="Leave mounts out, or take launcher=container.",
        )
    for local, target in server.files.items():
        if target.startswith("/"):
            raise LaunchRefused(
                f"server {server.name}: {local!r} is to be at {target}, and plain processes get their files in the "
                "run's own folder.",
                hint="Name a relative path, or take launcher=container.",
            )
    common.refuse_choosers(run, server)


def _environment(run: RunPlan, server: ServerSpec, told: Mapping[str, str]) -> dict[str, str]:
    """A run's variables: the server's own over ours, save that the runners' source stays first on the path."""
    env = {**_visible(server)}
    code = any(stage.module_args for stage in run.stages)
    if code:
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # the source on the server is read-only and named by its hash
    env |= {**server.env, **told}
    return _with_code(env) if code else env


def _visible(server: ServerSpec) -> dict[str, str]:
    """The GPUs of a subset, by the numbers that the vendor's own tools and the telemetry use."""
    chosen = ",".join(map(str, server.gpus or ()))
    if server.gpus is None or server.vendor not in common.CHOOSERS:
        return {}
    if server.vendor == "amd":
        return {"HIP_VISIBLE_DEVICES": chosen}
    # CUDA's own order is the fastest first, which is not the one that nvidia-smi counts in.
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": chosen}


def _with_code(env: Mapping[str, str]) -> dict[str, str]:
    """Variables with the runners' source first on Python's path, before what stood there."""
    return {**env, "PYTHONPATH": ":".join(filter(None, ["${CODE_DIR}", env.get("PYTHONPATH")]))}
