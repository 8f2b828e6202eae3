"""From a resolved profile to a group on its servers: checks, plan, handles on disk, queues on the servers."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, LaunchRefused, ServerError, UsageError
from cockpit.core.events import State, StateChange
from cockpit.core.ids import group_id
from cockpit.core.records import Access, GroupPlan, QueuePlan, RunPlan

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store
    from cockpit.telemetry.pack import Package

Connect = Callable[[Access], "Host"]
_TIMEOUT_S = 120.0
_NEEDS = {
    "megatron": ("torch", "megatron.core", "tokenizers", "pydantic"),
    "smoke": ("torch", "pydantic"),
    "command": (),
}


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
    if (wish.stage or found.base.stage) == "calibrate":
        raise UsageError(
            "the stage calibrate is not available in this version: it measures GPUs, and runs are on the CPU.",
            hint="Leave --stage out, or name data, train, wrap or purge.",
        )
    vendors = await _vendors(found, connect)
    if vendors:
        found = await asyncio.to_thread(_load, load, wish, vendors)
    now = datetime.now(UTC)
    return make_plan(found, group=group_id(wish.profile, now), repeats=wish.repeats, stage=wish.stage)


def _load(load: Callable[..., Any], wish: Wish, vendors: Mapping[str, str] | None) -> Any:
    return load(wish.profile, wish.overrides, servers=wish.servers, multirun=wish.multirun, detect=vendors)


async def _vendors(resolved: Any, connect: Connect) -> dict[str, str]:
    """The vendors of the servers that leave theirs to be detected."""
    from cockpit.hosts.probe import detect_vendor

    found: dict[str, str] = {}
    for name, server in resolved.base.servers.items():
        if server.vendor == "auto":
            host = connect(server.ssh.access(server.address, server.python))
            found[name] = await asyncio.wait_for(detect_vendor(host), _TIMEOUT_S)
            await asyncio.wait_for(host.close(), _TIMEOUT_S)
    return found


async def check(group: GroupPlan, connect: Connect) -> None:
    """Refuse what could not train, before anything is put anywhere: the runner's packages on each server."""
    from cockpit.hosts.probe import check_python
    from cockpit.launch.process import interpreter

    for queue in group.queues:
        host = connect(queue.access)
        try:
            for name in dict.fromkeys(r.server for r in queue.runs):
                server = group.servers[name]
                runner = next(r.config["runner"]["name"] for r in queue.runs if r.server == name)
                python = interpreter(server)
                missing = await asyncio.wait_for(check_python(host, python, _NEEDS[runner]), _TIMEOUT_S)
                if missing:
                    raise _refusal(name, runner, python, missing)
        finally:
            await asyncio.wait_for(host.close(), _TIMEOUT_S)


def _refusal(server: str, runner: str, python: str, missing: Sequence[str]) -> LaunchRefused:
    """Why a server cannot train, and what to do about it."""
    what = ", ".join(missing)
    if tuple(missing) == ("megatron.core",) and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return LaunchRefused(
            f"server {server}: megatron-core is not installed, and it has no wheel for "
            f"{platform.system()} on {platform.machine()}.",
            hint="What works here: `replay demo`, and `show` and `compare` of runs made elsewhere; `import` and "
            "remote servers come with a later version.",
        )
    return LaunchRefused(
        f"server {server}: the {runner} runner needs {what}, which {python} does not have.",
        hint="Install the train extra there: pip install 'ekvi-cockpit[train]' "
        "(on a machine without a GPU install a CPU build of torch first).",
    )


async def launch(
    group: GroupPlan,
    store: Store,
    connect: Connect,
    *,
    replaced: Mapping[str, str] | None = None,
) -> GroupRecord:
    """Write the group to the store, put its queues on the servers and start their agents.

    The handles are on disk before anything else happens, so that a cockpit killed at any point finds its runs. With
    `replaced` (old run -> new run) the plan's runs go into a group that is there. The caller holds the group's lock.
    Raises ServerError, LaunchRefused or StoreError; runs that got no agent are then CANCELLED, with the reason.
    """
    packages = await asyncio.to_thread(_packages)
    hosts = {q.key: connect(q.access) for q in group.queues}
    try:
        handles = {q.key: await _handle(group, q, hosts[q.key]) for q in group.queues}
        facts = {k: await _facts(hosts[k], h["python"], packages.code.sha256) for k, h in handles.items()}
        record = await asyncio.to_thread(_write, store, group, list(handles.values()), facts, replaced)
        for queue in group.queues:
            try:
                await _start_queue(hosts[queue.key], group, queue, handles[queue.key], packages)
            except (CockpitError, TimeoutError) as error:
                await asyncio.to_thread(
                    _not_launched, store, group, str(error) or "the server did not answer in time"
                )
                if isinstance(error, TimeoutError):
                    raise ServerError(f"{queue.address} did not take the queue within {_TIMEOUT_S:.0f} s.") from None
                raise
            await asyncio.to_thread(_note, store, queue.runs, State.SUBMITTED, f"in queue {queue.key}")
    finally:
        for host in hosts.values():
            await asyncio.wait_for(host.close(), _TIMEOUT_S)
    return record


@dataclass(frozen=True, slots=True)
class _Packages:
    agent: Package
    code: Package


def _packages() -> _Packages:
    from cockpit.telemetry.pack import build_agent, build_code

    return _Packages(build_agent(), build_code())


async def _handle(group: GroupPlan, queue: QueuePlan, host: Host) -> dict[str, Any]:
    """Where a queue is, in the group's file: what `attach` needs to find it again."""
    from cockpit.hosts import layout
    from cockpit.launch.process import interpreter

    workdir = await asyncio.wait_for(host.workdir(queue.workdir), _TIMEOUT_S)
    return {
        "key": queue.key,
        "workdir": workdir,
        "path": layout.queue_folder(workdir, group.group, queue.key),
        "python": interpreter(group.servers[queue.runs[0].server]),
    }


async def _start_queue(
    host: Host, group: GroupPlan, queue: QueuePlan, handle: Mapping[str, Any], packages: _Packages
) -> None:
    from cockpit.launch import process
    from cockpit.telemetry import deploy

    document = process.queue(queue, group.servers, code=packages.code.sha256)
    configs = {r.run: dict(r.config) for r in queue.runs}
    q = handle["path"]
    put = deploy.deploy(host, handle["workdir"], q, document, configs, packages.agent, packages.code)
    await asyncio.wait_for(put, _TIMEOUT_S)
    await asyncio.wait_for(deploy.start(host, q, handle["python"]), _TIMEOUT_S)


async def _facts(host: Host, python: str, code_sha256: str) -> dict[str, Any]:
    """What is known of a server before the start, for the runs' provenance."""
    from cockpit import __version__
    from cockpit.hosts.probe import facts

    known = await asyncio.wait_for(facts(host, python), _TIMEOUT_S)
    return {"cockpit": __version__, "code_sha256": code_sha256, "host": known}


def _write(
    store: Store,
    group: GroupPlan,
    queues: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Mapping[str, Any]],
    replaced: Mapping[str, str] | None,
) -> GroupRecord:
    totals = {r.run: planned_total(r.config) for r in group.runs}
    if replaced is not None:
        return store.extend(group, facts, replaced=replaced, queues=queues, totals=totals)
    return store.create(group, facts, queues=queues, totals=totals, theme=group.theme)


def _note(store: Store, runs: Sequence[RunPlan], state: State, reason: str) -> None:
    """Journal what became of runs; a full disk keeps nobody from following what was launched, nor hides an error."""
    from cockpit.store.errors import DiskFull

    for run in runs:
        run_dir = store.run_dir(run.run)
        with contextlib.suppress(DiskFull):
            with run_dir.journal() as journal:
                journal.append([StateChange(state=state, t=time.time(), reason=reason)])
            run_dir.update_meta(state=state.value, reason=reason)


def _not_launched(store: Store, group: GroupPlan, reason: str) -> None:
    """No agent took the queue: its runs, and those of the queues behind it, will not run."""
    waiting = [r for r in group.runs if store.run_dir(r.run).meta()["state"] == State.PLANNED.value]
    _note(store, waiting, State.CANCELLED, f"not launched: {reason}")


def dry_run(group: GroupPlan) -> str:
    """All that `run` would do, uploads included, as a shell script that works by hand."""
    from cockpit.launch import process

    packages = _packages()
    return process.render(group, agent=packages.agent.sha256, code=packages.code.sha256)


def planned_total(config: Mapping[str, Any]) -> int | None:
    """How many iterations a run's configuration asks for, or None where only the program knows."""
    if config["runner"]["name"] == "megatron":
        return int(config["training"]["train_iters"])
    return None
