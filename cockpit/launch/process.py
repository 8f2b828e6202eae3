"""The process launcher: a run as plain processes on its server, no container around them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.hosts import layout, shell

SCHEMA = "ekvi.queue/1"
SPOOL_MAX_BY = 1 << 30
TELEMETRY_HZ = 2.0
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def interpreter(server: ServerSpec) -> str:
    """The Python that trains on a server: its own `python`, else the cockpit's on this machine, else python3."""
    if server.python is None:
        return sys.executable if server.address == "local" else "python3"
    return str(Path(server.python).expanduser()) if server.address == "local" else server.python


def plan(run: RunPlan, server: ServerSpec) -> dict[str, Any]:
    """One run of queue.json. Raises LaunchRefused where `server` asks for what plain processes cannot give."""
    _refuse(run, server)
    return {
        "run": run.run,
        "server": run.server,
        "env": _environment(run, server),
        "stages": [_stage(stage, interpreter(server)) for stage in run.stages],
    }


def queue(
    plan_: QueuePlan,
    servers: Mapping[str, ServerSpec],
    *,
    code: str,
    hz: float = TELEMETRY_HZ,
    spool_max_by: int = SPOOL_MAX_BY,
) -> dict[str, Any]:
    """The whole queue.json (ekvi.queue/1) of runs that take turns in one machine's slots.

    `code` is the SHA-256 of the runners' source or its first 16 digits; it is left out where no run needs it.
    """
    runs = [plan(run, servers[run.server]) for run in plan_.runs]
    return {
        "schema": SCHEMA,
        "group": plan_.runs[0].group,
        "key": plan_.key,
        "slot": plan_.slot,
        "slots": plan_.slots,
        "cooldown_s": plan_.cooldown_s,
        "code": code[:16] if "${CODE_DIR}" in json.dumps(runs) else None,
        "telemetry": {"hz": hz},
        "spool_max_by": spool_max_by,
        "runs": runs,
    }


def _needs_code(run: RunPlan) -> bool:
    return any(stage.module_args for stage in run.stages)


def _refuse(run: RunPlan, server: ServerSpec) -> None:
    if run.launcher != "process":
        raise LaunchRefused(
            f"server {server.name}: launcher {run.launcher!r} is not supported by this version.",
            hint="Use launcher=process.",
        )
    asked = {
        "nodes": len(server.nodes) > 1,
        "mounts": bool(server.mounts),
        "files": bool(server.files),
        "secrets": bool(server.secrets),
    }
    wanted = [key for key, said in asked.items() if said]
    if wanted:
        raise LaunchRefused(
            f"server {server.name}: the process launcher of this version does not do {' or '.join(wanted)}.",
            hint=f"Leave {'it' if len(wanted) == 1 else 'them'} out of the server's settings.",
        )


def _environment(run: RunPlan, server: ServerSpec) -> dict[str, str]:
    """A run's variables: the server's own over ours, save that the runners' source stays first on the path."""
    env: dict[str, str] = {}
    if server.gpus is not None and server.vendor in _VISIBLE:
        env[_VISIBLE[server.vendor]] = ",".join(map(str, server.gpus))
    if _needs_code(run):
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # the source on the server is read-only and named by its hash
    env.update(server.env)
    return _with_code(env) if _needs_code(run) else env


def _with_code(env: Mapping[str, str]) -> dict[str, str]:
    """Variables with the runners' source first on Python's path, before what stood there."""
    return {**env, "PYTHONPATH": ":".join(filter(None, ["${CODE_DIR}", env.get("PYTHONPATH")]))}


def _stage(stage: StagePlan, python: str) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "argv": _argv(stage, python),
        # A stage's variables go over the run's: a path of its own must not hide the runners' source.
        "env": _with_code(stage.env) if stage.module_args and "PYTHONPATH" in stage.env else dict(stage.env),
        "cwd": None,
        "timeout_s": stage.timeout_s,
        "stall_after_s": stage.stall_after_s,
        "stop_grace_s": stage.stop_grace_s,
    }


def _argv(stage: StagePlan, python: str) -> list[str]:
    if stage.argv:
        return list(stage.argv)
    if stage.processes == 1:
        return [python, *stage.module_args]
    # --local-addr: torchrun would look the machine's own name up, which not every resolver knows. What follows the
    # module's name is the module's: torchrun takes the rest of the line as it is.
    torchrun = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(stage.processes)]
    return [python, "-m", "torch.distributed.run", *torchrun, *stage.module_args]


def render(group: GroupPlan, *, agent: str, code: str) -> str:
    """A dry run: everything that `run` would do, as a shell script that does it when it is run by hand.

    `agent` and `code` are the hashes (SHA-256) of the two packages. Raises LaunchRefused as `plan` does.
    """
    return "\n".join(line for q in group.queues for line in _render_queue(group, q, agent, code)) + "\n"


def _render_queue(group: GroupPlan, plan_: QueuePlan, agent: str, code: str) -> Iterator[str]:
    document = queue(plan_, group.servers, code=code)
    here = shell.quote(sys.executable)
    python = shell.quote(interpreter(group.servers[plan_.runs[0].server]))
    work, q = '"$WORK"', '"$Q"'
    pyz = layout.agent_file(work, agent)
    yield f"# group {group.group}, queue {plan_.key} on {plan_.address}: {len(plan_.runs)} runs, one after the other"
    yield "("
    yield "set -eu; umask 077"
    yield f"WORK={_workdir(plan_)}"
    yield f"Q={layout.queue_folder(work, shell.quote(group.group), shell.quote(plan_.key))}"
    yield f"mkdir -p {work}/bin {work}/code {q}/control"
    yield "# the agent and the runners' source"
    yield f"{here} -m cockpit.telemetry agent > {pyz}"
    if document["code"] is not None:
        yield f"{here} -m cockpit.telemetry code > {layout.code_file(work, code)}"
    yield "# each run's resolved configuration, then the queue"
    for run in plan_.runs:
        yield f"mkdir -p {q}/runs/{shell.quote(run.run)}"
        yield from shell.write(layout.config_file(q, shell.quote(run.run)), layout.document(run.config))
    launch = {"agent": agent[:16], "python": interpreter(group.servers[plan_.runs[0].server])}
    yield from shell.write(layout.launch_file(q), layout.document(launch))
    yield from shell.write(layout.queue_file(q), layout.document(document))
    yield "# the agent works the queue, detached"
    yield f"{python} {pyz} start {q}"
    yield "# what it then does, run by run:"
    if document["code"] is not None:
        folder = f"{work}/code/{document['code']}"
        yield from shell.comment(f"[ -d {folder} ] || {python} -m zipfile -e {folder}.zip {folder}")
    for entry in document["runs"]:
        yield from _render_run(entry, document["code"])
    yield f"# how far it is:   {python} {pyz} status {q}"
    yield f"# to stop it all:  touch {layout.stop_file(q, None)}"
    yield ")"


def _workdir(plan_: QueuePlan) -> str:
    """The agent's folder as a shell word: what the plan says, else what `Host.workdir` would find there."""
    if plan_.workdir is not None:
        return shell.quote(str(Path(plan_.workdir).expanduser()))
    return '"${EKVI_WORKDIR:-${XDG_STATE_HOME:-$HOME/.local/state}/ekvi-cockpit/server}"'


def _render_run(entry: Mapping[str, Any], code: str | None) -> Iterator[str]:
    """The commands of one run, as comments: the agent does them, and a reader may."""
    run = shell.quote(entry["run"])
    places = f'WORK_DIR="$WORK" CACHE_DIR="$WORK"/cache RUN_DIR="$Q"/runs/{run} OUT_DIR="$Q"/runs/{run}/out'
    yield from shell.comment(places + (f' CODE_DIR="$WORK"/code/{code}' if code else ""))
    yield from shell.comment('mkdir -p "$CACHE_DIR" "$OUT_DIR"; cd "$RUN_DIR"')
    yield from shell.comment(f'export EKVI_RUN={run} EKVI_OUT="$OUT_DIR" EKVI_CACHE="$CACHE_DIR" PYTHONUNBUFFERED=1')
    for stage in entry["stages"]:
        env = entry["env"] | stage["env"] | {"EKVI_STAGE": stage["stage"]}
        words = [f"{name}={shell.fill(value)}" for name, value in env.items()]
        words += [shell.fill(word) for word in stage["argv"]]
        yield from shell.comment(f"env {' '.join(words)}")
