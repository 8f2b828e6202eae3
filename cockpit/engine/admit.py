"""Which servers of a planned group can start: asked all at once, before anything is put anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from cockpit.core.errors import CockpitError, LaunchRefused
from cockpit.core.records import Access, ContainerFacts, GroupPlan, RunPlan, ServerSpec
from cockpit.core.within import within
from cockpit.engine.checks import examine

if TYPE_CHECKING:
    from cockpit.hosts.base import Host

Connect = Callable[[Access], "Host"]
Say = Callable[[str], None]
_CLOSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A group whose servers were asked: `refused` are those that cannot start, each with its error.

    The servers of `group` know their containers (ServerSpec.container); `nodes` are the facts of each server's
    nodes, where it has several.
    """

    group: GroupPlan
    refused: Mapping[str, CockpitError] = field(default_factory=dict)
    nodes: Mapping[str, tuple[ContainerFacts | None, ...]] = field(default_factory=dict)

    def servers(self, node: int) -> dict[str, ServerSpec]:
        """The servers as node number `node` of each knows its container."""
        return {
            name: dataclasses.replace(spec, container=self.nodes[name][node])
            if node < len(self.nodes.get(name, ()))
            else spec
            for name, spec in self.group.servers.items()
        }


async def check(group: GroupPlan, connect: Connect, *, say: Say = lambda _: None) -> Checked:
    """Ask every server whether its runs can start, and see that their images are there.

    Raises LaunchRefused (or what stood in the way) where no server can, or where one cannot and the group needs all.
    """
    names = list(dict.fromkeys(r.server for r in group.runs))
    answers = await asyncio.gather(*(_ask(group, name, connect, say) for name in names))
    servers, refused, nodes = dict(group.servers), {}, {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, CockpitError):
            refused[name] = answer
        else:
            servers[name] = dataclasses.replace(servers[name], container=answer[0])
            nodes[name] = answer
    return admitted(Checked(dataclasses.replace(group, servers=servers), refused, nodes))


def admitted(checked: Checked) -> Checked:
    """`checked` where something can start; raises what stands in the way where nothing can, or not all that must."""
    must(checked.refused, {r.server for r in checked.group.runs}, require_all=checked.group.require_all)
    return checked


def must(refused: Mapping[str, CockpitError], servers: Collection[str], *, require_all: bool) -> None:
    """Raise what stands in the way where no server can start, or one cannot and `require_all` is set."""
    if not refused or (not require_all and set(servers) - set(refused)):
        return
    errors = list(refused.values())
    if len(errors) == 1:
        raise errors[0]
    why = "no server can start" if len(errors) == len(servers) else f"{len(errors)} servers cannot start"
    raise LaunchRefused("\n  ".join([f"{why}:", *map(str, errors)]))


async def _ask(
    group: GroupPlan, name: str, connect: Connect, say: Say
) -> tuple[ContainerFacts | None, ...] | CockpitError:
    """The container facts of a server's nodes, or why it cannot start."""
    server = group.servers[name]
    runs = [r for r in group.runs if r.server == name]
    hosts = [connect(access) for access in accesses(server)]
    try:
        examined = await examine(hosts[0], server, runs, peers=hosts[1:], profile=group.profile)
        refusal = examined.refusal(name, group.profile)
        for finding in examined.findings:
            if finding.level == "warn" and refusal is None:
                say(f"server {name}: {finding.text}{f' {finding.mend}' if finding.mend else ''}")
        if refusal is not None:
            return refusal
        images = _images(runs)
        for image in images:
            await _image(group, server, image, hosts, connect, say)
        if not images:
            return (examined.container,)
        return tuple(await asyncio.gather(*(_facts(host, server, images[0]) for host in hosts)))
    except CockpitError as error:
        return error
    finally:
        await close(hosts)


def accesses(server: ServerSpec) -> tuple[Access, ...]:
    """How each machine of a server is reached, the first one first."""
    return server.node_accesses or (server.access,)


def _images(runs: list[RunPlan]) -> list[Mapping[str, Any]]:
    """The launcher settings of these runs that need images, each once."""
    found: list[Mapping[str, Any]] = []
    for run in runs:
        if run.launcher == "container" and run.launch not in found:
            found.append(run.launch)
    return found


async def _image(
    group: GroupPlan, server: ServerSpec, launch: Mapping[str, Any], hosts: list[Host], connect: Connect, say: Say
) -> None:
    """See that an image is on every node of a server."""
    from cockpit.engine.images import Place, ensure_image

    local = connect(Access())
    name = launch.get("send_from")
    source = connect(group.servers[name].access) if name not in (None, "local") and name in group.servers else None
    try:
        for host in hosts:
            place = Place(host, server, launch, lambda line: say(f"{server.name}: {line}"), local, group.profile)
            await ensure_image(place, source=source)
    finally:
        await close([h for h in (local, source) if h is not None])


async def _facts(host: Host, server: ServerSpec, launch: Mapping[str, Any]) -> ContainerFacts:
    """What is known of the engine and the image now that the image is there."""
    from cockpit.engine.images import image_tag
    from cockpit.hosts.probe import container_facts

    image = image_tag(launch, server.vendor)
    return await container_facts(host, str(launch.get("engine", "auto")), image, vendor=server.vendor)


async def close(hosts: list[Host]) -> None:
    """Let go of machines; one that does not answer any more keeps nobody."""
    await asyncio.gather(*(within(_CLOSE_S, h.close()) for h in hosts), return_exceptions=True)


class Kept:
    """`connect` that keeps each machine's connection until `close`, so that a command logs in once a server."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._hosts: dict[Access, Host] = {}

    def __call__(self, access: Access) -> Host:
        """The way to a machine; the same for all who ask."""
        if access not in self._hosts:
            self._hosts[access] = self._connect(access)
        return cast("Host", _Lent(self._hosts[access]))

    async def close(self) -> None:
        """Let go of all machines."""
        await close(list(self._hosts.values()))


class _Lent:
    """A Host whose `close` leaves the connection to who lent it."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def close(self) -> None:
        """The lender closes it."""
