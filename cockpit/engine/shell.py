"""`shell`: an interactive shell on a server, with what a run would have there, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cockpit.core.errors import ServerError, UsageError
from cockpit.core.imagename import image_tag
from cockpit.core.records import Access, GroupPlan, RunPlan, ServerSpec
from cockpit.engine.admit import Connect, close
from cockpit.engine.deliver import Packing, archives, secrets_of
from cockpit.hosts import layout
from cockpit.hosts.base import Host

Say = Callable[[str], None]
RUN = "shell"
_UNPACK_S = 600.0
_PLACE = re.compile(r"\$\{([A-Z]+_DIR)\}")

# Whatever ends the shell, a broken link too, takes its folder (with its secrets) and its container along. What a
# container wrote as root, another one of its image removes.
_WRAPPER = r"""
folder=$1; engine=$2; name=$3; image=$4; shell=$5; cwd=$6; shift 6
leave() {
  trap - EXIT
  [ -z "$engine" ] || "$engine" rm -f "$name" >/dev/null 2>&1
  cd / && rm -rf "$folder" 2>/dev/null
  if [ -e "$folder" ] && [ -n "$engine" ]; then
    "$engine" run --rm --network none --user 0 -v "$folder:/ekvi" --entrypoint "$shell" "$image" \
      -c 'rm -rf /ekvi/*' >/dev/null 2>&1
    rm -rf "$folder"
  fi
}
trap leave EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$cwd" || exit 1
# An engine's client does not end with its terminal, and a trap would wait for it: so this waits in a way that traps
# interrupt. The client gets its keys through the terminal's raw mode, not as signals.
if [ -n "$engine" ]; then
  exec 3<&0
  "$@" <&3 3<&- &
  wait $!
else
  "$@"
fi
"""
# The shell that people want where an image has it; inside the image's own entry point, as a run is.
_BEST = 'if command -v bash >/dev/null 2>&1; then exec bash; else exec "${0:-sh}"; fi'


@dataclass(frozen=True, slots=True)
class _There:
    """What was put on the server: a folder of this shell's own."""

    workdir: str
    folder: str
    files: Mapping[str, str]  # a local path as the profile says it: its place there

    @property
    def places(self) -> dict[str, str]:
        """The agent's places, as paths there."""
        return {
            "RUN_DIR": f"{self.folder}/run",
            "OUT_DIR": f"{self.folder}/out",
            "CODE_DIR": f"{self.folder}/code",
            "SECRETS_DIR": f"{self.folder}/secrets",
            "FILES_DIR": f"{self.folder}/files",
            "CACHE_DIR": f"{self.workdir}/cache",
            "WORK_DIR": self.workdir,
        }


async def open_shell(group: GroupPlan, name: str, command: Sequence[str], connect: Connect, *, say: Say) -> int:
    """Run a shell, or `command`, on the server `name` (the first of its nodes), and return its exit status.

    It has a run's mounts, variables, devices, files and secrets, a folder of its own for output, and the terminal
    of this process. Raises UsageError without a terminal, LaunchRefused, ServerError.
    """
    server = group.servers[name]
    run = next((r for r in group.runs if r.server == name), None)
    if run is None:
        raise UsageError(f"Nothing runs on {name} in profile {group.profile}.")
    host = connect(server.access)
    packing = Packing()
    try:
        if run.launcher == "container":
            server = await _with_image(group, server, run, host, connect, say)
        workdir = await host.workdir(server.workdir)
        folder = f"{workdir}/shells/{secrets.token_hex(6)}"
        try:
            there = await _put(host, server, run, packing, workdir, folder)
            return await host.shell(await _argv(host, server, run, there, command))
        finally:
            # Its own end does this too, but not where it never began.
            with contextlib.suppress(ServerError):
                await host.remove_tree(folder)
    finally:
        packing.close()
        await close([host])


async def _with_image(
    group: GroupPlan, server: ServerSpec, run: RunPlan, host: Host, connect: Connect, say: Say
) -> ServerSpec:
    """The server with what its engine and image are, once the image is there."""
    from cockpit.engine.images import Place, ensure_image
    from cockpit.hosts.probe import container_facts

    local = connect(Access())
    named = run.launch.get("send_from")
    source = connect(group.servers[str(named)].access) if named in group.servers else None
    try:
        await ensure_image(Place(host, server, run.launch, say, local, group.profile), source=source)
    finally:
        await close([h for h in (local, source) if h is not None])
    image = image_tag(run.launch, server.vendor)
    facts = await container_facts(host, str(run.launch.get("engine", "auto")), image, vendor=server.vendor)
    return replace(server, container=facts)


async def _put(host: Host, server: ServerSpec, run: RunPlan, packing: Packing, workdir: str, folder: str) -> _There:
    """The runners' code, the configuration, files and secrets, in a folder of their own."""
    from cockpit.launch import interpreter
    from cockpit.telemetry.pack import build_code

    values = secrets_of([server])
    packed = await asyncio.to_thread(packing.pack, server)
    code = await asyncio.to_thread(build_code)
    for path in (f"{folder}/run", f"{folder}/out", f"{folder}/secrets", f"{workdir}/cache"):
        await host.mkdirs(path)
    await host.put(layout.document(run.config).encode(), f"{folder}/run/config.json")
    python = interpreter(server)
    await host.put(code.data, f"{folder}/code.zip")
    await _unpack(host, python, f"{folder}/code.zip", f"{folder}/code")
    for archive in archives(packed):
        await host.put_file(archive.path, f"{folder}/{archive.sha256[:16]}.zip")
        await _unpack(host, python, f"{folder}/{archive.sha256[:16]}.zip", f"{folder}/files/{archive.sha256[:16]}")
    for name, value in values.items():
        await host.put(value, f"{folder}/secrets/{name}")
    return _There(workdir, folder, {local: archive.there for local, archive in packed.items()})


async def _unpack(host: Host, python: str, archive: str, folder: str) -> None:
    await host.mkdirs(folder)
    done = await host.run([python, "-I", "-m", "zipfile", "-e", archive, folder], timeout=_UNPACK_S)
    if done.rc != 0:
        raise ServerError(
            f"{host.name}: {python} could not unpack {archive}: {done.last_words or done.rc}.",
            hint="Set the server's python to an interpreter that runs.",
        )


async def _argv(host: Host, server: ServerSpec, run: RunPlan, there: _There, command: Sequence[str]) -> list[str]:
    """What runs on the server's terminal, wrapped so that nothing stays of it."""
    if run.launcher != "container":
        return await _process(host, server, run, there, command)
    from cockpit.config.models import ContainerLauncher
    from cockpit.launch.container import facts_of, flags

    settings = ContainerLauncher.model_validate({**run.launch, "kind": "container"})
    facts = facts_of(server, settings)
    cache = flags.hf_cache(settings, facts)
    if cache is not None:
        await host.mkdirs(cache)
    name = f"ekvi-shell-{there.folder.rpartition('/')[2]}"
    argv = _container(server, run, there, command, name)
    image = image_tag(run.launch, server.vendor)
    return ["sh", "-c", _WRAPPER, "sh", there.folder, facts.engine, name, image, settings.shell, "/", *argv]


def _container(server: ServerSpec, run: RunPlan, there: _There, command: Sequence[str], name: str) -> list[str]:
    """`ENGINE run` with a run's own mounts and variables beside those that every container of the profile has."""
    from cockpit.config.models import ContainerLauncher
    from cockpit.launch import common, container, interactive
    from cockpit.launch.container.mounts import Mount, csv

    settings = ContainerLauncher.model_validate({**run.launch, "kind": "container"})
    facts = container.facts_of(server, settings)
    code = any(stage.module_args for stage in run.stages)
    mounts = [
        Mount(there.places["RUN_DIR"], container.INNER["RUN_DIR"], readonly=True),
        Mount(there.places["OUT_DIR"], container.INNER["OUT_DIR"]),
        Mount(there.places["CODE_DIR"], container.INNER["CODE_DIR"], readonly=True),
        *([Mount(there.places["SECRETS_DIR"], container.SECRETS, readonly=True)] if server.secrets else []),
        *(Mount(f"{there.folder}/files/{place}", server.files[local], readonly=True)
          for local, place in there.files.items()),
    ]  # fmt: skip
    env = {**_stage_env(run), **common.variables(run, replace(server, nodes=()), common.ALONE, container.SECRETS)}
    env |= {"EKVI_OUT": container.INNER["OUT_DIR"], "EKVI_RUN": RUN, "PYTHONUNBUFFERED": "1"}
    entrypoint = list(facts.entrypoint) if settings.entrypoint is None else list(settings.entrypoint)
    words = [*entrypoint, *(command or [settings.shell, "-c", _BEST, settings.shell])]
    start = (container.WITH_CODE if code else "") + 'exec "$@"'
    inside = [settings.shell, "-c", start, "ekvi", *words]
    engine, verb, *rest = interactive(server, run.launch, workdir=there.workdir, command=inside)
    ours = ["--name", name]
    ours += [word for key, value in env.items() for word in ("--env", f"{key}={container.inner(value, server)}")]
    ours += [word for mount in mounts for word in ("--mount", csv(mount))]
    if code and settings.workdir is None:
        ours += ["--workdir", container.INNER["RUN_DIR"]]
    return [engine, verb, *ours, *rest]


def _stage_env(run: RunPlan) -> dict[str, str]:
    """The variables of the stage that trains, else of the last."""
    stage = next((s for s in run.stages if s.stage == "train"), run.stages[-1])
    return dict(stage.env)


async def _process(host: Host, server: ServerSpec, run: RunPlan, there: _There, command: Sequence[str]) -> list[str]:
    """The user's own shell with a run's variables, in a folder as a run has it."""
    from cockpit import launch
    from cockpit.launch import common

    place = replace(common.ALONE, files=there.files)
    entry = launch.plan(run, replace(server, nodes=(), node_accesses=()), place)
    stage = next((s for s in entry["stages"] if s["stage"] == "train"), entry["stages"][-1])
    env = {**entry["env"], **stage["env"], "EKVI_OUT": "${OUT_DIR}", "EKVI_CACHE": "${CACHE_DIR}", "EKVI_RUN": RUN}
    words = [f"{name}={_fill(value, there)}" for name, value in {**env, "PYTHONUNBUFFERED": "1"}.items()]
    home = there.places["RUN_DIR"]
    for target, source in entry.get("links", {}).items():
        link = f"{home}/{target}"
        await host.mkdirs(link.rpartition("/")[0])
        await host.run(["ln", "-s", _fill(source, there), link])
    shell = list(command) or ["sh", "-c", 'exec "${SHELL:-/bin/sh}"']
    return ["sh", "-c", _WRAPPER, "sh", there.folder, "", "", "", "", home, "env", *words, *shell]


def _fill(value: str, there: _There) -> str:
    return _PLACE.sub(lambda m: there.places.get(m[1], m[0]), value)
