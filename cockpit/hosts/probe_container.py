"""What a machine's container engine and an image are, asked in one trip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.core.records import ENGINES, ContainerFacts
from cockpit.core.text import printable
from cockpit.hosts.base import Host

_LONGEST = 300  # characters of an engine's complaint that a sentence quotes

# $1 names engines in the order they are tried, $2 is an image. A `docker` may be podman under another name.
_SCRIPT = r"""
say() { printf '\n@@ %s\n' "$1"; shift; "$@" 2>/dev/null; }
say uid id -u
say gid id -g
say home printf '%s' "${HOME:-}"
say infiniband sh -c '[ -e /dev/infiniband ] && echo yes'
say groups sh -c 'stat -c %g /dev/kfd /dev/dri/renderD* /dev/dri/card*'
say cdi sh -c "grep -ls nvidia.com/gpu /etc/cdi/* /var/run/cdi/*"
say hook sh -c 'command -v nvidia-container-runtime-hook nvidia-container-toolkit'
for e in $1; do
  command -v "$e" >/dev/null 2>&1 || { printf '\n@@ absent %s\n' "$e"; continue; }
  p=$e
  [ "$e" = docker ] && "$e" --version 2>/dev/null | grep -qi podman && p=podman
  if out=$("$e" info --format '{{json .}}' 2>&1 </dev/null) && [ -n "$out" ]; then
    printf '\n@@ engine\n%s\n@@ info\n%s\n' "$p" "$out"
    say image "$e" image inspect --format '{{json .}}' "$2"
    exit 0
  fi
  printf '\n@@ refused %s\n%s\n' "$e" "$out"
done
exit 0
"""


async def container_facts(
    host: Host, engine: str, image: str, *, vendor: str, timeout: float = 60.0
) -> ContainerFacts:
    """What is known of `engine` (docker, podman, or auto: the first of them that serves) and of `image` on `host`.

    The image's part stays empty where it is not there. Raises ServerError, and LaunchRefused where no engine serves.
    """
    wanted = ENGINES if engine == "auto" else (engine,)
    done = await host.run(["sh", "-c", _SCRIPT, "sh", " ".join(wanted), image], timeout=timeout)
    if done.rc != 0:
        said = printable(done.last_words)[:_LONGEST]
        raise ServerError(f"{host.name} did not say what container engine it has: {said or f'status {done.rc}'}.")
    return parse_container_facts(done.stdout, host.name, wanted, vendor=vendor)


def parse_container_facts(output: bytes, name: str, wanted: tuple[str, ...], *, vendor: str) -> ContainerFacts:
    """The facts that the script's output holds; `name` is the server's. Raises LaunchRefused."""
    said = _sections(output.decode(errors="replace"))
    if "engine" not in said:
        raise _refusal(said, name, wanted)
    engine = said["engine"] if said["engine"] in ENGINES else "docker"
    info = _object(_last_object(said.get("info", "")))
    image = _object(_last_object(said.get("image", "")))
    return ContainerFacts(
        engine=engine,
        version=_version(info),
        rootless=_rootless(info),
        cdi=vendor == "nvidia" and _cdi(engine, info, said),
        groups=_groups(said.get("groups", "")),
        infiniband=said.get("infiniband") == "yes",
        entrypoint=_words(_object(image.get("Config")).get("Entrypoint")),
        image_id=_text(image.get("Id")),
        digest=_digest(image),
        home=_home(said.get("home")),
        uid=_number(said.get("uid")) or 0,
        gid=_number(said.get("gid")) or 0,
    )


def _sections(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in f"\n{text}".split("\n@@ ")[1:]:
        name, _, body = part.partition("\n")
        found.setdefault(name.strip(), body.strip())
    return found


def _refusal(said: Mapping[str, str], name: str, wanted: tuple[str, ...]) -> LaunchRefused:
    there = [engine for engine in wanted if f"refused {engine}" in said]
    if not there:
        which = "neither docker nor podman is there" if len(wanted) > 1 else f"{wanted[0]} is not there"
        return LaunchRefused(
            f"{name} has no container engine: {which}.", hint="Install one, or take launcher=process."
        )
    engine = there[0]
    lines = [line.strip() for line in printable(said[f"refused {engine}"]).splitlines() if line.strip()]
    words = next((line for line in lines if not line.startswith(("{", "["))), "it says nothing")[:_LONGEST].rstrip(
        "."
    )
    if "permission denied" in words.lower():
        mend = "Add the user to the group that owns its socket and log in anew, or use launcher.engine=podman."
        return LaunchRefused(f"{engine} on {name} is not for this user: {words}.", hint=mend)
    return LaunchRefused(
        f"{engine} on {name} does not answer: {words}.",
        hint=f"See there that `{engine} info` works; start its service.",
    )


def _last_object(text: str) -> Any:
    """The JSON object in a text, warnings of the engine before it left out; None where there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith(("{", "[")):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            return found[0] if isinstance(found, list) and found else found
    try:
        return json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return printable(value) or None if isinstance(value, str) else None


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(w for w in value if isinstance(w, str)) if isinstance(value, list) else ()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 11 else None


def _version(info: Mapping[str, Any]) -> str | None:
    return _text(info.get("ServerVersion")) or _text(_object(info.get("version")).get("Version"))


def _rootless(info: Mapping[str, Any]) -> bool:
    options = info.get("SecurityOptions")
    docker = any("rootless" in o for o in options if isinstance(o, str)) if isinstance(options, list) else False
    return docker or _object(_object(info.get("host")).get("security")).get("rootless") is True


def _cdi(engine: str, info: Mapping[str, Any], said: Mapping[str, str]) -> bool:
    """Podman takes NVIDIA's GPUs by CDI alone; docker where that is set up and its own way (--gpus) is not."""
    own_way = bool(said.get("hook")) or "nvidia" in _object(info.get("Runtimes"))
    return engine == "podman" or bool(info.get("CDISpecDirs") and said.get("cdi") and not own_way)


def _groups(text: str) -> tuple[int, ...]:
    """Groups by number, but root's, which gives nothing that its members lack."""
    return tuple(sorted({gid for word in text.split() if (gid := _number(word))}))


def _digest(image: Mapping[str, Any]) -> str | None:
    digests = image.get("RepoDigests")
    first = digests[0] if isinstance(digests, list) and digests else None
    return (_text(first.partition("@")[2]) if isinstance(first, str) else None) or _text(image.get("Digest"))


def _home(said: str | None) -> str:
    home = printable(said or "")
    return home if home.startswith("/") else "/root"
