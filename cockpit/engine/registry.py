"""This user's own logins for image registries, as docker and podman keep them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cockpit.core.errors import LaunchRefused
from cockpit.engine.imagecommand import registry_of
from cockpit.hosts.base import Host

_HELPER_S = 60.0  # a helper may unlock a key ring
_HUB = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


async def login_for(image: str, local: Host) -> bytes | None:
    """A config.json with this user's login for the image's registry and no other; None where there is none.

    `local` is this machine, whose credential helpers are asked. Raises LaunchRefused where a file of logins cannot
    be read, or where a helper fails.
    """
    registry = registry_of(image)
    names = _HUB if registry == "docker.io" else (registry, f"https://{registry}", f"http://{registry}")
    for path in _files():
        config = await asyncio.to_thread(_read, path)
        if config is None:
            continue
        entry = await _entry(config, names, local)
        if entry is not None:
            return json.dumps({"auths": {names[0]: entry}}).encode()
    return None


def _files() -> Iterator[Path]:
    """Where logins are kept, in the order in which they count."""
    docker = os.environ.get("DOCKER_CONFIG")
    yield (Path(docker) if docker else Path.home() / ".docker") / "config.json"
    podman, runtime = os.environ.get("REGISTRY_AUTH_FILE"), os.environ.get("XDG_RUNTIME_DIR")
    if podman or runtime:
        yield Path(podman) if podman else Path(str(runtime)) / "containers" / "auth.json"


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not JSON"
        raise LaunchRefused(f"The registry logins in {path} cannot be read: {why}.") from None
    return config if isinstance(config, dict) else None


async def _entry(config: Mapping[str, Any], names: tuple[str, ...], local: Host) -> dict[str, str] | None:
    """What stands for one registry in a config.json: by a helper for it, by the store for all, or written there."""
    helpers = _mapping(config.get("credHelpers"))
    auths = _mapping(config.get("auths"))
    name = next((n for n in names if n in helpers), None)
    if name is not None:
        return await _ask(str(helpers[name]), name, local)
    said = next((n for n in names if n in auths), None) or _with_path(auths, names)
    if said is None:
        return None
    entry = {k: v for k, v in _mapping(auths[said]).items() if k in ("auth", "identitytoken", "registrytoken") and v}
    if entry:
        return entry
    store = config.get("credsStore")
    return await _ask(str(store), said, local) if store else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _with_path(auths: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """An entry for the registry that was written with a path (registry/v1/, or podman's registry/namespace)."""
    return next((key for key in auths if any(key.startswith(f"{name}/") for name in names)), None)


async def _ask(helper: str, registry: str, local: Host) -> dict[str, str] | None:
    """What `docker-credential-HELPER get` says; None where it has no login for the registry."""
    if "/" in helper:
        raise LaunchRefused(f"The credential helper {helper!r} in the registry logins is no name of a program.")
    program = f"docker-credential-{helper}"
    done = await local.run([program, "get"], input=registry.encode(), timeout=_HELPER_S)
    if done.rc == 127:
        raise LaunchRefused(
            f"{program}, which keeps this user's registry logins, is not installed here.",
            hint=f"Install it, or log in without it: `docker login {registry}`.",
        )
    # What a helper prints may hold the secret, so none of it is quoted, whatever went wrong.
    if done.rc != 0:
        if b"not found" in done.stdout.lower() + done.stderr.lower():
            return None
        raise LaunchRefused(
            f"{program} does not give the login for {registry} (status {done.rc}).",
            hint=f"Try it by hand, and see that its key ring is unlocked: `docker login {registry}`.",
        )
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, LookupError, TypeError):
        raise LaunchRefused(f"{program} does not speak as a credential helper should.") from None
    if user == "<token>":
        return {"identitytoken": secret}
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}
