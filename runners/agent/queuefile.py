"""queue.json: what the agent is to do. Read strictly, so that a bad queue starts nothing."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import QUEUE_SCHEMA
from .base import AgentError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=-]{0,199}")
_HEX = re.compile(r"[0-9a-f]{16}")
_TOKEN = re.compile(r"[0-9a-fA-F]{16,}")
# What the agent keeps in a run's folder: no link may take such a name.
_OWN = re.compile(
    r"config\.json|states\.jsonl|telemetry\.(\d+\.)?jsonl(\.tmp)?|spool\.log|out"
    r"|(shim|pipe|container)\.\d+(\.json)?(\.tmp)?"
)
DEFAULT_SPOOL_BY = 1 << 30
KEEP_BY = 256 << 20
VENDORS = ("nvidia", "amd", "cpu")


class Container(NamedTuple):
    """The container that a stage runs in: `engine` is what its argv calls, `name` what the container is called.

    `folders` of the server are made where they are missing, since an engine does not mount what is not there.
    """

    engine: str
    name: str
    folders: Tuple[str, ...] = ()


class Peers(NamedTuple):
    """The nodes that work equal queues together; this one has `rank`, and rank 0 leads at `address`:`port`."""

    rank: int
    names: Tuple[str, ...]
    address: str
    port: int
    token: str
    silence_s: float


class NodePower(NamedTuple):
    """The sensor of the whole machine: `kind` ipmi or redfish; `secret` names the file of its password."""

    kind: str
    url: str = ""
    user: str = ""
    secret: str = ""
    insecure: bool = False


class Telemetry(NamedTuple):
    """How the machine is sampled: `hz` a second, for `idle_s` before a run begins; `keep_by` bytes of it a run."""

    hz: float = 2.0
    vendor: str = "cpu"
    idle_s: float = 0.0
    keep_by: int = KEEP_BY
    node_power: Optional[NodePower] = None


class Stage(NamedTuple):
    """One process or container of a run. Times in seconds; None is no limit."""

    stage: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: Optional[str]
    timeout_s: Optional[float]
    stall_after_s: Optional[float]
    stop_grace_s: float
    container: Optional[Container] = None

    @property
    def engine(self) -> Tuple[str, ...]:
        """The words of argv before `create`: how the container's engine is called."""
        return self.argv[: self.argv.index("create")]


class RunSpec(NamedTuple):
    """One run: its stages in order; `gpus` None is all, `links` are {path in RUN_DIR: what it points to}."""

    run: str
    server: str
    env: Dict[str, str]
    stages: Tuple[Stage, ...]
    gpus: Optional[Tuple[int, ...]] = None
    links: Dict[str, str] = {}  # noqa: RUF012 (never changed)

    @property
    def contained(self) -> bool:
        """Whether a stage of it runs in a container."""
        return any(stage.container is not None for stage in self.stages)


class Queue(NamedTuple):
    """One queue of one group; `path` is its folder Q, `work` the server's WORK."""

    path: str
    work: str
    group: str
    key: str
    slot: str
    slots: int
    cooldown_s: float
    code: Optional[str]
    telemetry: Telemetry
    spool_max_by: int
    runs: Tuple[RunSpec, ...]
    files: Tuple[str, ...] = ()
    peers: Optional[Peers] = None

    def file(self, *parts: str) -> str:
        """A path in the queue's folder."""
        return os.path.join(self.path, *parts)

    def run_dir(self, run: str) -> str:
        """The folder of one run."""
        return os.path.join(self.path, "runs", run)

    @property
    def code_dir(self) -> Optional[str]:
        """The folder that holds `runners`, where the queue brings code."""
        return os.path.join(self.work, "code", self.code) if self.code else None

    @property
    def secrets_dir(self) -> str:
        """The folder of the secrets, gone when the queue is done."""
        return os.path.join(self.path, "secrets")

    def expand(self, text: str, run: str) -> str:
        """`text` with the seven placeholders replaced, and nothing else."""
        values = {
            "RUN_DIR": self.run_dir(run),
            "OUT_DIR": os.path.join(self.run_dir(run), "out"),
            "CODE_DIR": self.code_dir,
            "CACHE_DIR": os.path.join(self.work, "cache"),
            "FILES_DIR": os.path.join(self.work, "files"),
            "SECRETS_DIR": self.secrets_dir,
            "WORK_DIR": self.work,
        }
        return _PLACEHOLDER.sub(lambda m: values[m.group(1)] or m.group(0), text)

    def environment(self, run: RunSpec, stage: Stage, base: Dict[str, str]) -> Dict[str, str]:
        """What a stage's process gets: `base`, then the run's, then the stage's, then what every stage has."""
        env = dict(base)
        for more in (run.env, stage.env):
            env.update({key: self.expand(value, run.run) for key, value in more.items()})
        env.update(
            EKVI_OUT=os.path.join(self.run_dir(run.run), "out"),
            EKVI_CACHE=os.path.join(self.work, "cache"),
            EKVI_RUN=run.run,
            EKVI_STAGE=stage.stage,
            PYTHONUNBUFFERED="1",
        )
        return env


_PLACEHOLDER = re.compile(r"\$\{(RUN_DIR|OUT_DIR|CODE_DIR|CACHE_DIR|FILES_DIR|SECRETS_DIR|WORK_DIR)\}")


def folder(path: str) -> str:
    """The real path of a queue's folder. Raises AgentError where it is none."""
    real = os.path.realpath(path)
    if not os.path.isfile(os.path.join(real, "queue.json")):
        raise AgentError("%s is no queue: it has no queue.json." % path)
    if os.path.basename(os.path.dirname(real)) != "groups":
        raise AgentError("%s is no queue: it does not lie in the folder `groups` of a work folder." % path)
    return real


def load(path: str) -> Queue:
    """The queue in the folder `path`. Raises AgentError with one sentence that says what is wrong where."""
    real = folder(path)
    name = os.path.join(real, "queue.json")
    try:
        with open(name, "rb") as f:
            obj = json.loads(f.read())
    except OSError as error:
        raise AgentError("%s cannot be read: %s." % (name, error.strerror)) from error
    except ValueError as error:
        raise AgentError("%s is not JSON: %s." % (name, error)) from error
    read = _Reader(name)
    if not isinstance(obj, dict) or obj.get("schema") != QUEUE_SCHEMA:
        said = obj.get("schema") if isinstance(obj, dict) else None
        raise AgentError("%s has schema %r; this agent knows %s." % (name, said, QUEUE_SCHEMA))
    runs = tuple(read.run(run, "runs[%d]" % i) for i, run in enumerate(read.get(obj, "runs", list)))
    queue = Queue(
        path=real,
        work=os.path.dirname(os.path.dirname(real)),
        group=read.name(obj, "group"),
        key=read.name(obj, "key"),
        slot=read.name(obj, "slot"),
        slots=int(read.number(obj, "slots", 1, low=1)),
        cooldown_s=read.number(obj, "cooldown_s", 0.0),
        code=read.get(obj, "code", str, None),
        telemetry=read.telemetry(read.get(obj, "telemetry", dict, {})),
        spool_max_by=int(read.number(obj, "spool_max_by", DEFAULT_SPOOL_BY, low=4096)),
        runs=runs,
        files=read.files(obj),
        peers=read.peers(obj),
    )
    names = [run.run for run in queue.runs]
    if len(set(names)) < len(names):
        read.fail("runs", "name a run twice")
    if queue.code is not None and not _HEX.fullmatch(queue.code):
        read.fail("code", "is %r; it must be 16 hexadecimal digits" % queue.code)
    if queue.code is None and "${CODE_DIR}" in json.dumps(obj["runs"]):
        read.fail("runs", "use ${CODE_DIR}, but `code` is null")
    return queue


_MISSING: Any = object()


class _Reader:
    """Takes typed values out of queue.json; the sentence of an error names the place."""

    def __init__(self, name: str) -> None:
        self.where = name

    def fail(self, key: str, what: str) -> Any:
        raise AgentError("%s: %s %s." % (self.where, key, what))

    def get(self, obj: Dict[str, Any], key: str, kind: type, default: Any = _MISSING, at: str = "") -> Any:
        value = obj.get(key, default)
        if value is _MISSING:
            self.fail(at + key, "is missing")
        if value is None and default is None:
            return None
        if not isinstance(value, kind):
            self.fail(at + key, "must be %s, it is %s" % (_WORDS[kind], json.dumps(value)[:80]))
        return value

    def name(self, obj: Dict[str, Any], key: str, at: str = "") -> str:
        value: str = self.get(obj, key, str, at=at)
        if not _NAME.fullmatch(value):
            self.fail(at + key, "is %r; letters, digits and ._@+=- may stand in a name" % value[:80])
        return value

    def number(self, obj: Dict[str, Any], key: str, default: Optional[float], low: float = 0.0, at: str = "") -> Any:
        value = obj.get(key, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < float("inf"):
            self.fail(at + key, "must be a number from %g on, it is %s" % (low, json.dumps(value)[:80]))
        return value

    def env(self, obj: Dict[str, Any], at: str) -> Dict[str, str]:
        env: Dict[str, str] = self.get(obj, "env", dict, {}, at)
        for key, value in env.items():
            if not isinstance(value, str) or not key or "=" in key or "\0" in key + value:
                self.fail("%senv.%s" % (at, key), "must be text without NUL, under a name without `=`")
        return env

    def run(self, obj: Any, at: str) -> RunSpec:
        if not isinstance(obj, dict):
            self.fail(at, "must be an object")
        at += "."
        stages = tuple(
            self.stage(stage, "%sstages[%d]" % (at, i))
            for i, stage in enumerate(self.get(obj, "stages", list, at=at))
        )
        if not stages:
            self.fail(at + "stages", "must not be empty")
        if len({stage.stage for stage in stages}) < len(stages):
            self.fail(at + "stages", "name a stage twice")
        return RunSpec(
            run=self.name(obj, "run", at),
            server=str(obj.get("server", "")),
            env=self.env(obj, at),
            stages=stages,
            gpus=self.gpus(obj, at),
            links=self.links(obj, at),
        )

    def gpus(self, obj: Dict[str, Any], at: str) -> Optional[Tuple[int, ...]]:
        gpus = self.get(obj, "gpus", list, None, at)
        if gpus is None:
            return None
        if not all(_is_int(gpu, 0) for gpu in gpus) or len(set(gpus)) < len(gpus):
            self.fail(at + "gpus", "must be null or numbers from 0 on, each once")
        return tuple(gpus)

    def links(self, obj: Dict[str, Any], at: str) -> Dict[str, str]:
        links: Dict[str, str] = self.get(obj, "links", dict, {}, at)
        for path, target in links.items():
            parts = path.split("/")
            if not all(parts) or {".", ".."} & set(parts) or "\0" in path:
                self.fail(at + "links", "name %r, which is no plain path below the run's folder" % path[:80])
            if _OWN.fullmatch(parts[0]):
                self.fail(at + "links", "name %r, which is the agent's own" % path[:80])
            if not isinstance(target, str) or not target or "\0" in target:
                self.fail(at + "links", "%r must point to a path" % path[:80])
        return links

    def files(self, obj: Dict[str, Any]) -> Tuple[str, ...]:
        files = self.get(obj, "files", list, [])
        for sha16 in files:
            if not isinstance(sha16, str) or not _HEX.fullmatch(sha16):
                self.fail("files", "hold %s; each must be 16 hexadecimal digits" % json.dumps(sha16)[:80])
        return tuple(files)

    def telemetry(self, obj: Dict[str, Any]) -> Telemetry:
        at = "telemetry."
        vendor: str = self.get(obj, "vendor", str, "cpu", at)
        if vendor not in VENDORS:
            self.fail(at + "vendor", "is %r; it must be one of %s" % (vendor[:80], ", ".join(VENDORS)))
        return Telemetry(
            hz=self.number(obj, "hz", 2.0, low=0.01, at=at),
            vendor=vendor,
            idle_s=self.number(obj, "idle_s", 0.0, at=at),
            keep_by=int(self.number(obj, "keep_by", KEEP_BY, low=65536, at=at)),
            node_power=self.node_power(obj, at),
        )

    def node_power(self, obj: Dict[str, Any], at: str) -> Optional[NodePower]:
        found = self.get(obj, "node_power", dict, None, at)
        if found is None:
            return None
        at += "node_power."
        kind = self.get(found, "kind", str, at=at)
        if kind == "ipmi":
            return NodePower(kind)
        if kind != "redfish":
            self.fail(at + "kind", "is %r; it must be ipmi or redfish" % kind[:80])
        url: str = self.get(found, "url", str, at=at)
        if not url.startswith("https://") or not url[8:].partition("/")[0]:
            self.fail(at + "url", "is %r; it must begin with https:// and a host" % url[:80])
        return NodePower(
            kind,
            url,
            self.get(found, "user", str, at=at),
            self.name(found, "secret", at),
            self.get(found, "insecure", bool, False, at),
        )

    def peers(self, obj: Dict[str, Any]) -> Optional[Peers]:
        found = self.get(obj, "peers", dict, None)
        if found is None:
            return None
        at = "peers."
        names = self.get(found, "names", list, at=at)
        if len(names) < 2 or not all(isinstance(name, str) and name for name in names):
            self.fail(at + "names", "must be the names of two nodes or more")
        if len(set(names)) < len(names):
            self.fail(at + "names", "hold a node twice")
        for key, low, high in (("rank", 0, len(names) - 1), ("port", 1, 65535)):
            if not _is_int(found.get(key), low, high):
                self.fail(at + key, "must be a whole number in %d..%d" % (low, high))
        address = self.get(found, "address", str, at=at)
        if not address:
            self.fail(at + "address", "must not be empty")
        token = self.get(found, "token", str, at=at)
        if not _TOKEN.fullmatch(token):
            self.fail(at + "token", "must be 16 hexadecimal digits or more")
        silence_s = self.number(found, "silence_s", 30.0, low=0.1, at=at)
        return Peers(found["rank"], tuple(names), address, found["port"], token, silence_s)

    def container(self, obj: Dict[str, Any], at: str) -> Optional[Container]:
        found = self.get(obj, "container", dict, None, at)
        if found is None:
            return None
        at += "container."
        engine = self.get(found, "engine", str, at=at)
        if "create" not in obj["argv"][1:]:
            self.fail(at + "engine", "%r has no `create` in the stage's argv" % engine[:80])
        folders = self.get(found, "folders", list, [], at)
        if not all(isinstance(folder, str) and "\0" not in folder for folder in folders):
            self.fail(at + "folders", "must be a list of paths")
        return Container(engine, self.name(found, "name", at), tuple(folders))

    def stage(self, obj: Any, at: str) -> Stage:
        if not isinstance(obj, dict):
            self.fail(at, "must be an object")
        at += "."
        argv = self.get(obj, "argv", list, at=at)
        if not argv or not all(isinstance(a, str) and "\0" not in a for a in argv) or not argv[0]:
            self.fail(at + "argv", "must be a list of texts, the program first")
        return Stage(
            stage=self.name(obj, "stage", at),
            argv=tuple(argv),
            env=self.env(obj, at),
            cwd=self.get(obj, "cwd", str, None, at),
            timeout_s=self.number(obj, "timeout_s", None, at=at),
            stall_after_s=self.number(obj, "stall_after_s", None, at=at),
            stop_grace_s=self.number(obj, "stop_grace_s", 10.0, at=at),
            container=self.container(obj, at),
        )


def _is_int(value: Any, low: int, high: int = 1 << 30) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_WORDS: Dict[type, str] = {str: "text", list: "a list", dict: "an object", bool: "true or false"}
