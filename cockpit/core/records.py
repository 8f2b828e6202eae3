"""Records that travel between layers: what stands below config takes these, not the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

VENDORS = ("nvidia", "amd", "cpu")
ENGINES = ("docker", "podman")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a machine is reached. `address` is "local" or an SSH destination: HOST or USER@HOST, as for ssh.

    `transport` asyncssh, or openssh: the system's ssh with a control master, for interactive logins. `port`,
    `identity` (a key file) and `config` (in place of ~/.ssh/config) None take what ssh's configuration says.
    `python` is the interpreter there that follows files. The connection counts as lost after
    keepalive_s x (keepalive_count + 1) seconds without an answer.
    """

    address: str = "local"
    transport: str = "asyncssh"
    port: int | None = None
    identity: str | None = None
    config: str | None = None
    python: str = "python3"
    connect_timeout_s: float = 15.0
    keepalive_s: float = 5.0
    keepalive_count: int = 3

    def to_json(self) -> dict[str, Any]:
        """As it stands in a group's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Access:
        """From a group's file; unknown keys are dropped, missing ones take their defaults."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in obj.items() if k in known})


@dataclass(frozen=True, slots=True)
class DataCopy:
    """Prepared data that goes from one machine to servers of a group.

    `files` are paths below `folder` on the machine `source`, an entry's manifest after its other files; `servers` get
    them into their own data folder.
    """

    source: Access
    folder: str
    files: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """What a machine's container engine and an image are, as far as rendering a container needs it.

    `engine` docker or podman; `rootless` whether it runs as the user; `cdi` whether NVIDIA's devices are given by
    CDI names instead of --gpus; `groups` the numeric ids of the host's groups that own AMD's devices; `infiniband`
    whether /dev/infiniband is there; `entrypoint` and `digest` are the image's, `image_id` its local id; `home` is
    the user's home folder, `uid` and `gid` who the agent is.
    """

    engine: str = "docker"
    version: str | None = None
    rootless: bool = False
    cdi: bool = False
    groups: tuple[int, ...] = ()
    infiniband: bool = False
    entrypoint: tuple[str, ...] = ()
    image_id: str | None = None
    digest: str | None = None
    home: str = "/root"
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How servers are sampled: `hz` a second, and for `idle_s` before a run begins; None is by the vendor.

    `keep_by` bytes of it are kept a run on a server. Without a run the agent ends `idle_end_s` after the last word of
    a cockpit. `temp_alarm_c` is the reading in degrees Celsius from which on there is an alarm, None for none.
    """

    hz: float | None = None
    idle_s: float | None = None
    keep_by: int = 256 << 20
    idle_end_s: float = 60.0
    temp_alarm_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePower:
    """The sensor of a whole machine's power: `kind` ipmi, or redfish at `url` as `user`.

    `secret` is the name of the variable whose value is that user's password; `insecure` takes any certificate. With
    several nodes `{node}` in the url stands for a node's host name.
    """

    kind: str
    url: str | None = None
    user: str | None = None
    secret: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A machine, or several nodes that train together.

    `address` is "local" or an SSH destination. Servers of equal (address, workdir, slot) share one queue and take
    turns in its `slots`. `workdir` is the agent's folder on the server, None for the default of the host. Times in
    seconds; None means no limit.

    `access` says how `address` is reached; `node_accesses` how each of `nodes` is, the first of which is `address`.
    `master_addr` is the first node's address as the others see it, None to take it from the SSH configuration;
    `master_port` the first of the two ports that the nodes meet at. `mounts` go from a path on the server to one in
    the container, `files` from a path here to one there. `secrets` are names of variables. `container` is None until
    the machine was asked.
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
    access: Access = Access()
    node_accesses: tuple[Access, ...] = ()
    master_addr: str | None = None
    master_port: int = 29400
    share_gpus: bool = False  # start also where somebody else is on the GPUs
    container: ContainerFacts | None = None
    telemetry: Sampling = Sampling()
    node_power: NodePower | None = None

    @property
    def queue_key(self) -> tuple[str, str, str, str]:
        """Servers with the same key share one queue; nodes that train together are one machine.

        One address may lead to several machines, by ports that are forwarded or by another configuration.
        """
        machine = " ".join(self.nodes) if len(self.nodes) > 1 else self.address
        way = f"{self.access.port or ''} {self.access.config or ''}".strip()
        return machine, self.workdir or "", self.slot, way


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage of one run, before a launcher renders it.

    `module_args` follow the interpreter (`-m runners --config ...`); `argv` instead, where the runner is `command`.
    `processes` above 1 asks the launcher for torchrun; with several nodes it counts all of them. Times in seconds.
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

    `launcher` is its kind, `launch` its settings (the profile's launcher section as JSON values).
    `usd_per_gpu_hour` is what the server costs, None where nobody said. With several nodes, `log_node` is the one
    whose output tells the iterations.
    """

    run: str
    group: str
    server: str
    repeat: int
    sweep: Mapping[str, str]
    launcher: str
    stages: tuple[StagePlan, ...]
    config: Mapping[str, Any]
    launch: Mapping[str, Any] = field(default_factory=dict)
    usd_per_gpu_hour: float | None = None
    log_node: int = 0

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
    access: Access = Access()
    nodes: tuple[Access, ...] = ()  # where several machines train together: all of them, the first is `access`


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server may send at most, in bytes and files; above it the cockpit stops taking, and says so."""

    log_by: int = 4 << 30  # of one run's output and of its telemetry, each
    fetch_by: int = 64 << 30  # of one run's artifacts together
    fetch_files: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """All runs launched together. `profile` is a name, `overrides` the user's words, `theme` colours its faces.

    `require_all` refuses the group where one of its servers cannot start; else the others go on. `fetch` holds
    patterns of the artifacts that come home. `data_from` is the server (or local) whose prepared data all others get.
    """

    group: str
    profile: str
    overrides: tuple[str, ...]
    servers: Mapping[str, ServerSpec]
    queues: tuple[QueuePlan, ...]
    theme: str = "nord"
    require_all: bool = False
    fetch: tuple[str, ...] = ("**",)
    limits: Limits = Limits()
    data_from: str | None = None

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
