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
from cockpit.core.resources import data_dir
from cockpit.core.text import printable
from cockpit.engine.imagecommand import seen
from cockpit.engine.imageplace import Place
from cockpit.engine.imagesend import send
from cockpit.hosts.base import Host

__all__ = ["Built", "Place", "build", "build_argv", "context", "ensure_image", "image_tag"]

BUILD_S = 2 * 3600.0
PULL_S = 2 * 3600.0
_OUR_WORDS = re.compile(r"\bekvi-cockpit: (.+)")  # builders put colours and times before it


@dataclass(frozen=True, slots=True)
class Built:
    """An image that was made. `digest` is None where the engine gives one only to images of a registry."""

    tag: str
    image_id: str
    digest: str | None


async def ensure_image(place: Place, *, source: Host | None = None) -> None:
    """See that the place has its image: present, pulled, or sent.

    `source` is the server that `send_from` names, None where that is `local`. Raises LaunchRefused with a mend, or
    ServerError.
    """
    launch, server, image = place.launch, place.server, place.image
    engine = await place.engine()
    if launch.get("send_from") not in (None, server.name):
        await send(place, engine, _source(place, source))
        return
    there = await seen(place.host, engine, image)
    if not launch.get("image"):
        if there is None:
            raise _not_built(place)
        return
    pull = launch.get("pull", "missing")
    if there is not None and pull != "always":
        return
    if pull == "never":
        raise LaunchRefused(
            f"{server.name}: the image {image} is not there, and launcher.pull is never.",
            hint="Pull it by hand, or let launcher.pull be missing.",
        )
    login = await place.login(image)
    place.say(f"pulling {image}")
    done = await place.run([engine, "pull", image], timeout=PULL_S, login=login)
    if done.rc != 0:
        raise place.refusal(engine, image, done, doing="pull", login=login)


def _source(place: Place, source: Host | None) -> Host:
    if place.launch["send_from"] == "local":
        return place.local
    if source is None:
        raise LaunchRefused(
            f"launcher.send_from names {place.launch['send_from']!r}, which is no server of this profile.",
            hint="Name one of its servers, or local.",
        )
    return source


def _not_built(place: Place) -> LaunchRefused:
    name = place.server.name
    return LaunchRefused(
        f"{name}: the image {place.image} was not built there yet.",
        hint=f"Build it: `ekvi-cockpit build --profile {place.profile} --servers {name}`. "
        "Or name one: launcher.image.",
    )


async def build(place: Place, vendor: str, *, folder: Path | None = None) -> Built:
    """Build the image of the place's settings there from docker/, and say what came out.

    `vendor` is nvidia, amd or cpu; `folder` stands in place of docker/. Raises LaunchRefused where the image cannot
    be built, or ServerError.
    """
    launch, name = place.launch, place.server.name
    if launch.get("image"):
        raise LaunchRefused(
            f"{name}: launcher.image names {launch['image']}, which is not built from docker/.",
            hint="Leave launcher.image out to build one; base_image and build_args say from what.",
        )
    tag = f"{REPOSITORY}/{kind_of(vendor)}:{recipe(launch, vendor, folder=folder)}"
    engine, base = await place.engine(), launch.get("base_image")
    login = await place.login(str(base)) if base else None
    argv, data = [engine, *build_argv(launch, vendor, tag)], context(kind_of(vendor), folder)
    done = await place.run(argv, timeout=BUILD_S, login=login, env=build_args(launch), data=data)
    if done.rc != 0:
        ours = _OUR_WORDS.findall(printable(done.stderr.decode(errors="replace")))
        if ours:
            raise LaunchRefused(f"{name}: {ours[-1].strip()[:500]}")
        raise place.refusal(engine, base or tag, done, doing="build", login=login)
    made = await seen(place.host, engine, tag)
    if made is None:
        raise ServerError(f"{name}: the engine says that it built {tag}, and does not have it.")
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
