"""What run.json and a group's file hold, and the way from and to the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cockpit.core.errors import StoreError
from cockpit.core.records import (
    Access,
    ContainerFacts,
    GroupPlan,
    Limits,
    NodePower,
    QueuePlan,
    RunPlan,
    Sampling,
    ServerSpec,
    StagePlan,
)

IMPORTED = "imported"  # the profile of groups that were made of files


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """Runs launched together. `created` is the cockpit's wall clock in seconds; `state` is None until it ended.

    `servers` are ServerSpecs as JSON; a queue is {"key","address","workdir","slot","slots","cooldown_s","runs":[ids]}
    and what the engine adds to it.
    """

    id: str
    profile: str
    overrides: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    state: str | None = None
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    queues: tuple[Mapping[str, Any], ...] = ()
    created: float | None = None
    theme: str = "nord"
    tags: tuple[str, ...] = ()
    fetch: tuple[str, ...] = ("**",)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_runs(self) -> tuple[str, ...]:
        """The group's runs, and those before them that were done again."""
        return tuple(dict.fromkeys([*self.runs, *(r for q in self.queues for r in q.get("runs", ()))]))

    def to_json(self) -> dict[str, Any]:
        """The record as it stands in the group's file, less the schema."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any], path: Path) -> GroupRecord:
        """The record in `obj`, read from `path`; raises StoreError where something needed is missing."""
        known = {f.name for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {k: _frozen(v) for k, v in obj.items() if k in known}
        try:
            return cls(**values)
        except TypeError:
            raise StoreError(
                f"{path}:1: damaged: it needs id and profile.", hint="Restore the file, or delete the group's file."
            ) from None


def group_record(
    plan: GroupPlan, created: float, queues: Iterable[Mapping[str, Any]] = (), **more: Any
) -> GroupRecord:
    """The record of a new group; `queues` add keys of their own to the queue of the same key."""
    added = {q["key"]: q for q in queues}
    return GroupRecord(
        id=plan.group,
        profile=plan.profile,
        overrides=tuple(plan.overrides),
        runs=tuple(r.run for r in plan.runs),
        servers={name: asdict(spec) for name, spec in plan.servers.items()},
        queues=tuple({**_queue(q), **added.get(q.key, {})} for q in plan.queues),
        created=created,
        fetch=plan.fetch,
        limits=asdict(plan.limits),
        **more,
    )


def _queue(queue: QueuePlan) -> dict[str, Any]:
    out = {f.name: getattr(queue, f.name) for f in dataclasses.fields(queue)}
    out["runs"] = [r.run for r in queue.runs]
    out["access"] = queue.access.to_json()
    out["nodes"] = [node.to_json() for node in queue.nodes]
    return out


def access_of(queue: Mapping[str, Any]) -> Access:
    """How the machine of a group's queue is reached; a group of an older version has its address alone."""
    return Access.from_json(queue.get("access") or {"address": queue["address"]})


def run_meta(
    run: RunPlan, queue: str, server: ServerSpec, profile: str, created: float, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """run.json of a new run, less the schema."""
    return {
        "id": run.run,
        "group": run.group,
        "profile": profile,
        "server": run.server,
        "vendor": server.vendor,
        "gpus": None if server.gpus is None else list(server.gpus),
        "state": "PLANNED",
        "reason": None,
        "exit_code": None,
        "signal": None,
        "repeat": run.repeat,
        "sweep": dict(run.sweep),
        "total": None,
        "tags": [],
        "created": created,
        "started": None,
        "ended": None,
        "handle": {"queue": queue},
        "provenance": dict(provenance),
        "plan": run.to_json(),
        "config": dict(run.config),
    }


def run_plan(meta: Mapping[str, Any]) -> RunPlan:
    """The plan that a run.json was made from. Raises KeyError or TypeError where it holds none."""
    plan = dict(meta["plan"])
    plan["stages"] = tuple(_stage(s) for s in plan["stages"])
    return RunPlan(**plan, config=meta["config"])


def _stage(obj: Mapping[str, Any]) -> StagePlan:
    values: dict[str, Any] = {k: _frozen(v) for k, v in obj.items()}
    return StagePlan(**values)


def server_spec(obj: Mapping[str, Any]) -> ServerSpec:
    """A ServerSpec from its JSON, unknown keys dropped."""
    known = {f.name for f in dataclasses.fields(ServerSpec)}
    values: dict[str, Any] = {k: _frozen(v) for k, v in obj.items() if k in known}
    if "access" in values:
        values["access"] = Access.from_json(values["access"])
    values["node_accesses"] = tuple(Access.from_json(node) for node in values.get("node_accesses", ()))
    if values.get("container") is not None:
        values["container"] = ContainerFacts(**{k: _frozen(v) for k, v in values["container"].items()})
    values["telemetry"] = Sampling(**values.get("telemetry") or {})
    if values.get("node_power") is not None:
        values["node_power"] = NodePower(**values["node_power"])
    return ServerSpec(**values)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def group_plan(record: GroupRecord, metas: Mapping[str, Mapping[str, Any]]) -> GroupPlan:
    """The plan that a group was made from; runs that are in no `metas` (deleted since) are left out."""
    queues = [
        QueuePlan(
            key=q["key"],
            address=q["address"],
            workdir=q["workdir"],
            slot=q["slot"],
            slots=q["slots"],
            cooldown_s=q["cooldown_s"],
            runs=_plans(q["runs"], metas),
            access=access_of(q),
            nodes=tuple(Access.from_json(node) for node in q.get("nodes") or ()),
        )
        for q in record.queues
    ]
    return GroupPlan(
        group=record.id,
        profile=record.profile,
        overrides=record.overrides,
        servers={name: server_spec(obj) for name, obj in record.servers.items()},
        queues=tuple(queues),
        theme=record.theme,
        fetch=record.fetch,
        limits=Limits(**record.limits),
    )


def _plans(runs: Sequence[str], metas: Mapping[str, Mapping[str, Any]]) -> tuple[RunPlan, ...]:
    return tuple(run_plan(metas[r]) for r in runs if r in metas)
