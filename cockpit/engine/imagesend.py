"""An image from one machine to another without a registry: saved to a file, copied, loaded, and the files removed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.core.text import size
from cockpit.engine.imagecommand import Say, command, refusal, seen
from cockpit.engine.imageplace import Place
from cockpit.hosts.backoff import Backoff
from cockpit.hosts.base import Host, Progress, ServerLost

SAVE_S = 3600.0
_TRIES = 8  # of a copy that breaks off: each goes on where the one before was
_STEP = 0.05  # of a copy between two lines of progress
_T = TypeVar("_T")


async def send(place: Place, engine: str, source: Host) -> None:
    """See that the place has the very image that `source` has. Raises LaunchRefused with a mend, or ServerError."""
    name, image, say = place.server.name, place.image, place.say
    theirs = await place.engine_of(source)
    wanted = await seen(source, theirs, image)
    if wanted is None:
        raise LaunchRefused(
            f"{name}: the image {image} is to be sent from {source.name}, which does not have it.",
            hint="Build or pull it there first, or change launcher.send_from.",
        )
    there = await seen(place.host, engine, image)
    if there is not None and there.same(wanted):
        return
    say(f"sending {image} from {source.name}")
    # One name for one image and server: a sending that was killed leaves its files to the next.
    file = f"{wanted.image_id.removeprefix('sha256:')[:16]}-{name}.tar"
    async with _saved(source, theirs, image, file, say) as saved:
        await _carry(place, engine, saved, source)
    arrived = await seen(place.host, engine, image)
    if arrived is None or not arrived.same(wanted):
        raise ServerError(f"{name}: what was loaded there as {image} is another image than {source.name} has.")


@contextlib.asynccontextmanager
async def _saved(source: Host, engine: str, image: str, name: str, say: Say) -> AsyncIterator[str]:
    """The image as a file on `source`, removed afterwards."""
    folder = f"{await source.workdir()}/transfer/{name}.from"
    path = f"{folder}/{name}"
    await source.mkdirs(folder)
    try:
        done = await command(source, [engine, "save", "--output", path, image], say=say, timeout=SAVE_S)
        if done.rc != 0:
            raise refusal(source.name, engine, image, done, doing="save")
        yield path
    finally:
        await _remove(source, folder)


async def _carry(place: Place, engine: str, saved: str, source: Host) -> None:
    """Copy a saved image to the place and load it there. It goes over this machine, where it is none of both."""
    host, local, say = place.host, place.local, place.say
    name = saved.rpartition("/")[2]
    mine = f"{await local.workdir()}/transfer/{name}.here"
    theirs = f"{await host.workdir(place.server.workdir)}/transfer/{name}.to"
    here = Path(saved) if source is local else Path(mine) / name
    try:
        if source is not local:
            await local.mkdirs(mine)
            await _again(lambda: source.get(saved, here, progress=_progress(say, "fetched")), say)
        await _again(lambda: host.put_file(here, f"{theirs}/{name}", progress=_progress(say, "sent")), say)
        if source is not local:
            await local.remove_tree(mine)
        done = await place.run([engine, "load", "--input", f"{theirs}/{name}"], timeout=SAVE_S)
        if done.rc != 0:
            raise place.refusal(engine, place.image, done, doing="load", login=None)
    finally:
        await _remove(host, theirs)
        if source is not local:
            await _remove(local, mine)


async def _again(work: Callable[[], Awaitable[_T]], say: Say) -> _T:
    """Do a copy; where the connection breaks, go on after a pause, and give up after some."""
    pauses = Backoff()
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except ServerLost as lost:
            say(f"{lost} Going on where it was.")
            await asyncio.sleep(pauses.next())
    return await work()


def _progress(say: Say, done: str) -> Progress:
    last = -1.0

    def tell(there: int, total: int) -> None:
        nonlocal last
        share = there / total if total else 1.0
        if share - last >= _STEP or (there >= total and last < 1.0):
            last = share
            say(f"{done} {size(there)} of {size(total)}")

    return tell


async def _remove(host: Host, folder: str) -> None:
    """Remove a folder of ours; one that cannot be reached now is taken up by the next sending of that image."""
    with contextlib.suppress(ServerError):
        await host.remove_tree(folder)
