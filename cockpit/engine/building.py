"""`build`: a profile's images on all of its servers at once."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cockpit.core.errors import CockpitError, UsageError
from cockpit.core.imagename import context_files, image_tag, kind_of
from cockpit.core.records import Access, GroupPlan, RunPlan, ServerSpec
from cockpit.core.resources import data_dir
from cockpit.engine.admit import Connect, accesses, close
from cockpit.engine.images import Built, Place, build, build_args, build_argv
from cockpit.hosts.shell import quote, ssh

Tell = Callable[[str, str], None]  # a server's name, a line
_LOGIN = re.compile(r"://[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one machine: `name` is the server's, with its address behind it where it has several nodes."""

    name: str
    built: Built | None = None
    error: CockpitError | None = None


async def build_all(group: GroupPlan, connect: Connect, tell: Tell) -> list[Result]:
    """Build on every machine of the group at once; a machine that cannot is a result too. Raises UsageError."""
    turns: dict[tuple[str, int | None], asyncio.Lock] = defaultdict(asyncio.Lock)  # servers may share a machine

    async def one(name: str, server: ServerSpec, run: RunPlan, access: Access) -> Result:
        host, local = connect(access), connect(Access())
        try:
            async with turns[access.address, access.port]:
                place = Place(host, server, run.launch, lambda line: tell(name, line), local)
                built = await build(place, server.vendor)
            return Result(name, built=built)
        except CockpitError as error:
            tell(name, str(error))
            return Result(name, error=error)
        finally:
            await close([host, local])

    return list(await asyncio.gather(*(one(*machine) for machine in _machines(group))))


def _machines(group: GroupPlan) -> list[tuple[str, ServerSpec, RunPlan, Access]]:
    """Every machine that builds, with a run that says how."""
    found = []
    for name, server in group.servers.items():
        run = next((r for r in group.runs if r.server == name), None)
        if run is None:
            continue
        if run.launcher != "container":
            raise UsageError(
                f"Profile {group.profile} starts plain processes on {name}, so there is no image to build.",
                hint="Add launcher=container.",
            )
        ways = accesses(server)
        found += [(f"{name} ({a.address})" if len(ways) > 1 else name, server, run, a) for a in ways]
    return found


def dry_run(group: GroupPlan) -> str:
    """What `build` would do, as commands that work by hand. A build argument with a login is named, not valued."""
    return "\n".join(line for machine in _machines(group) for line in _commands(*machine)) + "\n"


def _commands(name: str, server: ServerSpec, run: RunPlan, access: Access) -> Iterator[str]:
    launch = run.launch
    if launch.get("image"):
        yield f"# {name}: launcher.image names {launch['image']}, which is not built"
        return
    engine = "docker" if launch.get("engine", "auto") == "auto" else str(launch["engine"])
    argv = build_argv(launch, server.vendor, image_tag(launch, server.vendor))
    words = [engine, *_valued(argv, build_args(launch))]
    folder = data_dir("docker")
    files = " ".join(quote(path) for path, _ in context_files(kind_of(server.vendor), folder))
    command = " ".join(quote(word) for word in words)
    yield f"# {name}"
    yield f"tar -C {quote(str(folder))} -cf - {files} | {_there(command, access)}"


def _there(command: str, access: Access) -> str:
    if access.address == "local":
        return command
    return " ".join(map(quote, [*ssh(access), command]))


def _valued(argv: Sequence[str], args: dict[str, str]) -> Iterator[str]:
    """The words with a value behind the name of each build argument, but for those that hold a login."""
    for before, word in zip(["", *argv], argv, strict=False):
        named = before == "--build-arg" and not _LOGIN.search(args[word])
        yield f"{word}={args[word]}" if named else word
