"""The container engine, the image, and the registry that it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cockpit.core.records import ContainerFacts
from cockpit.core.text import printable
from cockpit.engine.findings import Finding, fail, ok, warn
from cockpit.engine.imagecommand import refusal, registry_of, sweep_logins
from cockpit.engine.registry import login_for
from cockpit.hosts import LocalHost
from cockpit.hosts.base import ServerTimeout

if TYPE_CHECKING:
    from cockpit.hosts.base import Completed, Host

_REGISTRY_S = 15.0
_ROOM_BY = 30 << 30  # what a training image and its unpacking take

# Names of the registries that an engine's login files know; never what stands beside a name.
_LOGINS = """
import json, os
home = os.path.expanduser("~")
places = [os.path.join(os.environ.get("DOCKER_CONFIG") or home + "/.docker", "config.json"),
          os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere", "containers/auth.json"),
          home + "/.config/containers/auth.json"]
names = []
for place in places:
    try:
        with open(place) as file:
            said = json.load(file)
        names += list(said.get("auths") or {}) + list(said.get("credHelpers") or {})
    except (OSError, ValueError, AttributeError):
        pass
print(json.dumps(names))
"""


async def image(
    host: Host, name: str, launch: Mapping[str, Any], facts: ContainerFacts, python: str, *, full: bool, profile: str
) -> Iterable[Finding]:
    """Whether the image is on the server, or how it gets there."""
    pulls = launch.get("pull", "missing")
    if facts.image_id is not None and pulls != "always":
        digest = f", {facts.digest}" if facts.digest else ""
        return [ok("image", f"{name} ({facts.image_id.removeprefix('sha256:')[:12]}{digest})")]
    room = list(await _room(host, facts.engine, full=full))
    source = launch.get("send_from")
    if source:
        return [*await _sent(name, str(source), facts.engine), *room]
    if launch.get("image") is None:
        return [
            fail(
                "image",
                f"{name} is not there: it has not been built.",
                f"Build it there: `ekvi-cockpit build --profile {profile}`.",
            )
        ]
    if pulls == "never":
        return [
            fail("image", f"{name} is not there, and launcher.pull is never.",
                 "Pull or load it there, or set launcher.pull=missing or launcher.send_from=local.")
        ]  # fmt: skip
    if not full:
        return [ok("image", f"{name} is pulled when the run starts"), *room]
    return [*await _obtainable(host, name, launch, facts.engine, python), *room]


async def _sent(name: str, source: str, engine: str) -> Iterable[Finding]:
    """An image that is sent from this machine must be on this machine; another server is asked when it sends."""
    if source != "local":
        return [ok("image", f"{name} is sent from {source} when the run starts")]
    done = await LocalHost().run([engine, "image", "inspect", "--format", "{{.ID}}", name], timeout=20.0)
    if done.rc == 0:
        return [ok("image", f"{name} is sent from this machine when the run starts")]
    said = f"there is no {engine} here" if done.rc == 127 else printable(done.last_words) or f"status {done.rc}"
    return [
        fail("image", f"{name} is to be sent from this machine, which does not have it: {said}.",
             f"`{engine} pull {name}` here, or leave launcher.send_from out.")
    ]  # fmt: skip


async def _obtainable(host: Host, name: str, launch: Mapping[str, Any], engine: str, python: str) -> list[Finding]:
    """What the image's registry says, asked by the server's engine with the server's login."""
    registry = registry_of(name)
    logins = await _logins(host, python)
    known = any(_same(registry, login) for login in logins)
    if launch.get("registry_login") == "mine":
        if await login_for(name, LocalHost()) is None:
            mend = f"`{engine} login {registry}` on this machine, or set launcher.registry_login=server."
            return [fail("registry", f"there is no login for {registry} here that could be sent along.", mend)]
        return [
            ok("registry", f"this user's login for {registry} goes along with the pull"),
            ok("image", f"{name} is pulled when the run starts"),
        ]
    login = ok("registry", f"{'a login' if known else 'no login'} for {registry} on {host.name}")
    if engine != "docker":  # podman 4 looks at manifest lists alone
        return [login, ok("image", f"{name} is pulled when the run starts")]
    try:
        done = await host.run([engine, "manifest", "inspect", name], timeout=_REGISTRY_S)
        if done.rc != 0 and b"HTTP response to HTTPS" in done.stderr:
            done = await host.run([engine, "manifest", "inspect", "--insecure", name], timeout=_REGISTRY_S)
    except ServerTimeout:
        text = f"{name} is not there, and {registry} did not answer {host.name} within {_REGISTRY_S:.0f} s."
        return [login, fail("image", text, "Let the server reach it, or send the image: launcher.send_from=local.")]
    if done.rc == 0:
        return [login, ok("image", f"{name} is in {registry} and is pulled when the run starts")]
    return [login, _refused(host, engine, name, done, known=known)]


def _refused(host: Host, engine: str, name: str, done: Completed, *, known: bool) -> Finding:
    """What a pull would say too. Of an image that wants a login docker says, without one, that there is none."""
    if b"no such manifest" not in done.stderr:
        refused = refusal(host.name, engine, name, done, doing="pull")
        return fail("image", refused.message, refused.hint)
    registry = registry_of(name)
    if known:
        return fail("image", f"{registry} has no image {name}.", "Look at its name and tag: launcher.image.")
    return fail(
        "image",
        f"{registry} has no image {name}, or none without a login.",
        f"Look at its name and tag; where it is private, `{engine} login {registry}` on {host.name}, or send your "
        "login along: launcher.registry_login=mine.",
    )


def _same(registry: str, login: str) -> bool:
    """Whether a login file's name (`https://index.docker.io/v1/`) means a registry."""
    bare = login.removeprefix("https://").removeprefix("http://").split("/", 1)[0]
    return bare == registry or (registry == "docker.io" and bare in ("index.docker.io", "registry-1.docker.io"))


async def logins(host: Host, workdir: str) -> Iterable[Finding]:
    """No login of a registry is to outlive its pull: what a kill has left there is taken away now."""
    gone = await sweep_logins(host, workdir)
    what = "a registry login" if gone == 1 else f"{gone} registry logins"
    return [ok("logins", f"removed {what} that a killed pull had left in {workdir}/transfer")] if gone else []


async def _logins(host: Host, python: str) -> list[str]:
    done = await host.run([python, "-c", _LOGINS], timeout=20.0)
    return _names(done.stdout if done.rc == 0 else b"")


def _names(data: bytes) -> list[str]:
    try:
        said = json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in said] if isinstance(said, list) else []


async def _room(host: Host, engine: str, *, full: bool) -> Iterable[Finding]:
    """The space where the engine keeps images, when one has to come."""
    from cockpit.hosts.look import left_by, size

    root = await engine_root(host, engine)
    left = await left_by(host, root) if root else None
    if left is not None and left < _ROOM_BY:
        text = f"{size(left)} are left in {root}, where {engine} keeps images."
        mend = f"Free some there: `{engine} image prune`, `{engine} system df` shows what takes it."
        return [fail("images", text, mend) if left < 100 << 20 else warn("images", text, mend)]
    return [ok("images", f"{root}, {size(left)} left")] if full and root else []


async def engine_root(host: Host, engine: str) -> str | None:
    """The folder in which an engine keeps its images, None where it does not say. Raises ServerError."""
    field = "{{.DockerRootDir}}" if engine == "docker" else "{{.Store.GraphRoot}}"
    done = await host.run([engine, "info", "--format", field], timeout=30.0)
    words = printable(done.stdout.decode(errors="replace")).strip()
    return words if done.rc == 0 and words.startswith("/") else None


def engine(facts: ContainerFacts) -> Finding:
    """Which engine serves, and how."""
    how = ", without root" if facts.rootless else ""
    return ok("engine", f"{facts.engine} {facts.version or 'of unknown version'}{how}")
