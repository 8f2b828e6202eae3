"""A container engine, docker or podman, asked through its command line. Every call is bounded in time."""

from __future__ import annotations

import calendar
import json
import re
import subprocess
import sys
import time
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from . import queuefile
from .base import AgentError
from .queuefile import Queue, RunSpec, Stage

LOOK_S = 30.0
_ABSENT = re.compile(r"no such (container|object)", re.IGNORECASE)
_HOPELESS = re.compile(r"permission denied|not permitted", re.IGNORECASE)
_TROUBLE = re.compile(
    r"cannot connect|error during connect|connection (reset|refused)|\bEOF\b|broken pipe", re.IGNORECASE
)
_NOISE = re.compile(r"Run '|See '|WARNING|Error: failed to start containers|time=")
_PREFIX = re.compile(r"^(docker: |Error: |Error response from daemon: )+")


# What runc, crun and their engines say of a limit that they may not raise, by number or by name.
_RLIMIT = re.compile(r"(?:setting rlimit type (\d+)|RLIMIT_([A-Z]+))", re.IGNORECASE)
_LIMITS = {0: "cpu", 1: "fsize", 2: "data", 3: "stack", 4: "core", 5: "rss", 6: "nproc", 7: "nofile", 8: "memlock"}


def _limit(words: str) -> Optional[str]:
    """The ulimit that an engine's complaint is about, or None."""
    found = _RLIMIT.search(words)
    if found is None or not _HOPELESS.search(words):
        return None
    return found.group(2).lower() if found.group(2) else _LIMITS.get(int(found.group(1)))


class EngineAway(Exception):
    """The engine gave no answer to the point; `hopeless` where asking again will not help."""

    def __init__(self, why: str, hopeless: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless


class Answer(NamedTuple):
    """How a call ended."""

    rc: int
    out: str
    err: str

    @property
    def engine_failed(self) -> bool:
        """Whether it was the engine that broke off, and not the wish that was wrong."""
        return self.rc != 0 and bool(_TROUBLE.search(self.err))

    @property
    def why(self) -> str:
        """The engine's complaint in one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        told = [line for line in lines if not _NOISE.match(line)] or lines
        said = _PREFIX.sub("", told[-1]).rstrip(".") if told else "exit status %d" % self.rc
        limit = _limit(self.err)
        if limit is None:
            return said
        return "it may not set the limit %s. Leave that out: launcher.ulimits.%s=null. It says: %s" % (
            limit,
            limit,
            said,
        )


class Seen(NamedTuple):
    """A container as `inspect` shows it. Times are seconds since the epoch, None where it did not happen."""

    id: str
    status: str
    labels: Dict[str, str]
    image_id: Optional[str]
    pid: Optional[int]
    exit_code: Optional[int]
    oom_killed: bool
    error: str
    started: Optional[float]
    finished: Optional[float]
    memory_by: Optional[int]


class Engine:
    """One engine as a stage calls it: `words` come before every command."""

    def __init__(self, words: Sequence[str], env: Dict[str, str]) -> None:
        self.words = tuple(words)
        self.env = env

    def call(self, *words: str, timeout: float = LOOK_S) -> Answer:
        """Run one command to its end. Raises EngineAway where it is not there or does not end in time."""
        try:
            done = subprocess.run(
                [*self.words, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineAway("%s did not answer within %g s" % (self.words[0], timeout)) from error
        except (OSError, ValueError) as error:
            why = "%s cannot be started: %s" % (self.words[0], getattr(error, "strerror", None) or error)
            raise EngineAway(why, hopeless=True) from error
        return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Start one command and do not wait for it; its words are dropped. Raises EngineAway."""
        null = subprocess.DEVNULL
        try:
            return subprocess.Popen([*self.words, *words], stdin=null, stdout=null, stderr=null, env=self.env)
        except OSError as error:
            raise EngineAway("%s cannot be started: %s" % (self.words[0], error.strerror), hopeless=True) from error

    def look(self, name: str) -> Optional[Seen]:
        """The container of that name or id, or None where there is none. Raises EngineAway."""
        answer = self.call("container", "inspect", "--format", "{{json .}}", name)
        if answer.rc != 0:
            if _ABSENT.search(answer.err):
                return None
            raise EngineAway(answer.why, hopeless=bool(_HOPELESS.search(answer.err)))
        try:
            said = json.loads(answer.out)
            return _seen(said[0] if isinstance(said, list) else said)  # podman 4 prints a list for `json .`
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
            raise EngineAway("%s says what is no container: %s" % (self.words[0], error)) from error

    def ids(self, labels: Dict[str, str], running: bool = False) -> Tuple[str, ...]:
        """The containers that carry all of these labels. Raises EngineAway."""
        filters = [word for key, value in labels.items() for word in ("--filter", "label=%s=%s" % (key, value))]
        answer = self.call("ps", "-q" if running else "-aq", "--no-trunc", *filters)
        if answer.rc != 0:
            raise EngineAway(answer.why, hopeless=bool(_HOPELESS.search(answer.err)))
        return tuple(answer.out.split())

    def remove(self, name: str, timeout: float = 60.0) -> Answer:
        """Remove a container by force, with the volumes that were made for it alone. Raises EngineAway."""
        return self.call("rm", "-f", "-v", name, timeout=timeout)


def of_stage(queue: Queue, spec: RunSpec, stage: Stage, base: Dict[str, str]) -> Engine:
    """The engine of a stage. What it starts carries none of our marks, by which a run's processes are ended."""
    env = queue.environment(spec, stage, base)
    words = [queue.expand(word, spec.run) for word in stage.engine]
    return Engine(words, {key: value for key, value in env.items() if not key.startswith("EKVI_")})


def labels(queue: Queue, spec: Optional[RunSpec] = None) -> Dict[str, str]:
    """By which a container is known as this queue's, or as one run's of it."""
    own = {"ekvi.agent": queue.path}
    if spec is not None:
        own["ekvi.run"] = spec.run
    return own


def called(words: Optional[Sequence[str]]) -> Optional[Tuple[Queue, RunSpec, Stage, int]]:
    """The stage in a container that a command's words `Q RUN INDEX` name; None where that was complained of.

    None stands for the words of this process.
    """
    try:
        path, run, index = sys.argv[1:] if words is None else words
        queue = queuefile.load(path)
        return (queue, *_stage_at(queue, run, index), int(index))
    except (AgentError, ValueError) as error:
        sys.stderr.write("%s\n" % error)
        return None


def _stage_at(queue: Queue, run: str, index: str) -> Tuple[RunSpec, Stage]:
    for spec in queue.runs:
        if spec.run == run and index.isdigit() and int(index) < len(spec.stages):
            stage = spec.stages[int(index)]
            if stage.container is not None:
                return spec, stage
    raise AgentError("%s has no stage %s of run %s in a container." % (queue.path, index, run))


def _seen(obj: Dict[str, Any]) -> Seen:
    state = obj["State"]
    return Seen(
        id=str(obj["Id"]),
        status=str(state["Status"]).lower(),
        labels=dict(obj["Config"].get("Labels") or {}),
        image_id=obj.get("Image"),
        pid=state.get("Pid") or None,
        exit_code=state.get("ExitCode"),
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        started=_epoch(state.get("StartedAt")),
        finished=_epoch(state.get("FinishedAt")),
        memory_by=(obj.get("HostConfig") or {}).get("Memory") or None,
    )


_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?\s*(Z|[+-]\d\d:?\d\d)?")


def _epoch(text: Any) -> Optional[float]:
    """Seconds since the epoch of an RFC 3339 time; None for the year 1, which stands for never."""
    match = _STAMP.match(str(text))
    if match is None or match.group(1) < "1970":
        return None
    day, clock, fraction, zone = match.groups()
    whole = calendar.timegm(time.strptime(day + " " + clock, "%Y-%m-%d %H:%M:%S"))
    if zone and zone != "Z":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        whole -= (minutes if zone[0] == "+" else -minutes) * 60
    return whole + float(fraction or 0)
