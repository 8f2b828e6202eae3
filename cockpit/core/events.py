"""Events: what a run's bytes mean. One line of `events.jsonl` each.

As JSON (fixed by the design): ``{"seq","t","t_recv","run","type", ...}``. `t` is the server's wall clock in
seconds since the epoch or None, `t_recv` the cockpit's. Unknown is None, never 0. An event made from a line of
`stdout.log` carries that line's byte `offset`; one made from the agent's state file carries `agent_seq`. Where
several nodes train together, one made from a line of another node than the first carries `node`; its offset counts
in that node's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Self


class State(StrEnum):
    """States of a run (fixed by the design)."""

    PLANNED = "PLANNED"
    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    STALLED = "STALLED"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to a run in this state, as far as is known."""
        return self in _ENDED

    @property
    def final(self) -> bool:
        """Whether the state stays: LOST does not, since a server may come back and know better."""
        return self in _ENDED and self is not State.LOST

    @property
    def failed(self) -> bool:
        """Whether a run ended in this state without having done its work."""
        return self in _ENDED and self is not State.SUCCEEDED


_ENDED = frozenset(
    {
        State.SUCCEEDED,
        State.FAILED,
        State.CANCELLED,
        State.TIMEOUT,
        State.STALLED,
        State.NODE_FAIL,
        State.PREEMPTED,
        State.LOST,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What every event carries. `seq` counts per run from 0; -1 until the journal has given it one."""

    type: ClassVar[str]
    run: str = ""
    seq: int = -1
    t: float | None = None
    t_recv: float | None = None
    offset: int | None = None
    agent_seq: int | None = None
    node: int = 0

    def stamped(self, *, run: str, seq: int, t_recv: float | None) -> Self:
        """The same event as the journal writes it."""
        return replace(self, run=run, seq=seq, t_recv=self.t_recv if self.t_recv is not None else t_recv)

    def to_json(self) -> dict[str, Any]:
        """A JSON object in the design's key order; `node`, `offset` and `agent_seq` only where they say something."""
        out: dict[str, Any] = {
            "seq": self.seq,
            "t": self.t,
            "t_recv": self.t_recv,
            "run": self.run,
            "type": self.type,
        }
        out.update(self._body())
        if self.node:
            out["node"] = self.node
        if self.offset is not None:
            out["offset"] = self.offset
        if self.agent_seq is not None:
            out["agent_seq"] = self.agent_seq
        return out

    def _body(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration(_Base):
    """One training iteration. `tokens` and `samples` are of that step over all ranks; `step_s` in seconds."""

    type: ClassVar[str] = "iteration"
    step: int
    total: int | None = None
    loss: float | None = None
    step_s: float | None = None
    tokens: int | None = None
    samples: int | None = None
    lr: float | None = None
    grad_norm: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def _body(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "total": self.total,
            "loss": self.loss,
            "step_s": self.step_s,
            "tokens": self.tokens,
            "samples": self.samples,
            "lr": self.lr,
            "grad_norm": self.grad_norm,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(_Base):
    """A stage began or ended. `status` is "start", "done", "skipped" or "failed"."""

    type: ClassVar[str] = "stage"
    stage: str
    status: str
    message: str | None = None

    def _body(self) -> dict[str, Any]:
        return {"stage": self.stage, "status": self.status, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange(_Base):
    """A run changed its state.

    `data` is what the agent adds at an end: `tail` (the last lines of output), `wchan` (what each process waited in),
    `spool_by` and `dropped_by` (bytes kept and not kept); None elsewhere.
    """

    type: ClassVar[str] = "state"
    state: State
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    stage: str | None = None
    data: Mapping[str, Any] | None = None

    def _body(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "state": self.state.value,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stage": self.stage,
        }
        return out if self.data is None else {**out, "data": dict(self.data)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact(_Base):
    """A file that a run made, relative to its output folder."""

    type: ClassVar[str] = "artifact"
    path: str
    bytes: int | None = None
    sha256: str | None = None

    def _body(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic(_Base):
    """Something to know about a run. `code` is stable ("provenance", "arguments", "result", "disk_full"...)."""

    type: ClassVar[str] = "diagnostic"
    level: str
    code: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def _body(self) -> dict[str, Any]:
        return {"level": self.level, "code": self.code, "message": self.message, "data": dict(self.data)}


Event = Iteration | Stage | StateChange | Artifact | Diagnostic

_HEAD = ("run", "seq", "t", "t_recv", "offset", "agent_seq", "node")


def from_json(obj: Mapping[str, Any]) -> Event:
    """The event that `obj` stands for.

    Raises ValueError on an unknown type or state and KeyError on a missing field; unknown fields are dropped,
    so that a journal of a later minor version still reads.
    """
    head: dict[str, Any] = {k: obj[k] for k in _HEAD if k in obj}
    kind = obj["type"]
    if kind == "iteration":
        return Iteration(
            step=obj["step"],
            total=obj.get("total"),
            loss=obj.get("loss"),
            step_s=obj.get("step_s"),
            tokens=obj.get("tokens"),
            samples=obj.get("samples"),
            lr=obj.get("lr"),
            grad_norm=obj.get("grad_norm"),
            extra=obj.get("extra") or {},
            **head,
        )
    if kind == "stage":
        return Stage(stage=obj["stage"], status=obj["status"], message=obj.get("message"), **head)
    if kind == "state":
        return StateChange(
            state=State(obj["state"]),
            reason=obj.get("reason"),
            exit_code=obj.get("exit_code"),
            signal=obj.get("signal"),
            stage=obj.get("stage"),
            data=obj.get("data"),
            **head,
        )
    if kind == "artifact":
        return Artifact(path=obj["path"], bytes=obj.get("bytes"), sha256=obj.get("sha256"), **head)
    if kind == "diagnostic":
        return Diagnostic(
            level=obj["level"], code=obj["code"], message=obj["message"], data=obj.get("data") or {}, **head
        )
    raise ValueError(f"unknown event type {kind!r}")
