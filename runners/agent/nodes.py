"""What the agents of one server's nodes agree on: when a stage begins, who failed first, and when a run has ended.

Node 0 leads. Each follower tells of every run how far it is (`reached`: the last stage that it is ready for or has
begun), how it ended, and what it waits for. The leader tells which run is called, the last stage that may begin
(`go`), the verdict on a run that failed (`end`), and whether it is over (`done`). All of this can be said again and
again, so an agent that was killed and started anew goes on from what its own files say.

Slots cannot dead-lock. A follower takes its slot only when the leader, which has its own, calls for it; and a leader
whose call is not answered in HOLD_S gives its slot back and takes the call back, to try again after a pause whose
length is left to chance.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, Callable, NamedTuple, Sequence

from . import states
from .files import Log, tail_lines
from .peers import Heard, Wire
from .queuefile import Queue
from .runwork import DONE, HELD, LIVE, WAITING, RunWork

HOLD_S = 5.0
PAUSE_S = (0.5, 5.0)
SETTLE_S = 1.0  # after the first word of a failure: an earlier one of another node may be under way
LINGER = 20  # silences: how long a follower that is done waits for its leader to hear of it
REASON = 2000  # characters of a reason that travel


class Verdict(NamedTuple):
    """How a run ends on all nodes: `rank` is whose failure came first."""

    rank: int
    state: str
    reason: str
    rec: dict[str, Any]


class Nodes:
    """One node's part in it. All calls come from the agent's own thread."""

    def __init__(self, queue: Queue, log: Log, wake: Callable[[], None]) -> None:
        assert queue.peers is not None
        self.peers = queue.peers
        self.leads = self.peers.rank == 0
        self.holding: str | None = None  # the run that this node has a slot for, cooled down
        self.waits_for_slot: str | None = None  # a follower's: who holds it
        self._wire = Wire(self.peers, queue.group + "/" + queue.key, log, wake)
        self._log = log
        self._runs: Sequence[RunWork] = ()
        self._began = self._done_at = time.monotonic()
        self._call: tuple[str, str] | None = None  # the leader's: the run that is called, and which call it is
        self._call_since = 0.0
        self._next_call = 0.0
        self._go: dict[str, int] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._first_word: dict[str, float] = {}
        self._fate_at: dict[str, float] = {}
        self._quiet: dict[str, float] = {}
        self._leaderless = False  # a follower's: its leader was silent for too long

    def start(self, runs: Sequence[RunWork]) -> None:
        """Begin to talk; `runs` are this node's own."""
        self._runs = runs
        for run in runs:
            run.nodes = self
        self._wire.start()

    def close(self) -> None:
        """Say the last words and end."""
        self._wire.close()

    def step(self, now: float) -> None:
        """Look at what was heard and tell what is new; stops runs that another node ended."""
        heard = {rank: self._wire.heard(rank) for rank in self._others}
        for run in self._runs:
            if run.phase != DONE:
                self._done_at = now
                (self._lead if self.leads else self._obey)(run, heard, now)
        told = {r.spec.run: self._told_by_leader(r) if self.leads else self._told(r, heard) for r in self._runs}
        self._wire.tell({name: entry for name, entry in told.items() if entry})
        self._tell_quiet(heard, now)

    def may_leave(self, now: float) -> bool:
        """Whether everybody who still listens knows how all runs ended here."""
        mine = [run.spec.run for run in self._runs]
        quiet_s = now - self._done_at
        for rank in self._others if self.leads else (0,):
            heard = self._wire.heard(rank)
            if not heard.connected and self._leaderless:
                continue
            if heard.at is None and (self.leads or not any(run.begun for run in self._runs)):
                continue  # it never came
            patience = min(10.0, self.peers.silence_s) if self.leads else LINGER * self.peers.silence_s
            if heard.at is None:
                patience = self.peers.silence_s
            if not all(_entry(heard, run).get("done") for run in mine) and quiet_s < patience:
                return False
        return True

    # --- what the agent asks when it gives turns

    def next_run(self, waiting: Sequence[RunWork], now: float) -> RunWork | None:
        """The run that this node is to take a slot for, or None: not now."""
        if self.leads:
            return waiting[0] if waiting and now >= self._next_call else None
        lead = self._wire.heard(0)
        found = next((run for run in waiting if lead.connected and _entry(lead, run.spec.run).get("call")), None)
        if found is None:
            self.waits_for_slot = None
        return found

    def call(self, run: RunWork, now: float) -> None:
        """The leader has its slot for `run`: the others are to take theirs."""
        if self._call is None or self._call[0] != run.spec.run:
            self._call, self._call_since = (run.spec.run, os.urandom(8).hex()), now

    def hold(self, run: RunWork, now: float) -> None:
        """This node has its slot for `run`, and it has cooled down."""
        self.waits_for_slot = None
        if self.holding != run.spec.run:
            self.holding, self._call_since = run.spec.run, now

    def let_go(self) -> None:
        """This node has no slot, or no use for it."""
        self.holding = self._call = None

    def give_up(self, now: float) -> bool:
        """Whether the leader is to give its slot back, since somebody does not come; then it pauses."""
        if now - self._call_since < HOLD_S or not self._missing():
            return False
        self.let_go()
        self._next_call = now + random.uniform(*PAUSE_S)  # noqa: S311 nothing secret
        return True

    def waits_for(self) -> str:
        """What a run waits for before its turn, in words."""
        if not self.leads:
            return "waits for node %s" % self.peers.names[0] + (
                ": " + self._wire.problem if self._wire.problem else ""
            )
        if self._wire.problem:
            return "waits: %s" % self._wire.problem
        words = ["node %s%s" % (self.peers.names[rank], why) for rank, why in self._missing()]
        if not words:
            words = ["node " + self.peers.names[rank] for rank in self._others]
        return "waits for " + ", ".join(words)

    def may_start(self, run: RunWork) -> bool:
        """Whether the stage that `run` is at may begin: all nodes are ready for it."""
        go = self._go.get(run.spec.run, -1) if self.leads else _entry(self._wire.heard(0), run.spec.run).get("go", -1)
        return isinstance(go, int) and go >= run.index

    # --- what a run asks

    def quiet_s(self, run: RunWork, own_s: float) -> float:
        """Seconds since any node printed something in the stage that `run` is at; `own_s` is of this node."""
        key = _stage_key(run)
        self._quiet[key] = own_s
        now = time.monotonic()
        heard = [self._wire.heard(rank) for rank in self._others]
        return min([own_s] + [h.quiet[key] + now - h.quiet_at for h in heard if key in h.quiet])

    def verdict(
        self, run: RunWork, state: str, reason: str | None, rec: dict[str, Any]
    ) -> tuple[str, str | None, dict[str, Any]] | None:
        """How a run that has ended here ends altogether; None while that is not known.

        Followers note their own end. The leader waits for the word of all that it hears.
        """
        if not self.leads:
            return state, reason, rec
        told = self._verdicts.get(run.spec.run)
        if told is None and (state != states.SUCCEEDED or run.spec.run in self._first_word):
            return None
        now = time.monotonic()
        for rank in self._others:
            heard = self._wire.heard(rank)
            if not _entry(heard, run.spec.run).get("done") and (
                heard.connected or (run.begun and (told is None or not self._silent(heard, now)))
            ):
                return None
            if told is None and _failure(heard, run.spec.run) is not None:
                return None  # heard after this step judged
        if told is None:
            return state, reason, rec
        return told.state, told.reason, rec if told.rank == 0 else told.rec

    # --- the leader's mind

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(len(self.peers.names)) if rank != self.peers.rank]

    def _lead(self, run: RunWork, heard: dict[int, Heard], now: float) -> None:
        name = run.spec.run
        if name not in self._verdicts:
            self._judge(run, heard, now)
        told = self._verdicts.get(name)
        if told is not None:
            if told.rank != 0:
                run.stop(told.state, told.reason)
            return
        ready = [self._reached(run)] + [self._reached_by(h, name) for h in heard.values()]
        self._go[name] = max(self._go.get(name, -1), min(ready))

    def _judge(self, run: RunWork, heard: dict[int, Heard], now: float) -> None:
        """Find out who failed first: a failure tears the others along within moments."""
        own = run.fate
        found = []
        if own is not None and own["state"] != states.SUCCEEDED:
            found.append((self._since(run, own), Verdict(0, own["state"], own["reason"] or "", own["rec"])))
        for rank, h in heard.items():
            end = _failure(h, run.spec.run)
            if end is not None:
                at = end.get("at")
                at = at + h.offset if isinstance(at, (int, float)) else now
                found.append((at, Verdict(rank, end["state"], str(end.get("reason") or ""), _record(end))))
            elif run.begun and self._silent(h, now) and not _entry(h, run.spec.run).get("done"):
                reason = "was not heard for %g s" % self.peers.silence_s
                found.append((now, Verdict(rank, states.NODE_FAIL, reason, {})))
        if not found:
            return
        since = self._first_word.setdefault(run.spec.run, now)
        wanted = own is not None and own["state"] == states.CANCELLED  # by the user, who wants no guess
        if not wanted and now - since < SETTLE_S:
            return
        first = found[0][1] if wanted else min(found, key=lambda pair: pair[0])[1]
        if not wanted:
            first = first._replace(reason=self._named(first))
        self._log.say("run %s ends on all nodes: %s, %s" % (run.spec.run, first.state, first.reason))
        self._verdicts[run.spec.run] = first

    def _named(self, told: Verdict) -> str:
        """A reason that begins with the name of the node; one that was named before an agent was killed stays."""
        if told.reason.startswith(tuple("node %s: " % name for name in self.peers.names)):
            return told.reason
        return "node %s: %s" % (self.peers.names[told.rank], told.reason)

    def _since(self, run: RunWork, fate: dict[str, Any]) -> float:
        """When this node's own end began (monotonic, s): what the record says, else when it was seen first."""
        at = fate["rec"].get("mono_end")
        return self._fate_at.setdefault(run.spec.run, at if isinstance(at, (int, float)) else time.monotonic())

    def _silent(self, heard: Heard, now: float) -> bool:
        return now - max(heard.at or 0.0, self._began) > self.peers.silence_s

    def _reached(self, run: RunWork) -> int:
        if run.phase in (HELD, DONE):
            return len(run.spec.stages)
        return run.index if run.phase != WAITING or self.holding == run.spec.run else run.index - 1

    def _reached_by(self, heard: Heard, name: str) -> int:
        """How far another node is; its slot for the first stage counts only where it answers this very call."""
        entry = _entry(heard, name)
        reached = entry.get("reached", -1)
        if not isinstance(reached, int):
            return -1
        answers = self._call is not None and entry.get("call") == self._call[1]
        return reached if entry.get("begun") or answers else -1

    def _missing(self) -> list[tuple[int, str]]:
        """Nodes that do not come, and why."""
        name = self._call[0] if self._call else ""
        out = []
        for rank in self._others:
            heard = self._wire.heard(rank)
            wait = _entry(heard, name).get("wait")
            if not heard.connected:
                out.append((rank, ""))
            elif isinstance(wait, str):
                out.append((rank, ": " + wait[:REASON]))
        return out

    def _told_by_leader(self, run: RunWork) -> dict[str, Any]:
        name = run.spec.run
        told = self._verdicts.get(name)
        entry: dict[str, Any] = {}
        if run.phase == DONE:
            entry["done"] = True
        if self._call is not None and self._call[0] == name:
            entry["call"] = self._call[1]
        elif run.active and run.phase != DONE:
            entry["call"] = "begun"  # who was started anew may need its slot again for the next stage
        if self._go.get(name, -1) >= 0:
            entry["go"] = self._go[name]
        if told is not None:
            entry["end"] = {"state": told.state, "reason": told.reason[:REASON]}
        elif run.phase == DONE and run.states.state != states.SUCCEEDED:
            entry["end"] = {"state": run.states.state, "reason": (run.states.reason or "")[:REASON]}
        return entry

    # --- a follower's mind

    def _obey(self, run: RunWork, heard: dict[int, Heard], now: float) -> None:
        lead, name = heard[0], self.peers.names[0]
        entry = _entry(lead, run.spec.run)
        end = entry.get("end")
        if isinstance(end, dict):
            state = end.get("state")
            if not isinstance(state, str) or state not in states.ENDED or state == states.SUCCEEDED:
                state = states.FAILED
            run.stop(state, str(end.get("reason") or ""))
        elif entry.get("done"):
            run.stop(states.CANCELLED, "node %s ended this run" % name)
        elif run.begun and run.active and self._silent(lead, now):
            self._leaderless = True
            run.stop(states.NODE_FAIL, "node %s: was not heard for %g s" % (name, self.peers.silence_s))

    def _told(self, run: RunWork, heard: dict[int, Heard]) -> dict[str, Any]:
        """What the leader is to know of a run; nothing of one that has not been called."""
        entry: dict[str, Any] = {}
        lead = _entry(heard[0], run.spec.run)
        if run.phase == DONE:
            entry["done"] = True
        if run.begun:
            entry["begun"] = True
        reached = self._reached(run)
        if reached >= 0:
            entry["reached"] = reached
            if lead.get("call"):
                entry["call"] = lead["call"]
        if lead.get("call") and self.waits_for_slot and run.phase == WAITING:
            entry["wait"] = self.waits_for_slot
        fate = run.fate
        if fate is not None and not lead.get("done"):
            entry["end"] = self._end(run, fate)
        return entry

    def _end(self, run: RunWork, fate: dict[str, Any]) -> dict[str, Any]:
        rec = fate["rec"]
        end = {"state": fate["state"], "reason": (fate["reason"] or "")[:REASON], "at": self._since(run, fate)}
        end.update({key: rec.get(key) for key in ("stage", "exit_code", "signal")})
        if fate["state"] != states.SUCCEEDED:
            end["tail"] = tail_lines(run.spool)
        return end

    # --- silence within a stage

    def _tell_quiet(self, heard: dict[int, Heard], now: float) -> None:
        """Since when a stage has printed nothing: a follower tells its own, the leader the shortest of all."""
        live = {_stage_key(run) for run in self._runs if run.phase == LIVE}
        self._quiet = {key: value for key, value in self._quiet.items() if key in live}
        told = dict(self._quiet)
        if self.leads:
            for h in heard.values():
                for key, value in h.quiet.items():
                    told[key] = min(told.get(key, value + now - h.quiet_at), value + now - h.quiet_at)
        self._wire.tell_quiet(told)


def _stage_key(run: RunWork) -> str:
    return "%s:%d" % (run.spec.run, run.index)


def _entry(heard: Heard, run: str) -> dict[str, Any]:
    """What a peer said of one run; empty where it said nothing, or nonsense."""
    entry = heard.table.get(run)
    return entry if isinstance(entry, dict) else {}


def _failure(heard: Heard, run: str) -> dict[str, Any] | None:
    """How a run failed on another node, or None where it has not."""
    end = _entry(heard, run).get("end")
    if not isinstance(end, dict) or not isinstance(end.get("state"), str):
        return None
    return end if end["state"] in states.ENDED and end["state"] != states.SUCCEEDED else None


def _record(end: dict[str, Any]) -> dict[str, Any]:
    """How another node's stage ended, as a record of ours says it."""
    rec: dict[str, Any] = {"stage": end["stage"] if isinstance(end.get("stage"), str) else None}
    for key in ("exit_code", "signal"):
        rec[key] = end[key] if isinstance(end.get(key), int) else None
    tail = end.get("tail")
    if isinstance(tail, list):
        rec["tail"] = [str(line)[:500] for line in tail[-20:]]
    return rec
