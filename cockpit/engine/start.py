"""From a user's wish to a planned group, and what would be done with it. `check` and `launch` are the next steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cockpit.core.errors import CockpitError, ConfigError, LaunchRefused, ServerError, UsageError
from cockpit.core.ids import group_id
from cockpit.core.records import VENDORS, GroupPlan
from cockpit.core.within import within
from cockpit.engine.admit import Checked, Connect, check, close, must
from cockpit.engine.dryrun import dry_run
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
    vendors, silent = await _vendors(found, connect)
    if vendors or silent:
        found = await asyncio.to_thread(_with, load, wish, vendors, silent)
    now = datetime.now(UTC)
    return make_plan(found, group=group_id(wish.profile, now), repeats=wish.repeats, stage=wish.stage)


def _load(load: Callable[..., Any], wish: Wish, vendors: Mapping[str, str] | None) -> Any:
    return load(wish.profile, wish.overrides, servers=wish.servers, multirun=wish.multirun, detect=vendors)


def _with(load: Callable[..., Any], wish: Wish, vendors: Mapping[str, str], silent: Sequence[str]) -> Any:
    """The profile with what was detected; a server that was silent takes any vendor that the profile allows."""
    for guess in VENDORS[::-1]:
        try:
            return _load(load, wish, {**vendors, **dict.fromkeys(silent, guess)})
        except ConfigError:
            if not silent or guess == VENDORS[0]:
                raise
    return None


async def _vendors(resolved: Any, connect: Connect) -> tuple[dict[str, str], list[str]]:
    """The vendors of the servers that leave theirs to be detected, asked all at once; and those that were silent.

    A silent one is planned nevertheless, and refused when it is checked. Raises ServerError where all are silent.
    """
    from cockpit.hosts.probe import detect_vendor

    async def ask(server: Any) -> str:
        host = connect(server.ssh.access(server.address, server.python))
        try:
            return await within(_TIMEOUT_S, detect_vendor(host))
        finally:
            await close([host])

    names = [name for name, server in resolved.base.servers.items() if server.vendor == "auto"]
    answers = await asyncio.gather(*(ask(resolved.base.servers[n]) for n in names), return_exceptions=True)
    found: dict[str, str] = {}
    silent: dict[str, CockpitError] = {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, str):
            found[name] = answer
        elif isinstance(answer, ServerError):
            silent[name] = LaunchRefused(f"server {name}: {answer.message}", hint=answer.hint)
        elif isinstance(answer, TimeoutError):
            silent[name] = LaunchRefused(f"server {name}: no answer within {_TIMEOUT_S:.0f} s.")
        else:
            raise answer
    must(silent, resolved.base.servers, require_all=resolved.base.require_all)
    return found, list(silent)
