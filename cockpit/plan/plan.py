"""Which runs there are, in whose turn, and what each of their stages starts. Nothing here touches a machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ConfigError, did_you_mean
from cockpit.core.ids import run_id, slug
from cockpit.core.records import GroupPlan, Limits, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.plan.fill import fill, values

if TYPE_CHECKING:
    from cockpit.config import Point, Resolved
    from cockpit.config.models import Profile

SPREAD = ("calibrate", "train")  # stages of as many processes as the training has, over all nodes as one
# Beneath what launcher.env and a server's env say, and the same for GPUs of both makers: a comparison needs that.
GPU_ENV = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
# Tensor parallelism hides its collectives behind products only where both stand in one hardware queue, in order.
TENSOR_ENV = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "GPU_MAX_HW_QUEUES": "2"}
DUEL_REPEATS = 5  # what a comparison needs to say anything below a few percent


def default_repeats(resolved: Resolved) -> int:
    """How often each run is done if the command line does not say: the profile's word, else 5 for a duel, else 1."""
    if resolved.base.repeats is not None:
        return resolved.base.repeats
    return DUEL_REPEATS if len(resolved.base.servers) > 1 else 1


def make_plan(resolved: Resolved, *, group: str, repeats: int | None = None, stage: str | None = None) -> GroupPlan:
    """The plan of a group, whose id is `group`.

    Servers that share a slot of a machine share a queue and take turns in it: each repeat goes through the sweep's
    points, each point through the servers, A B A B. `repeats` and `stage` None take the profile's. Raises
    ConfigError.
    """
    repeats = default_repeats(resolved) if repeats is None else repeats
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, not {repeats}.")
    specs = _specs(resolved)
    runs = [
        _run(resolved, point, at, server, group, repeat, stage)
        for repeat in range(repeats)
        for at, point in enumerate(resolved.points)
        for server in point.configs
    ]
    queues: dict[tuple[str, str, str, str], list[RunPlan]] = {}
    for run in runs:
        queues.setdefault(specs[run.server].queue_key, []).append(run)
    keys = _queue_names(list(queues))
    return GroupPlan(
        group=group,
        profile=resolved.name,
        overrides=resolved.overrides,
        servers=specs,
        theme=resolved.base.theme.name,
        require_all=resolved.base.require_all,
        fetch=resolved.base.fetch,
        data_from=resolved.base.data_from,
        limits=Limits(**resolved.base.limits.model_dump()),
        queues=tuple(_queue(keys[key], members, specs) for key, members in queues.items()),
    )


def _specs(resolved: Resolved) -> dict[str, ServerSpec]:
    """Each server as a machine: of its environment what all points share, the rest stands in their stages."""
    out = {}
    for name in resolved.points[0].configs:
        each = [p.configs[name].servers[name].spec(name, p.configs[name]) for p in resolved.points]
        shared = {k: v for k, v in each[0].env.items() if all(s.env.get(k) == v for s in each)}
        out[name] = replace(each[0], env=shared)
    return out


def _queue(key: str, runs: list[RunPlan], specs: Mapping[str, ServerSpec]) -> QueuePlan:
    members = [specs[name] for name in dict.fromkeys(run.server for run in runs)]
    return QueuePlan(
        key=key,
        address=members[0].address,
        workdir=members[0].workdir,
        slot=members[0].slot,
        slots=members[0].slots,
        cooldown_s=max(spec.cooldown_s for spec in members),
        runs=tuple(runs),
        access=members[0].access,
        nodes=members[0].node_accesses if len(members[0].node_accesses) > 1 else (),
    )


def _queue_names(keys: list[tuple[str, str, str, str]]) -> dict[tuple[str, str, str, str], str]:
    """A short name for each queue that stays the same from group to group; a hash where two would be alike."""
    plain = {key: slug(f"{_machine(key[0])}-{key[2]}") for key in keys}
    out = {}
    for key, name in plain.items():
        alike = list(plain.values()).count(name) > 1 or key[1]
        out[key] = f"{name}-{hashlib.sha256('|'.join(key).encode()).hexdigest()[:6]}" if alike else name
    return out


def _machine(address: str) -> str:
    """A machine's name in a queue's; several nodes go by the first one's and their number."""
    first, *others = address.split()
    return f"{first}-x{len(others) + 1}" if others else first


def _nodes(config: Profile, server: str) -> int:
    """How many nodes a server has. Raises ConfigError where they cannot share what the runner starts."""
    runner, processes = config.runner, config.run_config().processes
    count = max(1, len(config.servers[server].nodes))
    if runner.name == "command":
        if runner.log_node >= count:
            have = f"{count} nodes, counted from 0" if count > 1 else "one node"
            raise ConfigError(f"runner.log_node is {runner.log_node}, but server {server!r} has {have}.")
    elif processes % count:
        key = "runner.processes" if runner.name in ("lora", "smoke") else "training.parallel"
        raise ConfigError(
            f"{key}: {processes} process{'es' if processes > 1 else ''} cannot be shared evenly by the {count} nodes"
            f" of server {server!r}.",
            hint=f"Take a multiple of {count}, or other servers.{server}.nodes.",
        )
    return count


def _log_node(config: Profile, nodes: int) -> int:
    """The node whose output tells the iterations: where the last rank is, since it is the one that knows the loss."""
    return config.runner.log_node if config.runner.name == "command" else nodes - 1


def _run(
    resolved: Resolved, point: Point, at: int, server: str, group: str, repeat: int, stage: str | None
) -> RunPlan:
    config = point.configs[server]
    run = run_id(group, server, repeat, at)
    return RunPlan(
        run=run,
        group=group,
        server=server,
        repeat=repeat,
        sweep=dict(point.sweep),
        launcher=config.launcher.kind,
        launch=config.launcher.model_dump(mode="json"),
        stages=_stages(config, server, stage or resolved.base.stage, run),
        config=config.run_config().model_dump(mode="json"),
        usd_per_gpu_hour=config.pricing.usd_per_gpu_hour,
        log_node=_log_node(config, _nodes(config, server)),
    )


def _stages(config: Profile, server: str, wanted: str, run: str) -> tuple[StagePlan, ...]:
    """The stages of a run: exactly those asked for. A command is one stage, since only its program knows more."""
    from runners.schema import ALL_STAGES, STAGES

    if wanted != "all" and wanted not in STAGES:
        raise ConfigError(f"there is no stage {wanted!r}.", hint=did_you_mean(wanted, ("all", *STAGES)))
    names: tuple[str, ...] = ALL_STAGES if wanted == "all" else (wanted,)
    if config.calibrate and "train" in names:
        names = tuple(new for name in names for new in (("calibrate", name) if name == "train" else (name,)))
    spec = config.servers[server].spec(server, config)
    argv: tuple[str, ...] = ()
    env = _environment(config, spec)
    if config.runner.name == "command":
        if config.calibrate:
            raise ConfigError(
                "calibrate=true measures with our own runners' torch, which runner.name=command does not bring.",
                hint="Set calibrate=false.",
            )
        if wanted not in ("all", "train"):
            raise ConfigError(f"the runner command has no stage {wanted!r}.", hint="Take train or all.")
        known = values(config, spec, run)
        names, argv = ("train",), tuple(fill(word, known, "runner.argv") for word in config.runner.argv)
        own = {name: fill(text, known, f"runner.env.{name}") for name, text in config.runner.env.items()}
        env = {**env, **own, **spec.env}  # a server's own variables over the profile's
    common: dict[str, Any] = {
        "env": env,
        "timeout_s": spec.timeout_s,
        "stall_after_s": spec.stall_after_s,
        "stop_grace_s": spec.stop_grace_s,
    }
    return tuple(
        StagePlan(
            stage=name,
            module_args=() if argv else ("-m", "runners", "--config", "${RUN_DIR}/config.json", f"stage={name}"),
            argv=argv,
            processes=config.run_config().processes if name in SPREAD else 1,
            **common,
        )
        for name in names
    )


def _environment(config: Profile, spec: ServerSpec) -> dict[str, str]:
    """What a library reads when it is loaded: ours, then the launcher's (null leaves one out), then the server's."""
    said: dict[str, str | None] = {**_ours(config), **config.launcher.env}
    return {**{name: value for name, value in said.items() if value is not None}, **spec.env}


def _ours(config: Profile) -> dict[str, str]:
    """What our own runners want: on a CPU the number of threads; a command brings its own."""
    if config.runner.name == "command":
        return {}
    if config.training.backend == "cpu":
        return {"OMP_NUM_THREADS": str(config.training.threads)}
    tensor = config.runner.name == "megatron" and config.training.parallel.tensor > 1
    return {**GPU_ENV, **(TENSOR_ENV if tensor else {})}
