"""A queue on its server: put there, its agent started, asked, stopped, started again where it was killed.

`q` is the queue's folder on the server everywhere. All functions raise ServerError where the server does not do its
part, LaunchRefused where an agent cannot be started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.hosts import Completed, Host, layout
from cockpit.telemetry.pack import Package, build_agent

_START_S = 60.0  # a cold disk and a slow interpreter; the agent itself needs a tenth of a second
_ASK_S = 30.0
# A cockpit may itself be started by a run; its agent is not of that run, whose end would else sweep it away.
_NOT_OF_A_RUN = ("env", "-u", "EKVI_OUT", "-u", "EKVI_CACHE", "-u", "EKVI_RUN", "-u", "EKVI_STAGE")
_NOBODY: dict[str, Any] = {"alive": False, "pid": None, "runs": {}}


@dataclass(frozen=True, slots=True)
class _Launch:
    """launch.json: the .pyz (by its short hash) and the Python that serve a queue, None until one was started."""

    agent: str
    python: str | None

    def pyz(self, q: str) -> str:
        """Where the .pyz is."""
        return layout.agent_file(layout.workdir_of(q), self.agent)


async def deploy(
    host: Host,
    workdir: str,
    q: str,
    queue: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    agent: Package,
    code: Package,
    *,
    files: Mapping[str, Path] | None = None,
    secrets: Mapping[str, bytes] | None = None,
) -> str:
    """Put a queue and all that it needs on the server, files 0600 in folders 0700, and return `q`.

    `queue` is ekvi.queue/1, `configs` holds each run's resolved configuration, `files` are archives here by their
    SHA-256, `secrets` values by name. queue.json goes last: where it stands, everything else does. Nothing is
    started. Raises LaunchRefused where another queue stands at `q`.
    """
    document = layout.document(queue).encode()
    there = await host.read(layout.queue_file(q), 0, len(document) + 1)
    if there not in (b"", document):
        raise LaunchRefused(f"{q} on {host.name} already holds another queue, and a queue never changes.")
    await put_package(host, agent, layout.agent_file(workdir, agent.sha256))
    if queue["code"] is not None:
        await put_package(host, code, layout.code_file(workdir, code.sha256))
    for sha256, path in (files or {}).items():
        await _put_archive(host, path, sha256, layout.files_file(workdir, sha256))
    await host.mkdirs(f"{q}/control")
    for run, config in configs.items():
        await _put_document(host, config, layout.config_file(q, run))
    await _put_launch(host, q, _Launch(agent.sha256[:16], None))
    for name, value in (secrets or {}).items():  # as late as can be: a launch that breaks off may leave them there
        await host.put(value, layout.secret_file(q, name))
    await host.put(document, layout.queue_file(q))
    return q


async def start(host: Host, q: str, python: str) -> dict[str, Any]:
    """Start the agent of a queue, detached, and return what it says of itself; harmless where one works already."""
    launch = await _launch(host, q)
    if launch is None:
        raise LaunchRefused(f"There is no queue {q} on {host.name}.")
    if not await host.read(launch.pyz(q), 0, 1):  # bin/ was emptied; any agent of ours can work any ekvi.queue/1
        package = build_agent()
        launch = _Launch(package.sha256[:16], None)
        await put_package(host, package, launch.pyz(q))
    if launch.python != python:
        await _put_launch(host, q, _Launch(launch.agent, python))
    done = await host.run([*_NOT_OF_A_RUN, python, launch.pyz(q), "start", q], timeout=_START_S)
    said = _object(done)
    if said is None:
        raise LaunchRefused(
            f"The agent did not start on {host.name}: {_why(done)}.",
            hint=f"{python} must be a Python of version 3.8 or newer there; {q}/agent.log may say more.",
        )
    return said


async def status(host: Host, q: str) -> dict[str, Any]:
    """What the agent's own `status` says: alive, pid, runs with their states; nobody where none was ever started."""
    launch = await _launch(host, q)
    if launch is None or launch.python is None or not await host.read(launch.pyz(q), 0, 1):
        return dict(_NOBODY)
    done = await host.run([launch.python, launch.pyz(q), "status", q], timeout=_ASK_S)
    said = _object(done)
    if said is None:
        raise ServerError(f"The agent on {host.name} did not answer `status`: {_why(done)}.")
    return said


async def command(host: Host, q: str, *words: str) -> list[str] | None:
    """The argv of a command of the agent that serves this queue; None where none was ever started."""
    launch = await _launch(host, q)
    return None if launch is None or launch.python is None else [launch.python, launch.pyz(q), *words]


async def alive(host: Host, q: str) -> bool:
    """Whether an agent holds the queue's lock."""
    return bool((await status(host, q)).get("alive"))


async def stop(host: Host, q: str, run: str | None = None) -> None:
    """Wish that one run stops, or all; the agent sees the wish and does it. None needs to be alive right now."""
    if not await host.read(layout.queue_file(q), 0, 1):
        raise ServerError(f"There is no queue {q} on {host.name}.")
    await host.put(b"", layout.stop_file(q, run))


async def clean(host: Host, q: str, *, timeout: float = _ASK_S) -> None:
    """Let the agent tidy up a queue that is done: what its `clean` removes. Harmless where nothing is left."""
    launch = await _launch(host, q)
    if launch is not None and launch.python is not None:
        done = await host.run([launch.python, launch.pyz(q), "clean", q], timeout=timeout)
        if done.rc != 0:
            raise ServerError(f"Queue {q} on {host.name} could not be tidied up: {_why(done)}.")


def _object(done: Completed) -> dict[str, Any] | None:
    """The JSON object in the last line of a command that succeeded, else None."""
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    try:
        said = json.loads(lines[-1]) if done.rc == 0 and lines else None
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _why(done: Completed) -> str:
    return (done.last_words or f"exit status {done.rc}").rstrip(".")


async def _launch(host: Host, q: str) -> _Launch | None:
    data = await host.read(layout.launch_file(q))
    if not data:
        return None
    try:
        said = json.loads(data)
        agent, python = said["agent"], said["python"]
    except (ValueError, KeyError, TypeError, RecursionError):
        agent, python = None, None
    if not isinstance(agent, str) or not isinstance(python, str | None):
        raise ServerError(f"{layout.launch_file(q)} on {host.name} is damaged.", hint="Remove that queue there.")
    return _Launch(agent, python)


async def _put_launch(host: Host, q: str, launch: _Launch) -> None:
    await _put_document(host, {"agent": launch.agent, "python": launch.python}, layout.launch_file(q))


async def _put_document(host: Host, obj: Mapping[str, Any], path: str) -> None:
    await host.put(layout.document(obj).encode(), path)


async def put_package(host: Host, package: Package, path: str) -> None:
    """Put a package where it is not there yet. Its name is its hash and `put` is atomic, so the size decides."""
    size = len(package.data)
    if len(await host.read(path, size - 1, 2)) != 1:
        await host.put(package.data, path)


async def _put_archive(host: Host, source: Path, sha256: str, path: str) -> None:
    """The same for an archive, which may be large."""
    if len(await host.read(path, _size(source) - 1, 2)) != 1 and await host.put_file(source, path) != sha256:
        raise LaunchRefused(f"{source} changed while it was sent to {host.name}.", hint="Launch it again.")


def _size(path: Path) -> int:
    return path.stat().st_size
