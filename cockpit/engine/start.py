"""From a user's wish to a planned group, and what would be done with it. `check` and `launch` are the next steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cockpit.core.errors import ServerError, UsageError
from cockpit.core.ids import group_id
from cockpit.core.records import GroupPlan
from cockpit.engine.admit import Checked, Connect, check, close
from cockpit.engine.putting import launch

__all__ = ["Checked", "Connect", "Wish", "check", "dry_run", "launch", "plan"]

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user asked of `run`."""

    profile: str
    overrides: tuple[str, ...] = ()
    servers: tuple[str, ...] | None = None
    multirun: bool = False
    repeats: int | None = None
    stage: str | None = None


async def plan(wish: Wish, connect: Connect) -> GroupPlan:
    """The plan of a wish; raises ConfigError, UsageError or ServerError. Nothing is started or written."""
    from cockpit.config import load
    from cockpit.plan import make_plan

    if wish.repeats is not None and wish.repeats < 1:
        raise UsageError(f"--repeats {wish.repeats}: a group needs at least 1 run a server.")
    found = await asyncio.to_thread(_load, load, wish, None)
    vendors = await _vendors(found, connect)
    if vendors:
        found = await asyncio.to_thread(_load, load, wish, vendors)
    now = datetime.now(UTC)
    return make_plan(found, group=group_id(wish.profile, now), repeats=wish.repeats, stage=wish.stage)


def _load(load: Callable[..., Any], wish: Wish, vendors: Mapping[str, str] | None) -> Any:
    return load(wish.profile, wish.overrides, servers=wish.servers, multirun=wish.multirun, detect=vendors)


async def _vendors(resolved: Any, connect: Connect) -> dict[str, str]:
    """The vendors of the servers that leave theirs to be detected, asked all at once.

    A server that does not answer is left out where another answers: it is planned as one without GPUs, and refused
    when it is checked. Raises ServerError where none answers.
    """
    from cockpit.hosts.probe import detect_vendor

    async def ask(server: Any) -> str:
        host = connect(server.ssh.access(server.address, server.python))
        try:
            return await asyncio.wait_for(detect_vendor(host), _TIMEOUT_S)
        finally:
            await close([host])

    names = [name for name, server in resolved.base.servers.items() if server.vendor == "auto"]
    answers = await asyncio.gather(*(ask(resolved.base.servers[n]) for n in names), return_exceptions=True)
    found: dict[str, str] = {}
    errors: list[Exception] = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, str):
            found[name] = answer
        elif isinstance(answer, ServerError | TimeoutError):
            found[name] = "cpu"
            errors.append(answer)
        else:
            raise answer
    if errors and (len(errors) == len(resolved.base.servers) or resolved.base.require_all):
        first = errors[0]
        raise first if isinstance(first, ServerError) else ServerError(f"No server answered within {_TIMEOUT_S:.0f} s.")
    return found


def dry_run(group: GroupPlan) -> str:
    """All that `run` would do, uploads included, as a shell script that works by hand."""
    from cockpit import launch as launchers
    from cockpit.engine.deliver import Packing
    from cockpit.telemetry.pack import build_agent, build_code

    packing = Packing()
    try:
        packed = [packing.pack(server) for server in group.servers.values()]
    finally:
        packing.close()
    files = {local: archive.there for each in packed for local, archive in each.items()}
    return launchers.render(group, agent=build_agent().sha256, code=build_code().sha256, files=files)
