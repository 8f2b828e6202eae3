"""What every launcher needs: which words start a stage, how nodes meet, where secrets and files are. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import NodePower, RunPlan, ServerSpec, StagePlan
from cockpit.plan.plan import SPREAD

SCHEMA = "ekvi.queue/1"
SPOOL_MAX_BY = 1 << 30
GPU_HZ, CPU_HZ = 10.0, 2.0  # samples a second where the profile does not say
GPU_IDLE_S = 5.0  # of idling before a run
PEER_SILENCE_S = 30.0
HF_TOKENS = ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN")
# What chooses GPUs for a program: `gpus` and one of these together would choose twice.
CHOOSERS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a queue's runs are: the queue's names, which of several nodes this is, and the files that came along.

    `master` is the first node's address as the others see it, `port` the one that torchrun meets at. `files` are the
    archives that were made of a server's files: from the path as the profile says it to `<sha16>/NAME`.
    """

    group: str = ""
    key: str = ""
    node: int = 0
    nodes: int = 1
    master: str | None = None
    port: int = 29400
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        """The queue's folder, for the agent to fill in."""
        return f"${{WORK_DIR}}/groups/{self.group}.{self.key}"

    def file(self, server: ServerSpec, local: str) -> str:
        """A sent file's path on the server, for the agent to fill in."""
        if local not in self.files:
            raise LaunchRefused(f"server {server.name}: {local!r} of its files was not packed, so it cannot be sent.")
        return "${FILES_DIR}/" + self.files[local]


ALONE = Place()


def interpreter(server: ServerSpec) -> str:
    """The Python of a server's host: its own `python`, else the cockpit's on this machine, else python3."""
    if server.python is None:
        return sys.executable if server.address == "local" else "python3"
    return str(Path(server.python).expanduser()) if server.address == "local" else server.python


def run_entry(
    run: RunPlan,
    server: ServerSpec,
    *,
    env: Mapping[str, str],
    stages: list[dict[str, Any]],
    links: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A run of queue.json."""
    return {
        "run": run.run,
        "server": run.server,
        "gpus": None if server.gpus is None else list(server.gpus),
        "env": dict(env),
        "links": dict(links or {}),
        "stages": stages,
    }


def stage_entry(
    stage: StagePlan, *, argv: list[str], env: Mapping[str, str], container: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A stage of a run of queue.json."""
    return {
        "stage": stage.stage,
        "argv": argv,
        "env": dict(env),
        "cwd": None,
        "timeout_s": stage.timeout_s,
        "stall_after_s": stage.stall_after_s,
        "stop_grace_s": stage.stop_grace_s,
        "container": None if container is None else dict(container),
    }


def words(stage: StagePlan, run: RunPlan, server: ServerSpec, place: Place, python: str) -> list[str]:
    """The program that a stage starts on this node, and its words."""
    if stage.argv:
        return list(stage.argv)
    spread = stage.stage in SPREAD and place.nodes > 1  # on one node a training may be a single process
    if stage.processes == 1 and not spread:
        return [python, *stage.module_args]
    # What follows the module's name is the module's: torchrun takes the rest of the line as it is.
    return [python, "-m", "torch.distributed.run", *_torchrun(stage, run, server, place), *stage.module_args]


def _torchrun(stage: StagePlan, run: RunPlan, server: ServerSpec, place: Place) -> list[str]:
    if place.nodes == 1:
        # --local-addr: torchrun would look the machine's own name up, which not every resolver knows.
        return ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(stage.processes)]
    each, left = divmod(stage.processes, place.nodes)
    if left or not each:
        raise LaunchRefused(
            f"server {server.name}: {stage.processes} processes do not divide by its {place.nodes} nodes.",
            hint="Set training.parallel so that every node gets as many as the others.",
        )
    # A static meeting place: the port is bound by the first node's torchrun of this very stage, which the agents
    # begin together; should a store of an earlier stage still answer there, its keys bear another id.
    return [
        *("--nnodes", str(place.nodes), "--node-rank", str(place.node), "--nproc-per-node", str(each)),
        *("--master-addr", _master(server, place), "--master-port", str(place.port)),
        *("--rdzv-id", f"{run.run}.{stage.stage}"),
    ]


def _master(server: ServerSpec, place: Place) -> str:
    """The first node's address: asked for, else said by the profile, else the name that SSH knows it by."""
    found = place.master or server.master_addr or server.nodes[0].rpartition("@")[2]
    if found == "local":
        raise LaunchRefused(
            f"server {server.name}: its first node is this machine, and how the others reach it is not known.",
            hint=f"Set servers.{server.name}.master_addr to its address.",
        )
    return found


def variables(run: RunPlan, server: ServerSpec, place: Place, secrets: str) -> dict[str, str]:
    """What the cockpit tells a run beside the server's own variables: how nodes meet, where secrets are.

    `secrets` is their folder as the run sees it.
    """
    env: dict[str, str] = {}
    if place.nodes > 1:
        env |= {"MASTER_ADDR": _master(server, place), "MASTER_PORT": str(place.port)}
        env |= {"NNODES": str(place.nodes), "NODE_RANK": str(place.node)}
    token = next((name for name in HF_TOKENS if name in server.secrets), None)
    if token is not None:
        env["HF_TOKEN_PATH"] = f"{secrets}/{token}"
    env |= {f"{name}_FILE": f"{secrets}/{name}" for name in server.secrets if name not in HF_TOKENS}
    _refuse_said(run, server, env, "which the cockpit sets itself", "Leave it out of env.")
    return env


def refuse_choosers(run: RunPlan, server: ServerSpec) -> None:
    """Refuse a variable that chooses GPUs beside `gpus`, since one would filter what the other left."""
    if server.gpus is not None:
        names = CHOOSERS.get(server.vendor, ())
        _refuse_said(run, server, names, "and gpus chooses them too", "Say one of the two.")


def _refuse_said(run: RunPlan, server: ServerSpec, names: Iterable[str], why: str, hint: str) -> None:
    said = dict(server.env)
    for stage in run.stages:
        said |= stage.env
    for name in names:
        if name in said:
            raise LaunchRefused(f"server {server.name}: its env sets {name}, {why}.", hint=hint)


def telemetry(servers: Sequence[ServerSpec], place: Place) -> dict[str, Any]:
    """How a machine is sampled, whatever server of it a run is for."""
    vendor = next((server.vendor for server in servers if server.vendor in CHOOSERS), "cpu")
    gpus, asked = vendor != "cpu", servers[0].telemetry
    power = next((server.node_power for server in servers if server.node_power is not None), None)
    return {
        "hz": asked.hz or (GPU_HZ if gpus else CPU_HZ),
        "vendor": vendor,
        "idle_s": asked.idle_s if asked.idle_s is not None else (GPU_IDLE_S if gpus else 0.0),
        "keep_by": asked.keep_by,
        "node_power": None if power is None else _node_power(power, servers[0], place),
    }


def _node_power(power: NodePower, server: ServerSpec, place: Place) -> dict[str, Any]:
    if power.kind == "ipmi" or power.url is None:
        return {"kind": power.kind}
    node = server.nodes[place.node] if server.nodes else server.address
    url = power.url.replace("{node}", node.rpartition("@")[2])
    return {"kind": power.kind, "url": url, "user": power.user, "secret": power.secret, "insecure": power.insecure}


def peers(server: ServerSpec, place: Place, token: str | None) -> dict[str, Any] | None:
    """How the agents of a server's nodes find and trust each other; None where there is one node."""
    if place.nodes == 1:
        return None
    if not token:
        raise LaunchRefused(f"server {server.name}: its nodes were given no token to know each other by.")
    return {
        "rank": place.node,
        "names": list(server.nodes),
        "address": _master(server, place),
        "port": place.port + 1,
        "token": token,
        "silence_s": PEER_SILENCE_S,
    }
