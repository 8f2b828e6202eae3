"""The container launcher: each stage of a run in a container of docker or podman, as one `ENGINE create`.

The agent does the rest (docs/design/contracts.md, "Containers"): it makes the FIFO that the container prints into,
creates, starts, waits, and removes what it started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import LaunchRefused
from cockpit.core.imagename import image_tag
from cockpit.core.records import ContainerFacts, RunPlan, ServerSpec, StagePlan
from cockpit.launch import common
from cockpit.launch.common import ALONE, Place
from cockpit.launch.container import flags
from cockpit.launch.container.mounts import Mount, csv

if TYPE_CHECKING:
    from cockpit.config.models import ContainerLauncher

PYTHON = "python3"
SECRETS = "/run/secrets"
INNER = {
    "RUN_DIR": "/ekvi/run",
    "OUT_DIR": "/ekvi/out",
    "CACHE_DIR": "/ekvi/cache",
    "CODE_DIR": "/ekvi/code",
    "SECRETS_DIR": SECRETS,
}
_PLACE = re.compile(r"\$\{(RUN_DIR|OUT_DIR|CACHE_DIR|CODE_DIR|SECRETS_DIR|WORK_DIR|FILES_DIR)\}")
# The FIFO stays open for reading in the container itself, so that no end of a reader ends the training.
PRINTS = 'exec 3<>/ekvi/pipe; exec "$@" >&3 2>&3 3>&-'
# The image's own path stays behind the runners' source.
WITH_CODE = 'export PYTHONPATH="/ekvi/code${PYTHONPATH:+:$PYTHONPATH}"; '


def plan(run: RunPlan, server: ServerSpec, place: Place = ALONE) -> dict[str, Any]:
    """One run of queue.json. Raises LaunchRefused where `server` asks for what cannot be given."""
    settings = launcher(run)
    _refuse(run, server, settings, place)
    stages = [_stage(i, stage, run, server, place, settings) for i, stage in enumerate(run.stages)]
    return common.run_entry(run, server, env={}, stages=stages)


def launcher(run: RunPlan) -> ContainerLauncher:
    """The launcher's settings of a run, typed."""
    from cockpit.config.models import ContainerLauncher

    return ContainerLauncher.model_validate({**run.launch, "kind": "container"})


def facts_of(server: ServerSpec, settings: ContainerLauncher) -> ContainerFacts:
    """What is known of the server's engine; where nobody asked it, what is usual."""
    if server.container is not None:
        return server.container
    return ContainerFacts(engine="docker" if settings.engine == "auto" else settings.engine)


def _refuse(run: RunPlan, server: ServerSpec, settings: ContainerLauncher, place: Place) -> None:
    for local, target in server.files.items():
        if not target.startswith("/"):
            raise LaunchRefused(
                f"server {server.name}: {local!r} is to be at {target!r}, which is no path in a container.",
                hint="Name an absolute path, or take launcher=process.",
            )
    if '"' in (server.workdir or ""):  # the agent fills it into mounts, where the mark would end a field
        raise LaunchRefused(
            f"server {server.name}: workdir {server.workdir!r} holds a quotation mark, which no mount of a container "
            "can be given with.",
            hint="Take another folder.",
        )
    if place.nodes > 1 and settings.network != "host":
        raise LaunchRefused(
            f"server {server.name}: its nodes meet on the machines' own network, and launcher.network is "
            f"{settings.network!r}.",
            hint="Set launcher.network=host.",
        )
    common.refuse_choosers(run, server)


def _stage(
    at: int, stage: StagePlan, run: RunPlan, server: ServerSpec, place: Place, settings: ContainerLauncher
) -> dict[str, Any]:
    facts = facts_of(server, settings)
    name = f"ekvi-{run.run}-{stage.stage}" + (f"-n{place.node}" if place.nodes > 1 else "")
    labels = {"group": run.group, "run": run.run, "stage": stage.stage, "agent": place.queue}
    told = common.variables(run, server, place, SECRETS)
    told |= {"EKVI_OUT": INNER["OUT_DIR"], "EKVI_CACHE": INNER["CACHE_DIR"], "EKVI_RUN": run.run}
    told |= {"EKVI_STAGE": stage.stage, "PYTHONUNBUFFERED": "1"}
    words = common.words(stage, run, server, place, PYTHON)
    code = bool(stage.module_args)
    needs_code = code or any("${CODE_DIR}" in word for word in (*words, *server.env.values(), *stage.env.values()))
    mounts = [*_places(at, server, needs_code), *flags.mounts(server, settings, facts), *_files(server, place)]
    argv = [
        *(facts.engine, "create", "--name", name, "--pull", "never"),
        *(word for key, value in labels.items() for word in ("--label", f"ekvi.{key}={value}")),
        *flags.all_of(server, settings, facts),
        *_workdir(server, settings, code),
        *_env(server, {**flags.env(server, settings, facts), **server.env, **stage.env}, told),
        *_mount_flags(server, mounts),
        *settings.extra,
        *("--stop-signal", "TERM", "--entrypoint", settings.shell),
        *(image_tag(run.launch, server.vendor), "-c", (WITH_CODE if code else "") + PRINTS, "ekvi"),
        *_entrypoint(server, settings, facts),
        *(inner(word, server) for word in words),
    ]
    hf_cache = flags.hf_cache(settings, facts)
    folders = [] if hf_cache is None else [hf_cache]
    return common.stage_entry(
        stage, argv=argv, env={}, container={"engine": facts.engine, "name": name, "folders": folders}
    )


def inner(word: str, server: ServerSpec) -> str:
    """A word as the container's program reads it: the agent's places are where they are mounted."""

    def path(match: re.Match[str]) -> str:
        if match[1] not in INNER:
            raise LaunchRefused(
                f"server {server.name}: {match[0]} stands in {word!r}, and there is no such folder in a container.",
                hint="OUT_DIR, CACHE_DIR, RUN_DIR and CODE_DIR are there.",
            )
        return INNER[match[1]]

    return _PLACE.sub(path, word)


def _env(server: ServerSpec, said: Mapping[str, str], told: Mapping[str, str]) -> list[str]:
    env = {**said, **told}
    return [word for name, value in env.items() for word in ("--env", f"{name}={inner(value, server)}")]


def _entrypoint(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    """The image's own entry point as it is, or the profile's with the agent's places in it."""
    if settings.entrypoint is None:
        return list(facts.entrypoint)
    return [inner(word, server) for word in settings.entrypoint]


def _workdir(server: ServerSpec, settings: ContainerLauncher, code: bool) -> list[str]:
    """The image's own folder, but not for the runners: Python would look for them there first."""
    chosen = settings.workdir or ("${RUN_DIR}" if code else None)
    return [] if chosen is None else ["--workdir", inner(chosen, server)]


def _places(at: int, server: ServerSpec, code: bool) -> list[Mount]:
    mounts = [
        Mount("${RUN_DIR}", INNER["RUN_DIR"], readonly=True),
        Mount("${OUT_DIR}", INNER["OUT_DIR"]),
        Mount("${CACHE_DIR}", INNER["CACHE_DIR"]),
        Mount(f"${{RUN_DIR}}/pipe.{at}", "/ekvi/pipe"),
    ]
    if code:
        mounts.append(Mount("${CODE_DIR}", INNER["CODE_DIR"], readonly=True))
    if server.secrets:
        mounts.append(Mount("${SECRETS_DIR}", SECRETS, readonly=True))
    return mounts


def _files(server: ServerSpec, place: Place) -> list[Mount]:
    return [Mount(place.file(server, local), target, readonly=True) for local, target in server.files.items()]


def _mount_flags(server: ServerSpec, mounts: Sequence[Mount]) -> list[str]:
    seen: dict[str, str] = {}
    for mount in mounts:
        if mount.target in seen:
            raise LaunchRefused(
                f"server {server.name}: both {seen[mount.target]} and {mount.source} would be at {mount.target} in "
                "the container.",
                hint="Give one of them another path there; launcher.hf_cache=null leaves the Hugging Face cache out.",
            )
        seen[mount.target] = mount.source
    return [word for mount in mounts for word in ("--mount", csv(mount))]


def interactive(
    server: ServerSpec, launch: Mapping[str, Any], *, workdir: str, command: Sequence[str] = (), terminal: bool = True
) -> list[str]:
    """The argv of a shell in a container like those that train, removed when it ends.

    `launch` are the launcher's settings as JSON values, `workdir` the agent's folder on the server, whose cache is
    mounted. `command` instead of the shell; `terminal` false keeps standard input open without a terminal. Neither
    secrets nor files are there.
    """
    from cockpit.config.models import ContainerLauncher

    settings = ContainerLauncher.model_validate({**launch, "kind": "container"})
    facts = facts_of(server, settings)
    mounts = [Mount(f"{workdir}/cache", INNER["CACHE_DIR"]), *flags.mounts(server, settings, facts)]
    said = {**flags.env(server, settings, facts), **server.env, "EKVI_CACHE": INNER["CACHE_DIR"]}
    words = [inner(word, server) for word in command] or [settings.shell]
    return [
        *(facts.engine, "run", "--rm", "--interactive", *(("--tty",) if terminal else ()), "--pull", "never"),
        *("--label", "ekvi.shell=1"),
        *flags.all_of(server, settings, facts),
        *([] if settings.workdir is None else ["--workdir", inner(settings.workdir, server)]),
        *_env(server, said, {}),
        *_mount_flags(server, mounts),
        *settings.extra,
        *("--entrypoint", words[0], image_tag(launch, server.vendor), *words[1:]),
    ]
