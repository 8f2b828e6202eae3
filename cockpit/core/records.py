"""Records that travel between layers: what stands below config takes these, not the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VENDORS = ("nvidia", "amd", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A machine, or several nodes that train together.

    `address` is "local" or an SSH destination. Servers of equal (address, workdir, slot) share one queue and take
    turns in its `slots`. `workdir` is the agent's folder on the server, None for the default of the host. Times in
    seconds; None means no limit.
    """

    name: str
    address: str = "local"
    vendor: str = "cpu"
    gpus: tuple[int, ...] | None = None
    nodes: tuple[str, ...] = ()
    slot: str = "default"
    slots: int = 1
    workdir: str | None = None
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    timeout_s: float | None = None
    stall_after_s: float | None = None
    stop_grace_s: float = 10.0
    cooldown_s: float = 0.0

    @property
    def queue_key(self) -> tuple[str, str, str]:
        """Servers with the same key share one queue."""
        return (self.address, self.workdir or "", self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage of one run, before a launcher renders it.

    `module_args` follow the interpreter (`-m runners --config ...`); `argv` instead, where the runner is `command`.
    `processes` above 1 asks the launcher for torchrun. Times in seconds.
    """

    stage: str
    module_args: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    processes: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    stall_after_s: float | None = None
    stop_grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One workload, executed once, on one server. `config` is the resolved configuration as JSON values.

    `usd_per_gpu_hour` is what the server costs, None where nobody said.
    """

    run: str
    group: str
    server: str
    repeat: int
    sweep: Mapping[str, str]
    launcher: str
    stages: tuple[StagePlan, ...]
    config: Mapping[str, Any]
    usd_per_gpu_hour: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as it stands in run.json (the configuration stands there under its own key)."""
        out = asdict(self)
        out.pop("config")
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """The runs, in the order of their turns, that share the slots of one machine."""

    key: str
    address: str
    workdir: str | None
    slot: str
    slots: int
    cooldown_s: float
    runs: tuple[RunPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """All runs launched together. `profile` is a name, `overrides` the user's words, `theme` colours its faces."""

    group: str
    profile: str
    overrides: tuple[str, ...]
    servers: Mapping[str, ServerSpec]
    queues: tuple[QueuePlan, ...]
    theme: str = "nord"

    @property
    def runs(self) -> tuple[RunPlan, ...]:
        """All runs, queue by queue, in the order of their turns."""
        return tuple(r for q in self.queues for r in q.runs)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a file on a server, from `offset` on."""

    path: str
    offset: int
    data: bytes
