"""One run as the agent works it: a small machine of phases, moved on by `step`, that another agent can take over.

What happened is read from the shim's record and its lock, never from the agent's memory, so a run that went on while
no agent lived is noted as one that was watched:

lock held                            the shim lives: watch it
free, record ended                   the stage ended, at the record's time
free, record without a process       nothing was started: start it (again)
free, record with a process          the shim was killed, or the machine restarted: end what is left, FAILED;
                                     a container is not its child: another shim goes on with it (contained.py)
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from . import ending, limits, procs, record, states
from .base import AgentError, boot_id, is_locked, is_no_space
from .baseline import Baseline
from .contained import STOP_MARGIN_S, Contained
from .ending import Stopping, Sweep
from .files import Log
from .queuefile import Queue, RunSpec, Stage
from .slots import Slot
from .starting import make_ready, start_shim
from .states import StateLog
from .unpack import Unpacking

if TYPE_CHECKING:
    from .nodes import Nodes

WAITING, PREPARING, LIVE, SWEEPING, DONE = "waiting", "preparing", "live", "sweeping", "done"
HELD = "held"  # ended here, while other nodes are still at it
RETRY_S = 0.5
START_TRIES = 5


class RunWork:
    """One run of a queue. `phase` is where it is, `index` its stage, `slot` its turn while the agent holds it."""

    def __init__(self, queue: Queue, spec: RunSpec, log: Log) -> None:
        self.queue = queue
        self.spec = spec
        self.log = log
        self.dir = queue.run_dir(spec.run)
        self.out = os.path.join(self.dir, "out")
        self.spool = os.path.join(self.dir, "spool.log")
        os.makedirs(self.out, mode=0o700, exist_ok=True)
        self.states = StateLog(os.path.join(self.dir, "states.jsonl"))
        self.phase = WAITING
        self.index = 0
        self.slot: Slot | None = None
        self.stopping: Stopping | None = None
        self._shim: subprocess.Popen[bytes] | None = None
        self._unpacking = Unpacking(queue)
        self._contained: Contained | None = None
        self._carry: dict[str, Any] | None = None
        self._tries = 0
        self._next_try = 0.0
        self._spool_told = ("ok", False)
        self._ended: Sweep | None = None
        self._notes: list[str] = []
        self._held: dict[str, Any] | None = None
        self.nodes: Nodes | None = None  # where several train together
        self.baseline: Baseline | None = None  # taken before the first stage is started
        self._recover()

    # --- what the queue asks

    @property
    def stage(self) -> Stage:
        """The stage it is at."""
        return self.spec.stages[self.index]

    @property
    def contained(self) -> Contained | None:
        """The container of the stage it is at; None for a process."""
        if self.stage.container is None:
            return None
        if self._contained is None or self._contained.index != self.index:
            self._contained = Contained(self.queue, self.spec, self.index, self.log)
        return self._contained

    @property
    def active(self) -> bool:
        """Whether it has, or is about to have, processes."""
        return self.phase in (PREPARING, LIVE, SWEEPING, HELD)

    @property
    def begun(self) -> bool:
        """Whether its turn has come, for this agent or one before."""
        return any(state == states.STARTING for state, _ in self.states.seen)

    @property
    def fate(self) -> dict[str, Any] | None:
        """state, reason and rec (the shim's record) of how it has ended here or will; None while nothing ends it."""
        if self.phase == DONE and self.states.last is not None:
            return {**self.states.last, "rec": self.states.last}
        if self._held is not None:
            return self._held
        if self._ended is not None:
            return None if self._goes_on(self._ended.because) else self._ended.fate
        return self.stopping.fate if self.stopping is not None else None

    @property
    def hurried(self) -> bool:
        """Whether something is about to change: looked at more often then."""
        if self.nodes is not None and self.phase == PREPARING and not self.nodes.may_start(self):
            return False  # the others may take hours
        if self.phase == PREPARING and self.baseline is not None and self.baseline.begun:
            return False  # a machine that is looked at often does not idle
        return self.phase in (PREPARING, SWEEPING) or (
            self.phase == LIVE
            and self.stage.container is None
            and ("RUNNING", self.stage.stage) not in self.states.seen
        )

    def pending(self, reason: str) -> None:
        """Say what a run that has not started waits for, when that changed."""
        if self.index == 0 and self.states.state in (None, states.PENDING) and reason != self.states.reason:
            self.states.add(states.PENDING, reason)

    def begin(self, slot: Slot) -> None:
        """Its turn has come."""
        self.slot = slot
        self.phase = PREPARING
        if self.states.last is None:
            self.states.add(states.PENDING, "its turn has come")
        self._say_started()

    def stop(self, because: str, reason: str, wchan: dict[str, str] | None = None) -> None:
        """End it: at once where nothing runs, else TERM to its group and KILL after the stage's grace."""
        if self.phase == DONE or self.stopping is not None:
            return
        if self.phase in (WAITING, PREPARING):
            self._conclude(because, reason)
            return
        if self._held is not None:
            if self._held["state"] == states.SUCCEEDED:
                self._held.update(state=because, reason=reason)
            return
        if self._ended is not None:
            if self._goes_on(self._ended.because):
                self._ended.because, self._ended.reason = because, reason
            return
        rec = record.read(self._record(self.index))
        if rec is not None and rec["ended"]:
            return  # it was faster: `step` notes its end, and a stage that would follow is not begun
        if rec is not None and rec["phase"] == record.RUNNING:
            self._note_running(rec)
        self.stopping = Stopping(because, reason, wchan or {}, time.monotonic() + self._patience_s())
        self.states.add(
            states.STOPPING, reason, stage=self.stage.stage, data={"because": because, "wchan": wchan or {}}
        )

    def _patience_s(self) -> float:
        """From TERM to KILL; an engine keeps the container's grace itself."""
        return self.stage.stop_grace_s + (STOP_MARGIN_S if self.stage.container is not None else 0.0)

    def step(self, now: float) -> None:
        """Look and go on; never waits. `now` is the monotonic clock."""
        if self._shim is not None and self._shim.poll() is not None:  # also after the run's end: leave no zombie
            self._shim = None
        if self.phase == PREPARING and now >= self._next_try:
            self._prepare(now)
        elif self.phase == LIVE:
            self._watch(now)
        elif self.phase == SWEEPING:
            self._sweep(now)
        elif self._held is not None:
            self._finish(**self._held)

    # --- taking over from an agent that was killed

    def _recover(self) -> None:
        last = self.states.last
        if last is not None and last["state"] in states.ENDED:
            self.phase = DONE
            return
        known = [i for i in range(len(self.spec.stages)) if os.path.exists(self._record(i))]
        if known:
            self.index = known[-1]
            self.phase = LIVE
            if self.contained is not None:
                self.contained.hold()
        if last is not None and last["state"] == states.STOPPING:
            data = last.get("data", {})
            because, wchan = data.get("because", states.CANCELLED), data.get("wchan", {})
            self.stopping = Stopping(because, last["reason"], wchan, time.monotonic() + self._patience_s())
            if not known:
                self._finish(because, last["reason"], {})

    def _record(self, index: int) -> str:
        return os.path.join(self.dir, "shim.%d.json" % index)

    # --- starting a stage

    def _prepare(self, now: float) -> None:
        if self.nodes is not None and not self.nodes.may_start(self):
            return
        assert self.slot is not None
        try:
            if not self._unpacking.ready():
                return
            self._next_try = now + RETRY_S
            make_ready(self.queue, self.spec, self.spool)
            if self.baseline is not None and self.baseline.holds(self._record(0), now):
                self._next_try = now
                return
            self._shim = start_shim(
                self.queue, self.spec, self.index, self.log, self.slot, self.contained, self._carry
            )
            self.phase, self._carry, self._spool_told = LIVE, None, ("ok", False)
        except AgentError as error:
            self._conclude(states.FAILED, str(error))
        except OSError as error:
            self._next_try = now + RETRY_S
            if is_no_space(error):
                self._say_once(states.STARTING, "waits: no space left under %s" % self.queue.work)
            else:
                self._conclude(states.FAILED, "stage %s cannot be started: %s." % (self.stage.stage, error))

    # --- watching it

    def _watch(self, now: float) -> None:
        path = self._record(self.index)
        alive = is_locked(path)  # before the record is read: what a shim writes last is then seen
        rec = record.read(path)
        if rec is not None and rec["ended"]:
            self._stage_ended(rec)
        elif not alive:
            self._shim_gone(rec)
        elif rec is not None and rec["phase"] == record.RUNNING:
            self._note_running(rec)
            self._note_spool(rec)
            if self.stopping is None:
                self._watch_limits(rec, now)
            if self.stopping is not None:
                self.stopping.drive(rec, self.out, now)

    def _note_running(self, rec: dict[str, Any]) -> None:
        if (states.RUNNING, rec["stage"]) in self.states.seen:
            return
        inside = self.contained
        at = inside.running() if inside is not None else {"t": rec["t_start"], "mono": rec["mono_start"]}
        if at is None:
            return  # a container's process is not the minder
        self._say_started()
        self.states.add(states.RUNNING, stage=rec["stage"], **at)

    def _say_started(self) -> None:
        if not self.begun:
            self.states.add(states.STARTING, stage=self.stage.stage)

    def _note_spool(self, rec: dict[str, Any]) -> None:
        """One word when output is no longer kept, or the engine does not answer, and one when that is over."""
        news = self.contained.news() if self.contained is not None and self.stopping is None else None
        if news is not None:
            self._say_once(states.RUNNING, news)
        state = rec["spool_state"], rec["dropped_by"] > 0
        if state == self._spool_told or self.stopping is not None:
            return
        self._spool_told = state
        self._say_once(states.RUNNING, limits.room(rec, self.queue))

    def _watch_limits(self, rec: dict[str, Any], now: float) -> None:
        quiet_s = now - (rec["last_output_mono"] or rec["mono_start"])
        if self.nodes is not None:
            quiet_s = self.nodes.quiet_s(self, quiet_s)
        broken = limits.passed(self.stage, rec, quiet_s, now, self.spool)
        if broken is not None:
            stalled = broken[0] == states.STALLED
            self.stop(*broken, limits.waits_in(rec, self.out, self.contained) if stalled else None)

    # --- ending it

    def _stage_ended(self, rec: dict[str, Any]) -> None:
        inside = self.contained
        if inside is not None and not inside.ended() and self._adopt(rec, "its minder does not stay"):
            return
        rec = inside.truth(rec) if inside is not None and rec["error"] is None else rec
        if rec["error"] is None:
            self._note_running(rec)
            self._note_spool(rec)
        else:
            self._say_started()
        self._begin_sweep(*ending.verdict(rec, self.stopping, inside), rec)

    def _adopt(self, rec: dict[str, Any], why: str) -> bool:
        """Have another shim go on with the container; False where that was tried often enough."""
        inside = self.contained
        assert inside is not None
        if self.stopping is not None and time.monotonic() >= self.stopping.kill_at:
            return False
        inside.hold()
        left = ending.living(rec, self.out)
        procs.kill(left)  # the old minder: two would take the container's end from each other
        if left:
            return True  # looked at again until they are gone
        self._tries += 1
        if self._tries > START_TRIES:
            return False
        self.log.say("run %s: stage %s: %s; another shim goes on" % (self.spec.run, self.stage.stage, why))
        rebooted = rec["boot_id"] not in (None, boot_id())
        inside.rebooted = inside.rebooted or rebooted
        self._carry = None if rebooted or rec["t_start"] is None else rec
        if self.stopping is not None:
            self.stopping.told = None
        self.phase = WAITING if self.slot is None else PREPARING
        return True

    def _shim_gone(self, rec: dict[str, Any] | None) -> None:
        stage = self.stage.stage
        if (
            self.contained is not None
            and rec is not None
            and rec["child_pid"] is not None
            and self._adopt(rec, "the shim was killed")
        ):
            return
        if rec is not None and rec["child_pid"] is None:
            self._start_again()
        elif rec is None:
            self._begin_sweep(states.FAILED, "the status record of stage %s is damaged" % stage, None)
        elif rec["boot_id"] != boot_id():
            self._begin_sweep(states.NODE_FAIL, "the server restarted while stage %s ran" % stage, rec)
        else:
            rec.update(t_end=None, mono_end=None)
            because = self.stopping.because if self.stopping is not None else states.FAILED
            self._begin_sweep(because, "the shim of stage %s was killed, so the stage was ended" % stage, rec)

    def _start_again(self) -> None:
        """The shim died before it started anything: the stage takes its turn (again)."""
        if self.stopping is not None:
            self._conclude(self.stopping.because, self.stopping.reason)
            return
        self._tries += 1
        if self._tries > START_TRIES:
            self._conclude(states.FAILED, "the shim of stage %s does not start; see agent.log" % self.stage.stage)
            return
        self.phase = WAITING if self.slot is None else PREPARING

    def _conclude(self, state: str, reason: str) -> None:
        """End a run that has no process; where it may have a container still, sweep that away first."""
        if self.contained is not None and os.path.exists(self.contained.path):
            self._begin_sweep(state, reason, self._carry)
        else:
            self._finish(state, reason, {})

    def _begin_sweep(self, because: str, reason: str | None, rec: dict[str, Any] | None) -> None:
        self._ended = Sweep(because, reason, rec)
        self.phase = SWEEPING
        self._sweep(time.monotonic())

    def _sweep(self, now: float) -> None:
        """Go on when nothing is left of the stage."""
        swept, inside = self._ended, self.contained
        assert swept is not None
        if not swept.done(now, self.out, inside, self.log, self.spec.run):
            return
        self._ended = None
        if inside is not None:
            self._notes += inside.notes
            inside.close()
        if self._goes_on(swept.because):
            self.index += 1
            self._tries = 0
            self._next_try = 0.0
            self.phase = WAITING if self.slot is None else PREPARING
        else:
            self._finish(swept.because, swept.reason, swept.rec or {})

    def _goes_on(self, because: str) -> bool:
        """Whether another stage follows one that ended like that."""
        return because == states.SUCCEEDED and self.index + 1 < len(self.spec.stages)

    def _finish(self, state: str, reason: str | None, rec: dict[str, Any]) -> None:
        if self.nodes is not None:
            verdict = self.nodes.verdict(self, state, reason, rec)
            if verdict is None:
                self._held = {"state": state, "reason": reason, "rec": rec}
                self.phase = HELD
                return
            state, reason, rec = verdict
            self._held = None
        records = [record.read(self._record(i)) for i in range(len(self.spec.stages))]
        self.states.add(
            state,
            reason,
            stage=rec.get("stage"),
            exit_code=rec.get("exit_code"),
            signal=rec.get("signal"),
            data=ending.last_word(records, rec, self.spool, self.stopping, self._notes),
            t=rec.get("t_end"),
            mono=rec.get("mono_end"),
        )
        self.log.say("run %s: %s%s" % (self.spec.run, state, ": " + reason if reason else ""))
        self.phase = DONE
        self.stopping = None

    def _say_once(self, state: str, reason: str) -> None:
        if reason != self.states.reason:
            self.log.say("run %s: %s" % (self.spec.run, reason))
            self.states.add(state, reason, stage=self.stage.stage)
