"""The profile's models: a run's configuration, and the servers it runs on. Imported lazily: pydantic is heavy."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from cockpit.config import fields
from cockpit.core.records import Access, NodePower, Sampling, ServerSpec
from runners.schema import Flag, Positive, Real, RunConfig, Strict, Whole, refuse

SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLOT = re.compile(r"[a-z0-9][a-z0-9-]*")
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_MAX_GPUS = 1024


def _server_name(name: str) -> str:
    if not SERVER_NAME.fullmatch(name):
        raise refuse(f"{name!r} is no server name: letters, digits, _ and -, beginning with a letter or digit.")
    return name


def _address(text: str) -> str:
    if not text or text.startswith("-") or re.search(r"[\s\x00-\x1f]", text):
        raise refuse(f"{text!r} is no address: say local, HOST or USER@HOST, as for ssh.")
    return text


def _slot(text: str) -> str:
    if not _SLOT.fullmatch(text):
        raise refuse(f"{text!r} is no slot name: small letters, digits and -.")
    return text


def _workdir(text: str) -> str:
    if not text.startswith(("/", "~/")) or "\x00" in text or "\n" in text:
        raise refuse(f"workdir {text!r} is not absolute: begin it with / or ~/.")
    return text


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise refuse(f"{name!r} is no name of an environment variable.")
    return name


def _env_value(value: Any) -> Any:
    """Numbers are written as they read; true is refused, because some programs want 1 and some want true."""
    if isinstance(value, bool) or value is None:
        raise refuse("the value of an environment variable is a text: quote it.")
    return str(value) if isinstance(value, int | float) else value


def gpu_list(value: Any) -> Any:
    """GPUs as a list of indices: 3, "0-3" and "0,2-4" become one; lists and None stay. Raises refuse()."""
    if isinstance(value, bool):
        raise refuse(f"gpus {value} is no list of GPUs: write 0-3, or [0, 2].")
    if isinstance(value, int):
        value = [value]
    if isinstance(value, str):
        parts = [_RANGE.fullmatch(part) for part in value.split(",")]
        bounds = [(int(p[1]), int(p[2] or p[1])) for p in parts if p]
        if len(bounds) < len(parts) or any(not first <= last < _MAX_GPUS for first, last in bounds):
            raise refuse(f"gpus {value!r} is no list of GPUs: write 0-3, or [0, 2].")
        value = [i for first, last in bounds for i in range(first, last + 1)]
    if isinstance(value, list | tuple) and len({str(v) for v in value}) < len(value):
        raise refuse("gpus names one GPU twice.")
    return value


ServerName = Annotated[str, AfterValidator(_server_name)]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_env_value)]
Seconds = Annotated[Real, Field(gt=0)]
Pause = Annotated[Real, Field(ge=0)]
Index = Annotated[int, Field(strict=True, ge=0)]


class Ssh(Strict):
    """How a server is reached by SSH; None takes what ssh's own configuration says.

    `transport` openssh uses the system's ssh, for logins that ask (MFA, Kerberos). `config` stands in place of
    ~/.ssh/config. Times in seconds.
    """

    transport: Literal["asyncssh", "openssh"] = "asyncssh"
    port: Annotated[Whole, Field(ge=1, le=65535)] | None = None
    identity: str | None = None
    config: str | None = None
    connect_timeout_s: Seconds = 15.0
    keepalive_s: Seconds = 5.0
    keepalive_count: Positive = 3

    def access(self, address: str, python: str | None) -> Access:
        """The way to `address`."""
        return Access(address=address, python=python or "python3", **self.model_dump())


class Ipmi(Strict):
    """What the whole machine draws, by ipmitool on it."""

    kind: Literal["ipmi"] = "ipmi"


class Redfish(Strict):
    """The same by the controller's HTTPS.

    `url` is the controller, or one chassis of it (.../redfish/v1/Chassis/1); with several nodes `{node}` in it stands
    for a node's host name. `secret` is one of the server's `secrets`, the password of `user`.
    """

    kind: Literal["redfish"]
    url: Annotated[str, Field(pattern=r"^https://[^/\s@]+(/[^\s]*)?$")]
    user: Annotated[str, Field(pattern=r"^[^:\s\x00-\x1f]+$")]
    secret: EnvName
    insecure: Flag = False  # true takes any certificate


class Server(Strict):
    """A machine, or several `nodes` that train together, as a profile or a file in profiles/server/ says it.

    `vendor` auto is found from the machine's GPUs. `training` is a choice of that group (None: by the vendor).
    `overrides` are words for this server alone, beneath those of the command line. `gpus` is a subset by index, None
    for all. `env` is not for secrets: `secrets` names variables whose values travel apart. Times in seconds; None
    takes the profile's.
    """

    address: Annotated[str, AfterValidator(_address)] = "local"
    vendor: Literal["auto", "nvidia", "amd", "cpu"] = "auto"
    training: str | None = None
    overrides: tuple[str, ...] = ()
    slot: Annotated[str, AfterValidator(_slot)] = "default"
    slots: Positive = 1
    gpus: Annotated[tuple[Index, ...] | None, BeforeValidator(gpu_list)] = None
    share_gpus: Flag = False  # true starts also where somebody else's programs are on the GPUs
    nodes: tuple[Annotated[str, AfterValidator(_address)], ...] = ()
    master_addr: Annotated[str, AfterValidator(_address)] | None = None
    master_port: Annotated[Whole, Field(ge=1024, le=65534)] = 29400
    ssh: Ssh = Ssh()
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    mounts: fields.Mounts = Field(default_factory=dict)
    files: fields.Files = Field(default_factory=dict)
    secrets: tuple[EnvName, ...] = ()
    timeout_s: Seconds | None = None
    stall_after_s: Seconds | None = None
    stop_grace_s: Pause = 10.0
    cooldown_s: Pause | None = None
    python: str | None = None
    workdir: Annotated[str, AfterValidator(_workdir)] | None = None
    node_power: Annotated[Ipmi | Redfish, Field(discriminator="kind")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _first_node(cls, values: Any) -> Any:
        """With `nodes` the address is the first of them."""
        nodes = values.get("nodes") if isinstance(values, dict) else None
        if not nodes or not isinstance(nodes, list | tuple):
            return values
        said = values.get("address", "local")
        if said not in ("local", nodes[0]):
            raise refuse(f"address {said!r} is not the first of nodes; leave the address out.", "address")
        return {**values, "address": nodes[0]}

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            fields.no_secret(name, value, "env")
        return env

    @model_validator(mode="after")
    def _places(self) -> Self:
        fields.apart({"mounts": self.mounts, "files": self.files})
        both = [name for name in self.secrets if name in self.env]
        if both:
            raise refuse(f"{both[0]} is in env and in secrets: it is one of them.", "secrets")
        return self

    @model_validator(mode="after")
    def _nodes(self) -> Self:
        if len(set(self.nodes)) < len(self.nodes):
            raise refuse("nodes names one machine twice.", "nodes")
        if len(self.nodes) > 1 and self.slots > 1:
            raise refuse(f"several nodes take one run at a time, and slots is {self.slots}: leave it out.", "slots")
        return self

    @model_validator(mode="after")
    def _controllers(self) -> Self:
        """A controller speaks of one machine, and its password travels as the others do."""
        power = self.node_power
        if not isinstance(power, Redfish):
            return self
        if power.secret not in self.secrets:
            raise refuse(f"node_power.secret {power.secret!r} is not among the server's secrets: add it.", "secrets")
        if len(self.nodes) > 1 and "{node}" not in power.url:
            raise refuse("node_power.url names one controller for several nodes: write {node} in it.", "node_power")
        return self

    def spec(self, name: str, profile: Profile) -> ServerSpec:
        """What the layers below take: `name` with the profile's times where the server has none of its own."""
        return ServerSpec(
            name=name,
            address=self.address,
            vendor=self.vendor,
            gpus=self.gpus,
            share_gpus=self.share_gpus,
            nodes=self.nodes,
            slot=self.slot,
            slots=self.slots,
            workdir=self.workdir,
            python=self.python,
            env=dict(self.env),
            mounts=dict(self.mounts),
            files=dict(self.files),
            secrets=self.secrets,
            timeout_s=self.timeout_s if self.timeout_s is not None else profile.timeout_s,
            stall_after_s=self.stall_after_s if self.stall_after_s is not None else profile.stall_after_s,
            stop_grace_s=self.stop_grace_s,
            cooldown_s=next((c for c in (self.cooldown_s, profile.cooldown_s) if c is not None), 0.0),
            access=self.ssh.access(self.address, self.python),
            node_accesses=tuple(self.ssh.access(node, self.python) for node in self.nodes),
            master_addr=self.master_addr,
            master_port=self.master_port,
            telemetry=Sampling(**profile.telemetry.model_dump()),
            node_power=None if self.node_power is None else NodePower(**self.node_power.model_dump()),
        )


class _Launcher(Strict):
    """What any launcher has: `env` are variables beneath the servers' own; null leaves out one that we would set."""

    env: dict[EnvName, EnvValue | None] = Field(default_factory=dict)

    @field_validator("env")
    @classmethod
    def _open_env(cls, env: dict[str, str | None]) -> dict[str, str | None]:
        for name, value in env.items():
            fields.no_secret(name, value or "", "env")
        return env


class ProcessLauncher(_Launcher):
    """Plain processes on the server."""

    kind: Literal["process"] = "process"


def _ulimits() -> dict[str, str | int | None]:
    """Pinned memory for collectives, and the stack that PyTorch images ask for."""
    return {"memlock": -1, "stack": 67108864}


class ContainerLauncher(_Launcher):
    """A container of docker or podman on the server, one a stage.

    `image` None is the one that `build` makes from docker/<cuda|rocm|cpu>, `base_image` and `build_args` are for
    that. `pull`: missing, always or never; `send_from` brings the image from `local` or another server of the
    profile by save and load instead. `registry_login` mine sends this user's login for the image's registry along
    for the pull, and takes it away again. `nvidia`: gpus (--gpus), cdi, none, auto. `hf_cache` is the server's
    Hugging Face cache, mounted at /data; null for none. `shm` and `memory` are sizes as the engine writes them;
    `shm` counts where `ipc` is not host. `user` None is the image's, self the server's user. `ulimits` null values
    leave one out. `infiniband` None gives /dev/infiniband where it is there. `shell` is the one in the image.
    """

    kind: Literal["container"] = "container"
    engine: Literal["auto", "docker", "podman"] = "auto"
    image: fields.Image | None = None
    base_image: fields.Image | None = None
    build_args: dict[EnvName, EnvValue] = Field(default_factory=dict)
    pull: Literal["missing", "always", "never"] = "missing"
    send_from: str | None = None
    registry_login: Literal["server", "mine"] = "server"
    nvidia: Literal["auto", "gpus", "cdi", "none"] = "auto"
    network: fields.FlagValue = "host"
    ipc: fields.FlagValue | None = "host"
    shm: fields.Size | None = "16g"
    ulimits: fields.Ulimits = Field(default_factory=_ulimits)
    user: fields.User | None = None
    memory: fields.Size | None = None
    hf_cache: fields.HomePath | None = "~/.cache/huggingface"
    workdir: fields.InnerPath | None = None
    entrypoint: tuple[fields.Text, ...] | None = None  # None keeps the image's
    shell: fields.Shell = "/bin/sh"
    init: Flag = True
    privileged: Flag = False
    read_only: Flag = False
    infiniband: Flag | None = None
    cap_add: tuple[fields.FlagValue, ...] = ()
    devices: tuple[fields.FlagValue, ...] = ()
    group_add: tuple[fields.FlagValue, ...] = ()
    security_opt: tuple[fields.FlagValue, ...] = ()
    extra: fields.Extra = ()  # further flags, before the image's name

    @field_validator("build_args")
    @classmethod
    def _no_secrets(cls, args: dict[str, str]) -> dict[str, str]:
        for name, value in args.items():
            fields.no_secret(name, value, "build_args")
        return args


Launcher = Annotated[ProcessLauncher | ContainerLauncher, Field(discriminator="kind")]


class LimitsSection(Strict):
    """What a server may send at most, in bytes and files."""

    log_by: Positive = 4 << 30
    fetch_by: Positive = 64 << 30
    fetch_files: Positive = 100_000


class TelemetrySection(Strict):
    """How servers are sampled; `hz` and `idle_s` None are 10 and 5 on GPUs, 2 and 0 without.

    `idle_s` seconds of it are taken before a run begins, `keep_by` bytes a run are kept on a server at most: what is
    older is thinned. `ekvi-cockpit telemetry` leaves a server alone `idle_end_s` after its last word, and warns of a
    sensor from `temp_alarm_c` on.
    """

    hz: Annotated[Real, Field(ge=0.01, le=100)] | None = None
    idle_s: Annotated[Real, Field(ge=0, le=3600)] | None = None
    keep_by: Annotated[Whole, Field(ge=1 << 20)] = 256 << 20
    idle_end_s: Seconds = 60.0
    temp_alarm_c: Annotated[Real, Field(gt=0)] | None = None


class Theme(Strict):
    """The colours of screens and reports: the name of a file in themes/."""

    name: Annotated[str, Field(min_length=1)] = "nord"


class Pricing(Strict):
    """What a GPU's hour costs in US dollars; None is unknown."""

    name: str = "none"
    usd_per_gpu_hour: Annotated[Real, Field(gt=0)] | None = None


Stage = Literal["all", "data", "calibrate", "train", "wrap", "purge"]


class Profile(RunConfig):
    """What to run on which servers.

    `repeats` None is 5 for a duel, else 1. `timeout_s`, `stall_after_s` and `cooldown_s` hold for the servers that
    do not say their own; None is no limit, and no cool-down. `require_all` refuses the group where one server cannot
    start. `calibrate` measures the server's own rates before each training, in the same run. `fetch` are patterns of
    the files that come home; what a training goes on from (checkpoints) comes only where one beside `**` names it.
    `data_from` names the server, or local, whose prepared data is copied to all others bit by bit.
    """

    description: str = ""
    servers: dict[ServerName, Server] = Field(default_factory=dict)
    repeats: Positive | None = None
    stage: Stage = "all"
    launcher: Launcher = ProcessLauncher()
    theme: Theme = Theme()
    pricing: Pricing = Pricing()
    timeout_s: Seconds | None = None
    stall_after_s: Seconds | None = None
    cooldown_s: Pause | None = None
    require_all: Flag = False
    calibrate: Flag = False
    fetch: tuple[str, ...] = ("**",)
    data_from: Annotated[str, AfterValidator(_server_name)] | None = None
    limits: LimitsSection = LimitsSection()
    telemetry: TelemetrySection = TelemetrySection()

    def run_config(self) -> RunConfig:
        """The part that a runner gets."""
        return RunConfig(model=self.model, data=self.data, training=self.training, runner=self.runner)


class ServersOnly(BaseModel):
    """The servers of a document whose other parts are judged later."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    servers: dict[ServerName, Server] = {}
