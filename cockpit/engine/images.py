"""The image of a run on its server: there already, pulled, sent from another machine, or built from docker/."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.core.imagename import REPOSITORY, context_files, image_tag, kind_of, recipe
from cockpit.core.records import ContainerFacts, ServerSpec
from cockpit.core.resources import data_dir
from cockpit.core.text import printable
from cockpit.engine.imagecommand import Say, command, refusal, seen
from cockpit.engine.imagesend import send
from cockpit.engine.registry import login_for
from cockpit.hosts.base import Host

__all__ = ["Built", "build", "build_argv", "context", "ensure_image", "image_tag"]

BUILD_S = 2 * 3600.0
PULL_S = 2 * 3600.0
_OUR_WORDS = re.compile(r"\bekvi-cockpit: (.+)")  # builders put colours and times before it


@dataclass(frozen=True, slots=True)
class Built:
    """An image that was made. `digest` is None where the engine gives one only to images of a registry."""

    tag: str
    image_id: str
    digest: str | None


async def ensure_image(
    host: Host,
    server: ServerSpec,
    launch: Mapping[str, Any],
    *,
    say: Say,
    local: Host,
    source: Host | None = None,
) -> None:
    """See that the image of these launcher settings is on `host`: present, pulled, or sent.

    `local` is this machine. `source` is the server that `send_from` names, None where that is `local`. Lines of
    progress go to `say`. Raises LaunchRefused with a mend, or ServerError.
    """
    image = image_tag(launch, server.vendor)
    engine = await engine_of(host, server, launch)
    if launch.get("send_from") not in (None, server.name):
        await send(host, server, launch, image, engine, say=say, local=local, source=_source(launch, local, source))
        return
    there = await seen(host, engine, image)
    if not launch.get("image"):
        if there is None:
            raise _not_built(server, image)
        return
    pull = launch.get("pull", "missing")
    if there is not None and pull != "always":
        return
    if pull == "never":
        raise LaunchRefused(
            f"{server.name}: the image {image} is not there, and launcher.pull is never.",
            hint="Pull it by hand, or let launcher.pull be missing.",
        )
    await _pull(host, server, launch, image, engine, say=say, local=local)


def _source(launch: Mapping[str, Any], local: Host, source: Host | None) -> Host:
    if launch["send_from"] == "local":
        return local
    if source is None:
        raise LaunchRefused(
            f"launcher.send_from names {launch['send_from']!r}, which is no server of this profile.",
            hint="Name one of its servers, or local.",
        )
    return source


def _not_built(server: ServerSpec, image: str) -> LaunchRefused:
    return LaunchRefused(
        f"{server.name}: the image {image} was not built there yet.",
        hint=f"Build it: `ekvi-cockpit build --profile P --servers {server.name}`. Or name one: launcher.image.",
    )


async def engine_of(host: Host, server: ServerSpec, launch: Mapping[str, Any]) -> str:
    """docker or podman: as the settings say, as the server was found, or asked now. Raises LaunchRefused."""
    said = str(launch.get("engine", "auto"))
    if said != "auto":
        return said
    return (server.container or await _facts(host, server, launch)).engine


async def _facts(host: Host, server: ServerSpec, launch: Mapping[str, Any]) -> ContainerFacts:
    from cockpit.hosts.probe import container_facts

    image = image_tag(launch, server.vendor)
    return await container_facts(host, str(launch.get("engine", "auto")), image, vendor=server.vendor)


async def _pull(
    host: Host, server: ServerSpec, launch: Mapping[str, Any], image: str, engine: str, *, say: Say, local: Host
) -> None:
    login = await _login(launch, image, say=say, local=local)
    say(f"pulling {image}")
    done = await command(host, [engine, "pull", image], say=say, timeout=PULL_S, workdir=server.workdir, login=login)
    if done.rc != 0:
        raise refusal(server.name, engine, image, done, doing="pull", login=login is not None)


async def _login(launch: Mapping[str, Any], image: str, *, say: Say, local: Host) -> bytes | None:
    """This user's login for the image's registry, where the profile sends it along."""
    if launch.get("registry_login") != "mine":
        return None
    login = await login_for(image, local)
    if login is None:
        say(f"no login here for the registry of {image}: trying without one")
    return login


async def build(
    host: Host,
    server: ServerSpec,
    launch: Mapping[str, Any],
    vendor: str,
    *,
    say: Say,
    local: Host | None = None,
    folder: Path | None = None,
) -> Built:
    """Build the image of these launcher settings on `host` from docker/, and say what came out.

    `vendor` is nvidia, amd or cpu. `local` is this machine, asked for logins with `registry_login: mine`; `folder`
    stands in place of docker/. Raises LaunchRefused where the image cannot be built, or ServerError.
    """
    if launch.get("image"):
        raise LaunchRefused(
            f"{server.name}: launcher.image names {launch['image']}, which is not built from docker/.",
            hint="Leave launcher.image out to build one; base_image and build_args say from what.",
        )
    tag = f"{REPOSITORY}/{kind_of(vendor)}:{recipe(launch, vendor, folder=folder)}"
    engine = await engine_of(host, server, launch)
    base = launch.get("base_image")
    login = await _login(launch, str(base), say=say, local=local) if base and local is not None else None
    done = await command(
        host,
        [engine, *build_argv(launch, vendor, tag)],
        say=say,
        timeout=BUILD_S,
        workdir=server.workdir,
        login=login,
        env=build_args(launch),
        data=context(kind_of(vendor), folder),
    )
    if done.rc != 0:
        ours = _OUR_WORDS.findall(printable(done.stderr.decode(errors="replace")))
        if ours:
            raise LaunchRefused(f"{server.name}: {ours[-1].strip()[:500]}")
        raise refusal(server.name, engine, base or tag, done, doing="build", login=login is not None)
    made = await seen(host, engine, tag)
    if made is None:
        raise ServerError(f"{server.name}: the engine says that it built {tag}, and does not have it.")
    return Built(tag, made.image_id, made.digest)


def build_args(launch: Mapping[str, Any]) -> dict[str, str]:
    """The build arguments of these settings by name, the base image among them."""
    args = {str(k): str(v) for k, v in (launch.get("build_args") or {}).items()}
    if launch.get("base_image"):
        args["BASE_IMAGE"] = str(launch["base_image"])
    return args


def build_argv(launch: Mapping[str, Any], vendor: str, tag: str) -> list[str]:
    """The engine's words that build an image from a context on standard input.

    Build arguments are named, and valued by the client's environment: an index with a login stands in no argv. Of a
    build that fails, docker's old builder keeps the last step's container unless it is told to remove it.
    """
    named = [word for name in build_args(launch) for word in ("--build-arg", name)]
    label = f"org.opencontainers.image.version={tag.rpartition(':')[2]}"
    network = str(launch.get("network") or "host")
    dockerfile = f"{kind_of(vendor)}/Dockerfile"
    words = ["build", "--force-rm", "--file", dockerfile, "--network", network, "--tag", tag]
    return [*words, "--label", label, *named, "-"]


def context(kind: str, folder: Path | None = None) -> bytes:
    """What goes into an image of this kind, as a tar that is the same bytes every time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in context_files(kind, folder or data_dir("docker")):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()
