"""What `run --dry-run` prints: the script of a launch, for the servers as they are now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cockpit.core.errors import CockpitError
from cockpit.core.records import ContainerFacts, DataCopy, GroupPlan, RunPlan, ServerSpec
from cockpit.engine import checks_memory
from cockpit.engine.admit import Connect, accesses, close
from cockpit.engine.data import prepared, takes_data

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.hosts.look import Gpus

_ASK_S = 30.0  # a dry run also prints where no server answers

Facts = Sequence[ContainerFacts | None]


async def dry_run(group: GroupPlan, connect: Connect) -> str:
    """All that `run` would do, uploads included, as a shell script that works by hand.

    The servers are asked what a launch would ask them: their engines, their images and their names in the network.
    What one does not say is filled in with what is usual, and a remark says so.
    """
    group, copy, why = await _data(group, connect)
    names = list(dict.fromkeys(run.server for run in group.runs))
    asked = await asyncio.gather(*(_ask(group, name, connect) for name in names))
    nodes = {name: found for name, (found, _, _) in zip(names, asked, strict=True)}
    masters = {name: master for name, (_, master, _) in zip(names, asked, strict=True) if master is not None}
    said = {name: [*why.get(name, ()), *remarks] for name, (_, _, remarks) in zip(names, asked, strict=True)}
    return await asyncio.to_thread(_render, group, nodes, masters, said, copy)


async def _data(group: GroupPlan, connect: Connect) -> tuple[GroupPlan, DataCopy | None, dict[str, list[str]]]:
    """The group as it takes the data of `data_from`, how that is copied, and remarks where nobody could say."""
    try:
        async with asyncio.timeout(_ASK_S):
            found = await prepared(group, connect)
    except (CockpitError, TimeoutError) as error:
        reason = str(error) if isinstance(error, CockpitError) else f"no answer within {_ASK_S:.0f} s."
        named = {r.server for r in group.runs if takes_data(r)} - {group.data_from}
        first = f"data_from: `run` first copies what {group.data_from} has prepared to "
        return (
            group,
            None,
            {n: [f"{first}{n}; this does not, because which that is is not known: {reason}"] for n in named},
        )
    return (group, None, {}) if found is None else (*found, {})


async def _ask(group: GroupPlan, name: str, connect: Connect) -> tuple[Facts, str | None, list[str]]:
    """What is known of a server's nodes, the first one's name in the network, and remarks on what is not known."""
    server = group.servers[name]
    runs = [run for run in group.runs if run.server == name]
    remarks: list[str] = []
    hosts = [connect(access) for access in accesses(server)]
    try:
        async with asyncio.timeout(_ASK_S):
            facts = await _facts(group, server, hosts)
            master = await hosts[0].network_name() if len(hosts) > 1 and server.master_addr is None else None
            remarks += _memory(runs, await _gpus(runs, server, hosts[0]), server)
    except (CockpitError, TimeoutError) as error:
        why = error.message if isinstance(error, CockpitError) else f"no answer within {_ASK_S:.0f} s."
        told = _memory(runs, None, server)
        return (), None, [*told, f"{name} could not be asked, and is taken to be as usual: {why}"]
    finally:
        await close(hosts)
    if any(f is not None and f.image_id is None for f in facts):
        remarks.append(f"the image is not on {name} yet: its entry point is not known, and is taken to be none.")
    return facts, master, remarks


async def _gpus(runs: Sequence[RunPlan], server: ServerSpec, host: Host) -> Gpus | None:
    """The GPUs there, where it matters how much they hold."""
    from cockpit.hosts import look

    if server.vendor == "cpu" or checks_memory.estimate(runs) is None:
        return None
    return await look.gpus(host, server.vendor)


def _memory(runs: Sequence[RunPlan], gpus: Gpus | None, server: ServerSpec) -> list[str]:
    """Whether the trainings fit, in remarks."""
    told = []
    for finding in checks_memory.fit(runs, gpus, server):
        refused = "`run` refuses this: " if finding.level == "fail" else ""
        told.append(f"{refused}{finding.text}{f' {finding.mend}' if finding.mend else ''}")
    return told


async def _facts(group: GroupPlan, server: ServerSpec, hosts: Sequence[Host]) -> Facts:
    """The engine of each node and the image that the server's runs are in; nothing where there is no container."""
    from cockpit.core.imagename import image_tag
    from cockpit.hosts.probe import container_facts

    run = next((r for r in group.runs if r.server == server.name and r.launcher == "container"), None)
    if run is None:
        return ()
    engine, image = str(run.launch.get("engine", "auto")), image_tag(run.launch, server.vendor)
    return await asyncio.gather(*(container_facts(h, engine, image, vendor=server.vendor) for h in hosts))


def _render(
    group: GroupPlan,
    nodes: Mapping[str, Facts],
    masters: Mapping[str, str],
    said: Mapping[str, Sequence[str]],
    copy: DataCopy | None,
) -> str:
    from cockpit import launch as launchers
    from cockpit.engine.deliver import Packing
    from cockpit.telemetry.pack import build_agent, build_code

    packing = Packing()
    try:
        packed = [packing.pack(server) for server in group.servers.values()]
    finally:
        packing.close()
    servers = {queue.key: list(dict.fromkeys(run.server for run in queue.runs)) for queue in group.queues}
    return launchers.render(
        group,
        agent=build_agent().sha256,
        code=build_code().sha256,
        files={local: archive.there for each in packed for local, archive in each.items()},
        masters={key: masters[names[0]] for key, names in servers.items() if names[0] in masters},
        nodes=nodes,
        data=copy,
        remarks={key: [r for name in names for r in said[name]] for key, names in servers.items()},
    )
