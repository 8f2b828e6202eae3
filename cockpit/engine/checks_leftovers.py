"""Agents and queues that are still on a server: at work, waiting to be fetched, or forgotten."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ServerError
from cockpit.core.text import printable
from cockpit.engine.findings import Finding, ok, warn
from cockpit.hosts.shell import ssh

if TYPE_CHECKING:
    from cockpit.core.records import Access
    from cockpit.hosts.base import Host

_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "STALLED", "NODE_FAIL", "PREEMPTED")
_OLDEST_S = 100 * 365 * 86400.0  # what says more does not know
_MOST = 12  # queues that are told one by one


async def leftovers(host: Host, workdir: str, python: str) -> Iterable[Finding]:
    """The queues in a server's work folder, each with its age and size and the command that tidies it up.

    Raises ServerError where the agent there does not answer.
    """
    agents = [e.path for e in await host.listdir(f"{workdir}/bin") if e.path.endswith(".pyz")]
    if not agents:
        return [ok("agents", f"none in {workdir}")]
    pyz = f"{workdir}/bin/{await _best(agents)}"
    done = await host.run([python, pyz, "list", workdir], timeout=30.0)
    queues = _queues(done.stdout) if done.rc == 0 else None
    if queues is None:
        said = printable(done.last_words)[:200] or f"status {done.rc}"
        raise ServerError(
            f"the agent in {workdir} on {host.name} does not list its queues: {said}.",
            hint=f"Look into {workdir}/groups there.",
        )
    if not queues:
        return [ok("agents", f"no queue is left in {workdir}")]
    told = [_queue(q, host.access, [python, pyz]) for q in queues[:_MOST]]
    if len(queues) > _MOST:
        told.append(warn("agents", f"and {len(queues) - _MOST} more queues in {workdir}/groups."))
    return told


async def _best(agents: list[str]) -> str:
    """This version's own agent where it is there, else the last by name."""
    from cockpit.hosts.layout import agent_file
    from cockpit.telemetry.pack import build_agent

    own = agent_file("", (await asyncio.to_thread(build_agent)).sha256).rpartition("/")[2]
    return own if own in agents else agents[-1]


def _queues(output: bytes) -> list[Mapping[str, Any]] | None:
    """What `list` printed; None where it is not that."""
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    queues = said.get("queues") if isinstance(said, dict) else None
    return [q for q in queues if isinstance(q, dict)] if isinstance(queues, list) else None


def _command(access: Access, argv: Sequence[str]) -> str:
    """A command that a user may copy: over ssh, whose far end reads its words once more."""
    words = shlex.join(argv)
    return words if access.address == "local" else shlex.join([*ssh(access), words])


def _queue(queue: Mapping[str, Any], access: Access, agent: Sequence[str]) -> Finding:
    """One queue: who works it, what is in it, and what tidies it up."""
    from cockpit.hosts.look import size

    path = str(queue.get("path"))
    if queue.get("error"):
        mend = f"Look at it there, and remove it: rm -r {shlex.quote(path)}"
        return warn("agents", f"{path} cannot be read: {queue['error']}.", mend)
    group, runs = str(queue.get("group")), [r for r in queue.get("runs") or [] if isinstance(r, dict)]
    left = [r for r in runs if r.get("state") not in _ENDED]
    by = queue.get("size_by")
    what = f"group {group}, {age(queue.get('age_s'))}, {size(by if isinstance(by, int) and by < 1 << 63 else None)}"
    clean = _command(access, [*agent, "clean", path])
    named = shlex.quote(printable(group))  # a server's own word, in a command to copy
    if queue.get("alive"):
        running = queue.get("running")
        now = f", trains {', '.join(map(str, running))}" if isinstance(running, list) and running else ""
        to_go = f"{len(left)} of {len(runs)} runs to go"
        return ok("agents", f"{what}: an agent works it (pid {queue.get('pid')}{now}, {to_go})")
    if left:
        stop = _command(access, [*agent, "stop", path])
        return warn(
            "agents",
            f"{what}: its agent is gone, and {len(left)} of {len(runs)} runs are not done.",
            f"`ekvi-cockpit attach {named}` goes on with it; to give it up: {stop} && {clean}",
        )
    return warn("agents", f"{what}: done, not fetched.", f"`ekvi-cockpit fetch {named}`; or throw it away: {clean}")


def age(seconds: Any) -> str:
    """Seconds in words."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < _OLDEST_S:
        return "of unknown age"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} old"
    return f"{seconds:.0f} s old"
