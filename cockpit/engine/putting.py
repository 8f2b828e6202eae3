"""A checked group put on its servers: handles on disk, then queues, all servers at once; agents started."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, ServerError
from cockpit.core.events import State, StateChange
from cockpit.core.records import QueuePlan, RunPlan
from cockpit.core.state import RunState
from cockpit.core.within import within
from cockpit.engine.admit import Checked, Connect, admitted, close
from cockpit.engine.data import share_data
from cockpit.engine.deliver import Archive, Packing, archives, secrets_of
from cockpit.engine.reconnect import Link
from cockpit.hosts.base import ServerLost, ServerTimeout

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store
    from cockpit.telemetry.pack import Package

_TIMEOUT_S = 120.0
_PUT_S = 24 * 3600.0  # files may be large
_AWAY_S = 60.0  # for taking a queue away again, also over a link that breaks
_LOOK_S = 0.2
_TOKEN_BY = 32


@dataclass(slots=True)
class _Queue:
    """One queue on its way: its plan without what was refused, its machines, and why it could not be put there."""

    plan: QueuePlan
    hosts: list[Host]
    files: dict[str, Archive] = field(default_factory=dict)
    secrets: dict[str, bytes] = field(default_factory=dict)
    handle: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    documents: list[dict[str, Any]] = field(default_factory=list)  # queue.json of each node
    error: CockpitError | None = None


async def launch(
    checked: Checked,
    store: Store,
    connect: Connect,
    *,
    replaced: Mapping[str, str] | None = None,
) -> GroupRecord:
    """Write the group to the store, put its queues on the servers and start their agents.

    The handles are on disk before anything else happens, so that a cockpit killed at any point finds its runs. With
    `replaced` (old run -> new run) the plan's runs go into a group that is there. The caller holds the group's lock.
    Runs of servers that were refused, or do not take their queue, are CANCELLED with the reason, and stand in the
    group's file (`refused` of a queue). Raises ServerError, LaunchRefused or StoreError where nothing could start, or
    not all that must.
    """
    packing = Packing()
    queues: list[_Queue] = []
    checked = admitted(await share_data(checked, connect))
    try:
        queues = _open(checked, connect)
        return await _Launch(checked, store, await asyncio.to_thread(_packages), packing, queues).launch(replaced)
    finally:
        packing.close()
        await close([host for q in queues for host in q.hosts])


@dataclass(frozen=True, slots=True)
class _Packages:
    agent: Package
    code: Package


def _packages() -> _Packages:
    from cockpit.telemetry.pack import build_agent, build_code

    return _Packages(build_agent(), build_code())


def _open(checked: Checked, connect: Connect) -> list[_Queue]:
    """The queues that have runs on servers that were not refused."""
    opened = []
    for queue in checked.group.queues:
        runs = tuple(r for r in queue.runs if r.server not in checked.refused)
        if runs:
            hosts = [connect(access) for access in queue.nodes or (queue.access,)]
            opened.append(_Queue(dataclasses.replace(queue, runs=runs), hosts))
    return opened


class _Launch:
    """One launch."""

    def __init__(
        self, checked: Checked, store: Store, packages: _Packages, packing: Packing, queues: list[_Queue]
    ) -> None:
        self._checked = checked
        self._group = checked.group
        self._store = store
        self._packages = packages
        self._packing = packing
        self._queues = queues
        self._refused: dict[str, CockpitError] = dict(checked.refused)

    async def launch(self, replaced: Mapping[str, str] | None) -> GroupRecord:
        await asyncio.gather(*(self._each(q, self._prepare(q)) for q in self._queues))
        self._take_out(self._queues)
        admitted(Checked(self._group, self._refused))
        ready = [q for q in self._queues if q.error is None]
        await asyncio.to_thread(self._write, ready, replaced)
        await asyncio.gather(*(self._each(q, self._put(q)) for q in ready))
        failed = [q for q in ready if q.error is not None]
        self._take_out(failed)
        for queue in failed:
            await asyncio.to_thread(self._not_launched, queue.plan.runs)
        try:
            admitted(Checked(self._group, self._refused))
        except CockpitError:
            await self._take_back([q for q in ready if q.error is None])
            raise
        return await asyncio.to_thread(self._noted)

    async def _each(self, queue: _Queue, work: Any) -> None:
        """One queue's step; its error is its own."""
        try:
            await within(_PUT_S, work)
        except CockpitError as error:
            queue.error = error
        except TimeoutError:
            queue.error = ServerError(f"{queue.hosts[0].name} did not answer in time.")

    def _take_out(self, queues: Sequence[_Queue]) -> None:
        for queue in queues:
            if queue.error is not None:
                self._refused.update({r.server: queue.error for r in queue.plan.runs})

    # -- before anything is written

    async def _prepare(self, queue: _Queue) -> None:
        """Where the queue will be, and what is known of its machine before the start."""
        servers = [self._group.servers[name] for name in dict.fromkeys(r.server for r in queue.plan.runs)]
        queue.secrets = secrets_of(servers)
        for server in servers:
            queue.files.update(await asyncio.to_thread(self._packing.pack, server))
        queue.handle, queue.facts = await asyncio.gather(self._handle(queue), self._facts(queue))
        await self._render(queue)

    async def _render(self, queue: _Queue) -> None:
        """What each machine is told to do; with several nodes they get one token, which is written nowhere else."""
        from cockpit import launch

        several = len(queue.hosts) > 1
        server = self._group.servers[queue.plan.runs[0].server]
        token = secrets.token_hex(_TOKEN_BY) if several else None
        master = server.master_addr or await queue.hosts[0].network_name() if several else None
        queue.documents = [
            launch.queue(
                queue.plan,
                self._checked.servers(node),
                code=self._packages.code.sha256,
                files={local: a.there for local, a in queue.files.items()},
                node=node,
                token=token,
                master=master,
            )
            for node in range(len(queue.hosts))
        ]

    async def _handle(self, queue: _Queue) -> dict[str, Any]:
        """Where a queue is, in the group's file: what `attach` needs to find it again."""
        from cockpit.hosts import layout
        from cockpit.launch import interpreter

        python = interpreter(self._group.servers[queue.plan.runs[0].server])
        accesses = queue.plan.nodes or (queue.plan.access,)
        nodes = []
        for host, access in zip(queue.hosts, accesses, strict=True):
            workdir = await within(_TIMEOUT_S, host.workdir(queue.plan.workdir))
            path = layout.queue_folder(workdir, self._group.group, queue.plan.key)
            nodes.append({"access": access.to_json(), "path": path, "python": python, "workdir": workdir})
        first = {k: v for k, v in nodes[0].items() if k != "access"}
        return {"key": queue.plan.key, **first, **({"nodes": nodes} if len(nodes) > 1 else {})}

    async def _facts(self, queue: _Queue) -> dict[str, Any]:
        """What is known of a server before the start, for the runs' provenance."""
        from cockpit import __version__
        from cockpit.hosts.probe import facts
        from cockpit.launch import interpreter

        python = interpreter(self._group.servers[queue.plan.runs[0].server])
        known = await asyncio.gather(*(within(_TIMEOUT_S, facts(h, python)) for h in queue.hosts))
        out = {"cockpit": __version__, "code_sha256": self._packages.code.sha256, "host": known[0]}
        return {**out, "nodes": list(known)} if len(known) > 1 else out

    # -- the store

    def _write(self, ready: Sequence[_Queue], replaced: Mapping[str, str] | None) -> None:
        """The group's file and its runs, those that were refused already ended."""
        totals = {r.run: planned_total(r) for r in self._group.runs}
        facts = {q.plan.key: q.facts for q in ready}
        handles = {q.plan.key: q.handle for q in ready}
        records = [{**handles.get(q.key, {"key": q.key}), **self._refusals(q)} for q in self._group.queues]
        if replaced is not None:
            self._store.extend(self._group, facts, replaced=replaced, queues=records, totals=totals)
        else:
            self._store.create(self._group, facts, queues=records, totals=totals, theme=self._group.theme)
        for queue in ready:
            for run in queue.plan.runs:
                self._more(run, queue)
        self._not_launched([r for r in self._group.runs if r.server in self._refused])

    def _refusals(self, queue: QueuePlan) -> dict[str, Any]:
        found = {r.server: str(self._refused[r.server]) for r in queue.runs if r.server in self._refused}
        return {"refused": found} if found else {}

    def _more(self, run: RunPlan, queue: _Queue) -> None:
        """What one run's record has beside what its queue shares: the words, the image and the nodes that make it."""
        from cockpit import launch

        (entry,) = (r for r in queue.documents[0]["runs"] if r["run"] == run.run)
        provenance = {**queue.facts, "stages": [{"stage": s["stage"], "argv": s["argv"]} for s in entry["stages"]]}
        facts = self._group.servers[run.server].container
        if run.launcher == "container" and facts is not None:
            image = launch.image(run.launch, self._group.servers[run.server].vendor)
            told = {"engine": facts.engine, "version": facts.version, "image": image}
            provenance["container"] = {**told, "image_id": facts.image_id, "digest": facts.digest}
        changes: dict[str, Any] = {"provenance": provenance}
        if "nodes" in queue.handle:
            changes["handle"] = {"queue": queue.plan.key, "nodes": queue.handle["nodes"]}
        self._store.run_dir(run.run).update_meta(**changes)

    def _not_launched(self, runs: Sequence[RunPlan]) -> None:
        """No agent took these runs: they will not run, and have nothing to bring home."""
        from cockpit.engine.finish import close_run
        from cockpit.store.errors import DiskFull

        for run in runs:
            reason = f"not launched: {self._refused[run.server]}"
            _note(self._store, [run], State.CANCELLED, reason)
            state = RunState(run.run, self._group.group, run.server, state=State.CANCELLED, reason=reason)
            with contextlib.suppress(DiskFull):
                close_run(self._store.run_dir(run.run).path, state)

    def _noted(self) -> GroupRecord:
        """The group as it is now, with what was refused while it was put on the servers."""
        record = self._store.group(self._group.group)
        plans = {q.key: q for q in self._group.queues}
        queues = tuple({**q, **self._refusals(plans[q["key"]])} if q["key"] in plans else q for q in record.queues)
        return record if queues == record.queues else self._store.update_group(record.id, queues=queues)

    # -- on the servers

    async def _put(self, queue: _Queue) -> None:
        from cockpit.telemetry import deploy

        await self._all_nodes(queue, [self._deploy(queue, node) for node in range(len(queue.hosts))])
        reason = f"in queue {queue.plan.key}"
        try:
            for node, host in zip(_nodes(queue), queue.hosts, strict=True):
                await within(_TIMEOUT_S, deploy.start(host, node["path"], node["python"]))
        except (ServerLost, ServerTimeout, TimeoutError):
            # The agent may have started: whoever follows the queue will see, and start it where it has not.
            reason += "; the server was lost while its agent started"
        except CockpitError:
            await self._leave_nothing(queue)
            raise
        await asyncio.to_thread(_note, self._store, queue.plan.runs, State.SUBMITTED, reason)

    async def _all_nodes(self, queue: _Queue, work: Sequence[Any]) -> None:
        tasks = [asyncio.ensure_future(w) for w in work]
        try:
            await asyncio.gather(*tasks)
        except (CockpitError, TimeoutError):
            for task in tasks:  # or one of them would put secrets where they were just taken away
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave_nothing(queue)
            raise

    async def _deploy(self, queue: _Queue, index: int) -> None:
        from cockpit.telemetry import deploy

        node, host = _nodes(queue)[index], queue.hosts[index]
        await deploy.deploy(
            host,
            node["workdir"],
            node["path"],
            queue.documents[index],
            {r.run: dict(r.config) for r in queue.plan.runs},
            self._packages.agent,
            self._packages.code,
            files={a.sha256: a.path for a in archives(queue.files)},
            secrets=queue.secrets,
        )

    async def _leave_nothing(self, queue: _Queue) -> None:
        """Take away what was put on the machines of a queue that will not run, its secrets above all."""
        for node, host, document in zip(_nodes(queue), queue.hosts, queue.documents, strict=True):
            away = Link(host.name, lambda *_: None).keep(partial(_take_away, host, node["path"], document))
            with contextlib.suppress(CockpitError, TimeoutError):
                await within(_AWAY_S, away)

    async def _take_back(self, queues: Sequence[_Queue]) -> None:
        """Stop what was started already of a group that needs all its servers."""
        from cockpit.telemetry import deploy

        for queue in queues:
            for node, host in zip(_nodes(queue), queue.hosts, strict=True):
                with contextlib.suppress(CockpitError, TimeoutError):
                    await within(_TIMEOUT_S, deploy.stop(host, node["path"]))


async def _take_away(host: Host, path: str, document: Mapping[str, Any]) -> None:
    """Remove a queue's folder, its agent first where one was started; never a folder that holds another queue."""
    from cockpit.hosts import layout
    from cockpit.telemetry import deploy

    ours = layout.document(document).encode()
    if await host.read(layout.queue_file(path), 0, len(ours) + 1) not in (b"", ours):
        return
    if await deploy.alive(host, path):
        await deploy.stop(host, path)
        while await deploy.alive(host, path):  # noqa: ASYNC110  another process lets go
            await asyncio.sleep(_LOOK_S)
    await host.remove_tree(path)


def _nodes(queue: _Queue) -> Sequence[Mapping[str, Any]]:
    nodes: Sequence[Mapping[str, Any]] = queue.handle.get("nodes") or [queue.handle]
    return nodes


def _note(store: Store, runs: Sequence[RunPlan], state: State, reason: str) -> None:
    """Journal what became of runs; a full disk keeps nobody from following what was launched, nor hides an error."""
    from cockpit.store.errors import DiskFull

    for run in runs:
        run_dir = store.run_dir(run.run)
        with contextlib.suppress(DiskFull):
            with run_dir.journal() as journal:
                journal.append([StateChange(state=state, t=time.time(), reason=reason)])
            run_dir.update_meta(state=state.value, reason=reason)


def planned_total(run: RunPlan) -> int | None:
    """How many iterations a run is to make, or None where only the program knows, or where it does not train."""
    if run.config["runner"]["name"] == "megatron" and any(stage.stage == "train" for stage in run.stages):
        from runners.schema import Training

        return Training.model_validate(run.config["training"]).iterations
    return None
