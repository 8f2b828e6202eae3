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
DEFAULT_SPOOL_BY = 1 << 30


class Stage(NamedTuple):
    """One process of a run. Times in seconds; None is no limit."""

    stage: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    cwd: Optional[str]
    timeout_s: Optional[float]
    stall_after_s: Optional[float]
    stop_grace_s: float


class RunSpec(NamedTuple):
    """One run: its stages in order."""

    run: str
    server: str
    env: Dict[str, str]
    stages: Tuple[Stage, ...]


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
    hz: float
    spool_max_by: int
    runs: Tuple[RunSpec, ...]

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

    def expand(self, text: str, run: str) -> str:
        """`text` with the five placeholders replaced, and nothing else."""
        values = {
            "RUN_DIR": self.run_dir(run),
            "OUT_DIR": os.path.join(self.run_dir(run), "out"),
            "CODE_DIR": self.code_dir,
            "CACHE_DIR": os.path.join(self.work, "cache"),
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


_PLACEHOLDER = re.compile(r"\$\{(RUN_DIR|OUT_DIR|CODE_DIR|CACHE_DIR|WORK_DIR)\}")


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
    telemetry = read.get(obj, "telemetry", dict, {})
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
        hz=read.number(telemetry, "hz", 2.0, low=0.01),
        spool_max_by=int(read.number(obj, "spool_max_by", DEFAULT_SPOOL_BY, low=4096)),
        runs=runs,
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
        return RunSpec(self.name(obj, "run", at), str(obj.get("server", "")), self.env(obj, at), stages)

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
        )


_WORDS: Dict[type, str] = {str: "text", list: "a list", dict: "an object"}
