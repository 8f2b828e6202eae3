"""Commands of a container engine on a server, with logins and build arguments that stand in no argv."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.core.text import printable
from cockpit.hosts.base import Completed, Host
from cockpit.hosts.shell import quote

Say = Callable[[str], None]

INSPECT_S = 60.0
_LINE_BY = 4096  # of a line that a server prints: what is beyond is left out

# Standard input begins with $2 bytes of a login and $3 bytes of variables, which are read byte by byte so that the
# rest is left to the command. The login is a file for as long as the command runs, also where nobody waits for it.
# A configuration of our own hides the user's contexts, so the daemon that they lead to is asked for first.
_WRAPPER = r"""
d=$1; n=$2; m=$3; shift 3
take() { dd bs=1 count="$1" 2>/dev/null; }
if [ "$n" -gt 0 ]; then
  if [ -z "${DOCKER_HOST:-}" ] && [ "$1" = docker ]; then
    h=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) || h=
    [ -z "$h" ] || export DOCKER_HOST="$h"
  fi
  trap 'rm -rf "$d"' EXIT
  trap 'exit 130' HUP INT TERM
  (umask 077; mkdir -p "$d" && take "$n" > "$d/config.json") || exit 1
fi
[ "$m" -eq 0 ] || eval "$(take "$m")"
"$@"
"""

# A login that outlived its pull: kill -9 or a power cut kept the wrapper from removing it. The pull's processes name
# the folder in their words. Where the work folder is shared, they may be on another machine: clients read a login
# when they start, so a minute is enough for them.
_SWEEP = r"""
[ -r /proc/self/cmdline ] || exit 0
find "$1" -maxdepth 1 -type d -name 'login-*' -mmin +1 2>/dev/null | while IFS= read -r d; do
  for p in /proc/[0-9]*/cmdline; do
    grep -qsF -- "$d" "$p" && continue 2
  done
  rm -rf "$d" && echo gone
done
"""

# What engines and registries say, and what it means. The first that is found counts, so the sure ones come first.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (r"no space left on device|disk quota exceeded", "the engine's disk is full",
     "Free some space there: `{engine} system df` shows what takes it."),
    (r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
     "this user may not use the engine",
     "Add the user to the group that owns the engine's socket (docker), or use engine=podman."),
    (r"cannot connect to the docker daemon|is the docker daemon running|error during connect",
     "its engine does not run", "Start it there, or name the other one: launcher.engine."),
    (r"invalid reference format|invalid reference|repository name must be lowercase",
     "that is no name of an image", "Write [REGISTRY/]NAME[:TAG]."),
    (r"no matching manifest for|image with reference \S+ was found but does not match",
     "the image has no build for that machine's architecture", "Take an image that is made for it."),
    (r"toomanyrequests|too many requests|rate limit", "the registry takes no more pulls for now",
     "Log in (launcher.registry_login: mine), wait, or send the image: launcher.send_from."),
    (r"short-name \S+ did not resolve|no unqualified-search registries",
     "that name says no registry, and podman there knows none to look in",
     "Write it out, docker.io/{image} for one; or where docker is to serve, launcher.engine: docker."),
    (r"no such host|connection refused|i/o timeout|tls handshake timeout|no route to host|network is unreachable"
     r"|context deadline exceeded|client\.timeout|temporary failure in name resolution|connection timed out",
     "the registry cannot be reached from there", "Send the image instead: launcher.send_from: local."),
    (r"x509: |certificate|server gave http response to https client",
     "that machine does not trust the registry's certificate", "The engine there must be told of it, by its root."),
    (r"incorrect username or password|invalid username/password|unauthorized: authentication failed",
     "the registry refuses the login", "Log in anew: `docker login {registry}`."),
    (r"manifest unknown|manifest for \S+ not found|name unknown|failed to resolve reference \S+: not found",
     "the registry has no such image", "Look at its name and tag."),
    (r"no basic auth credentials", "the registry wants a login",
     "Log in there, or here with launcher.registry_login: mine: `docker login {registry}`."),
    (r"authentication required|unauthorized", "the registry wants a login, or another than that machine's",
     "Log in there, or here with launcher.registry_login: mine: `docker login {registry}`."),
    (r"pull access denied|requested access to the resource is denied",
     "the registry has no such image, or none for this login",
     "Look at its name; where it is private, log in: `docker login {registry}`, launcher.registry_login: mine."),
    (r"denied|forbidden", "the registry refuses it to this login", "Ask its owner for the right to pull it."),
    (r"not found", "the registry has no such image", "Look at its name and tag."),
)  # fmt: skip
_REFUSED = ("the registry refuses this user's login", "Log in anew: `docker login {registry}`.")


@dataclass(frozen=True, slots=True)
class Seen:
    """An image as an engine knows it. `digest` is the registry's (or podman's own), None where there is none.

    `content` are its layers and when it was made, which engines agree on where their ids are hashes of other things.
    """

    image_id: str
    digest: str | None
    content: tuple[str, ...]

    def same(self, other: Seen) -> bool:
        """Whether both are one image."""
        return self.image_id == other.image_id or (len(self.content) > 1 and self.content == other.content)


async def seen(host: Host, engine: str, image: str) -> Seen | None:
    """The image there, None where the engine has none of that name. Raises LaunchRefused, ServerError."""
    done = await host.run([engine, "image", "inspect", "--format", "{{json .}}", image], timeout=INSPECT_S)
    if done.rc == 0:
        return _read(host, done.stdout)
    said = done.stderr.decode(errors="replace").lower()
    if done.rc != 127 and re.search(r"no such image|image not known|failed to find image|unable to inspect", said):
        return None
    raise refusal(host.name, engine, image, done)


def _read(host: Host, output: bytes) -> Seen:
    try:
        document = json.loads(output)
        # podman before 4.4 gives a list for `{{json .}}` of one image
        document = document[0] if isinstance(document, list) else document
        image_id = str(document["Id"])
        digests = [str(d) for d in document.get("RepoDigests") or ()]
        layers = (document.get("RootFS") or {}).get("Layers") or ()
        content = (str(document.get("Created")), *map(str, layers))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ServerError(f"The container engine of {host.name} did not say what its image is.") from None
    digest = next((printable(d).rpartition("@")[2] for d in digests), None)
    return Seen(image_id if image_id.startswith("sha256:") else f"sha256:{image_id}", digest, content)


def refusal(
    server: str, engine: str, image: str, done: Completed, *, doing: str = "use", login: bool = False
) -> LaunchRefused:
    """The sentence for a command of the engine that failed, with its mend. `login`: this user's was sent along."""
    start = f"{server}: cannot {doing} the image {image}"
    if done.rc == 127:
        return LaunchRefused(
            f"{server}: there is no {engine}.", hint="Install docker or podman there, or use launcher=process."
        )
    said = done.stderr.decode(errors="replace").lower()
    for pattern, why, mend in _MEANINGS:
        if re.search(pattern, said):
            found = _REFUSED if login and "wants a login" in why else (why, mend)
            hint = found[1].format(engine=engine, image=image, registry=registry_of(image))
            return LaunchRefused(f"{start}: {found[0]}.", hint=f"{hint} It says: {_words(done)}")
    return LaunchRefused(f"{start}: {_words(done)}.")


def _words(done: Completed) -> str:
    return printable(done.last_words)[:300].rstrip(". ") or f"status {done.rc}"


def registry_of(image: str) -> str:
    """The registry that an image's name speaks of; docker.io where it names none."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or "." in first or ":" in first) else "docker.io"


async def command(
    host: Host,
    argv: Sequence[str],
    *,
    say: Say,
    timeout: float,
    workdir: str | None = None,
    login: bytes | None = None,
    env: Mapping[str, str] | None = None,
    data: bytes = b"",
) -> Completed:
    """Run `ENGINE ARGV...` there and hand on its lines.

    `login` is a config.json for the registries, kept below `workdir` meanwhile; `env` are variables of the engine's
    client, `data` is its standard input.
    """
    engine, *words = argv
    exports = "".join(f"export {name}={quote(value)}\n" for name, value in (env or {}).items()).encode()
    folder = ""
    if login is not None:
        folder = f"{await host.workdir(workdir)}/transfer/login-{secrets.token_hex(8)}"
        docker = engine != "podman"
        words = (
            ["--config", folder, *words] if docker else [words[0], "--authfile", f"{folder}/config.json", *words[1:]]
        )
    given = (login or b"") + exports
    sizes = [str(len(login or b"")), str(len(exports))]
    lines = Lines(say)
    whole = ["sh", "-c", _WRAPPER, "sh", folder, *sizes, engine, *words] if given else [engine, *words]
    try:
        done = await host.stream(whole, output=lines, input=given + data or None, timeout=timeout)
    finally:
        lines.end()
        if folder:
            await _forget(host, folder)
    return done


async def _forget(host: Host, folder: str) -> None:
    """Remove the login where its command could not (it was killed). What cannot be reached now removes it itself."""
    try:
        await host.remove_tree(folder)
    except ServerError:
        return


async def sweep_logins(host: Host, workdir: str) -> int:
    """Remove the logins that pulls left there when they were killed; how many there were. Raises ServerError."""
    done = await host.run(["sh", "-c", _SWEEP, "sh", f"{workdir}/transfer"], timeout=30.0)
    return done.stdout.count(b"gone")


class Lines:
    """Cuts what an engine prints into lines fit for a terminal."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        """One block."""
        *whole, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        self._rest = self._rest[:_LINE_BY]
        for line in whole:
            self._tell(line)

    def end(self) -> None:
        """What is left is a line too."""
        self._tell(self._rest)
        self._rest = b""

    def _tell(self, line: bytes) -> None:
        text = printable(line[:_LINE_BY].decode(errors="replace")).rstrip()
        if text:
            self._say(text)
