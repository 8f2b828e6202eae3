"""Launchers: each turns a planned run into what the agent starts. Pure; they do not know each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import ContainerFacts, DataCopy, GroupPlan, QueuePlan, RunPlan, ServerSpec
from cockpit.hosts import shell
from cockpit.launch import common

LAUNCHERS = ("process", "container")
interpreter = common.interpreter


def plan(run: RunPlan, server: ServerSpec, place: common.Place = common.ALONE) -> dict[str, Any]:
    """One run of queue.json, by the launcher that the run names. Raises LaunchRefused."""
    if run.launcher == "process":
        from cockpit.launch import process

        return process.plan(run, server, place)
    if run.launcher == "container":
        from cockpit.launch import container

        return container.plan(run, server, place)
    raise LaunchRefused(
        f"server {server.name}: launcher {run.launcher!r} is not supported by this version.",
        hint=f"Use launcher={' or launcher='.join(LAUNCHERS)}.",
    )


def queue(
    plan_: QueuePlan,
    servers: Mapping[str, ServerSpec],
    *,
    code: str,
    files: Mapping[str, str] | None = None,
    node: int = 0,
    token: str | None = None,
    master: str | None = None,
    spool_max_by: int = common.SPOOL_MAX_BY,
) -> dict[str, Any]:
    """The whole queue.json (ekvi.queue/1) of runs that take turns in one machine's slots.

    `code` is the SHA-256 of the runners' source or its first 16 digits; it is left out where no run needs it. `files`
    tells for each local path of the servers' `files`, as the profile says it, what was made of it: `<sha16>/NAME`.
    With several nodes this is the queue of node number `node`; `token` (hexadecimal, the same on all nodes) is what
    they know each other by, `master` the first one's address as the others see it. A server's `container` holds what
    its engine and image said; on another node `servers` should hold that node's. Raises LaunchRefused.
    """
    first = servers[plan_.runs[0].server]
    count = max(1, len(plan_.nodes))
    _refuse_mixed(plan_, servers, count)
    place = common.Place(
        group=plan_.runs[0].group,
        key=plan_.key,
        node=node,
        nodes=count,
        master=master,
        port=first.master_port,
        files=files or {},
    )
    runs = [plan(run, servers[run.server], place) for run in plan_.runs]
    members = [servers[name] for name in dict.fromkeys(run.server for run in plan_.runs)]
    locals_ = {local for run in plan_.runs for local in servers[run.server].files}
    return {
        "schema": common.SCHEMA,
        "group": place.group,
        "key": plan_.key,
        "slot": plan_.slot,
        "slots": plan_.slots,
        "cooldown_s": plan_.cooldown_s,
        "code": code[:16] if "${CODE_DIR}" in json.dumps(runs) else None,
        "files": sorted({place.files[local].split("/", 1)[0] for local in locals_}),
        "telemetry": common.telemetry(members, place),
        "spool_max_by": spool_max_by,
        "peers": common.peers(first, place, token),
        "runs": runs,
    }


def _refuse_mixed(plan_: QueuePlan, servers: Mapping[str, ServerSpec], nodes: int) -> None:
    """Nodes move through one queue together: all of its runs are on the same nodes, one at a time."""
    members = [servers[name] for name in dict.fromkeys(run.server for run in plan_.runs)]
    for server in members:
        if (server.nodes, server.master_port) != (members[0].nodes, members[0].master_port):
            raise LaunchRefused(
                f"servers {members[0].name} and {server.name} share the slot {plan_.slot!r} of {plan_.address}, but "
                "not their nodes and master_port.",
                hint="Give one of them another slot, or both the same nodes.",
            )
    if nodes > 1 and plan_.slots > 1:
        raise LaunchRefused(
            f"server {members[0].name}: {nodes} nodes take one run at a time, and slots is {plan_.slots}.",
            hint="Leave slots out.",
        )


def render(
    group: GroupPlan,
    *,
    agent: str,
    code: str,
    files: Mapping[str, str] | None = None,
    masters: Mapping[str, str] | None = None,
    nodes: Mapping[str, Sequence[ContainerFacts | None]] | None = None,
    remarks: Mapping[str, Sequence[str]] | None = None,
    data: DataCopy | None = None,
) -> str:
    """A dry run: everything that `run` would do, as a shell script that does it when it is run by hand.

    `agent` and `code` are the hashes (SHA-256) of the two packages, `files` as for `queue`, `masters` its `master` by
    the queue's key, `nodes` what the engine and image of each node of a server said, by the server's name. `remarks`
    stand before the commands of a queue, by its key; `data` is copied before a queue starts. Raises LaunchRefused.
    """
    from cockpit.launch import dryrun

    lines: list[str] = []
    for plan_ in group.queues:
        told: dict[str, Any] = {"code": code, "files": files, "master": (masters or {}).get(plan_.key)}
        count = max(1, len(plan_.nodes))
        token = dryrun.TOKEN if count > 1 else None
        documents = [queue(plan_, _of_node(group, i, nodes or {}), node=i, token=token, **told) for i in range(count)]
        lines += [line for remark in (remarks or {}).get(plan_.key, ()) for line in shell.comment_line(remark)]
        lines += dryrun.queue(group, plan_, documents, agent=agent, files=files or {}, data=data)
    return "\n".join(lines) + "\n"


def _of_node(
    group: GroupPlan, node: int, known: Mapping[str, Sequence[ContainerFacts | None]]
) -> dict[str, ServerSpec]:
    """The servers of a group as their node number `node` is known."""
    return {
        name: dataclasses.replace(spec, container=known[name][node]) if node < len(known.get(name, ())) else spec
        for name, spec in group.servers.items()
    }


def interactive(
    server: ServerSpec, launch: Mapping[str, Any], *, workdir: str, command: Sequence[str] = (), terminal: bool = True
) -> list[str]:
    """The argv, on the server, of a shell in a container like those that train; see launch.container."""
    from cockpit.launch import container

    return container.interactive(server, launch, workdir=workdir, command=command, terminal=terminal)


def image(launch: Mapping[str, Any], vendor: str) -> str:
    """The image that a container of these settings runs: the profile's, else the one that `build` makes."""
    from cockpit.core.imagename import image_tag

    return image_tag(launch, vendor)
