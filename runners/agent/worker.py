"""Works one queue: gives turns, hears stops, samples telemetry, and leaves when everything has ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import time
from functools import partial
from typing import Any, Callable

from . import VERSION, states
from .base import AgentError, boot_id, is_no_space, try_lock, write_atomic
from .baseline import Baseline
from .files import Ballast, Log
from .nodes import Nodes
from .queuefile import Queue
from .runwork import DONE, WAITING, RunWork
from .sampling import of_queue
from .slots import Slot, take
from .telemetry import Sampler

CONTROL_S = 0.15
IDLE_S = 0.2  # a shim of our own that ends wakes us at once
HURRY_S = 0.02
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def take_queue(queue: Queue) -> int | None:
    """The open agent.lock of a queue, or None where another agent works it.

    Raises AgentError where the queue was cleaned away meanwhile: its runs must not begin anew. Raises OSError.
    """
    path = queue.file("agent.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(5):
        if try_lock(fd):
            if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(fd)):
                return fd
            os.close(fd)
            raise AgentError("%s was cleaned away just now." % queue.path)
        time.sleep(0.1)  # a `status` may have looked just now
    os.close(fd)
    return None


class Worker:
    """The agent of one queue. The caller holds agent.lock."""

    def __init__(self, queue: Queue, log: Log) -> None:
        self.queue = queue
        self.log = log
        self.agent_id = os.urandom(6).hex()
        self.ballast = Ballast(queue.file("ballast"))
        self.runs: list[RunWork] = []
        self.sampler: Sampler | None = None
        self._told_to_end = ""
        self._stopped = False  # all of it, by a control file
        self._controls_at = 0.0
        self._slot: Slot | None = None  # taken, and lying idle until the cool-down is over
        self._slot_until = 0.0
        self._stuck = False
        self._wake_read, self._wake_write = os.pipe()
        self.nodes = Nodes(queue, log, self._wake) if queue.peers is not None else None

    def work(self, ready: Callable[[dict[str, Any]], None]) -> None:
        """Work the queue to its end. `ready` is called once it is taken, with what agent.json says."""
        self._listen()
        os.umask(0o077)
        about = self._introduce()
        ready(about)
        self.log.say("agent %s works %s" % (self.agent_id, self.queue.path))
        self._until_there_is_room(self._open_runs)
        self.sampler = of_queue(self.queue, self.agent_id, self.log.say)
        self.sampler.start()
        for run in self.runs:
            run.baseline = Baseline(self.queue.telemetry.idle_s, partial(self.sampler.since, run.dir))
        if self.nodes is not None:
            self.nodes.start(self.runs)
        while not self._step():
            self._wait(HURRY_S if any(run.hurried for run in self.runs) else IDLE_S)
        self.sampler.stop()
        if self.nodes is not None:
            self.nodes.close()
        self._forget_secrets()
        self.log.say("agent %s is done with %s" % (self.agent_id, self.queue.path))

    def _forget_secrets(self) -> None:
        """No run needs them any more."""
        try:
            shutil.rmtree(self.queue.secrets_dir)
        except FileNotFoundError:
            return
        except OSError as error:
            self.log.say("%s cannot be removed: %s" % (self.queue.secrets_dir, error.strerror))

    # --- beginning

    def _listen(self) -> None:
        """Signals only wake the loop, which does what they ask for."""
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop)

    def _on_stop(self, number: int, _: object) -> None:
        self._told_to_end = signal.Signals(number).name

    def _introduce(self) -> dict[str, Any]:
        about = {
            "agent_id": self.agent_id,
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "started": time.time(),
            "version": VERSION,
        }
        try:
            write_atomic(self.queue.file("agent.json"), json.dumps(about).encode())
        except OSError as error:
            self.log.say("agent.json cannot be written: %s" % error)
        return about

    def _open_runs(self) -> None:
        for folder in (self.queue.file("control"), os.path.join(self.queue.work, "code")):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        for spec in self.queue.runs[len(self.runs) :]:
            self.runs.append(RunWork(self.queue, spec, self.log))

    def _until_there_is_room(self, act: Callable[[], None]) -> None:
        """Do something that needs a little space, again and again until there is some."""
        said = False
        while True:
            try:
                return act()
            except OSError as error:
                if not is_no_space(error):
                    raise
                if self._told_to_end:
                    raise AgentError("The agent was told to end while it waited for room on the disk.") from error
                if not self.ballast.release() and not said:
                    said = True
                    self.log.say("no space left under %s: the queue waits" % self.queue.work)
                time.sleep(0.5)

    # --- the loop

    def _step(self) -> bool:
        """Look at everything once; True when all has ended and stands on the disk."""
        now = time.monotonic()
        self._hear(now)
        if self.nodes is not None:
            self.nodes.step(now)
        for run in self.runs:
            run.step(now)
            if run.phase == DONE and run.slot is not None:
                run.slot.free()
                run.slot = None
        self._give_turns()
        if self.sampler is not None:
            self.sampler.activate({run.dir: run.spec.gpus for run in self.runs if run.active})
        flushed = self._flush()
        ended = flushed and all(run.phase == DONE for run in self.runs)
        if ended and self.nodes is not None:
            self.nodes.step(now)
            return bool(self._told_to_end) or self._stopped or self.nodes.may_leave(now)
        return ended

    def _wake(self) -> None:
        """Another thread has news."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _wait(self, seconds: float) -> None:
        """Until a signal comes (a shim ended), or the time is over."""
        select.select([self._wake_read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 512)

    def _hear(self, now: float) -> None:
        """Do what control files and signals ask for."""
        asked = self._told_to_end and "the agent was told to end (%s)" % self._told_to_end
        names: list[str] = []
        if now - self._controls_at >= CONTROL_S:
            self._controls_at = now
            with contextlib.suppress(OSError):
                names = os.listdir(self.queue.file("control"))
        self._stopped = self._stopped or "stop" in names
        for run in self.runs:
            if asked or "stop" in names or "stop." + run.spec.run in names:
                run.stop(states.CANCELLED, asked or "stopped by the user")

    def _give_turns(self) -> None:
        waiting = [run for run in self.runs if run.phase == WAITING]
        if self.nodes is not None:
            self._give_turn_of_nodes(self.nodes, waiting)
            return
        free = self.queue.slots - sum(run.active for run in self.runs)
        for i, run in enumerate(waiting):
            if i >= free:
                run.pending("waits for its turn")
            elif self._give_turn(run):
                continue
            else:
                free = 0
        if not waiting and self._slot is not None:
            self._slot.free()
            self._slot = None

    def _give_turn(self, run: RunWork) -> bool:
        """Start a run if a slot is free and has cooled down."""
        reason = self._take_slot(run)
        if reason is not None:
            run.pending(reason)
            return False
        slot, self._slot = self._slot, None
        assert slot is not None
        run.begin(slot)
        return True

    def _take_slot(self, run: RunWork) -> str | None:
        """Take a slot, or see whether the one that was taken has cooled down; what is waited for, else None."""
        try:
            if self._slot is None:
                slot, held = take(self.queue.work, self.queue.slot, self.queue.slots)
                if slot is None:
                    return held
                self._slot = slot
                self._slot_until = time.monotonic() + slot.rest_s(self.queue.cooldown_s, run.spec.run)
        except OSError as error:
            return "waits: the slot's file cannot be made (%s)" % error.strerror
        if time.monotonic() < self._slot_until:
            return "waits for a cool-down of %g s" % self.queue.cooldown_s
        return None

    def _give_turn_of_nodes(self, nodes: Nodes, waiting: list[RunWork]) -> None:
        """One run at a time, on all nodes or on none: the leader's slot first, then each follower's, then begin."""
        now = time.monotonic()
        busy = any(run.active for run in self.runs)
        run = None if busy else nodes.next_run(waiting, now)
        for i, other in enumerate(waiting):
            if other is not run and (i or busy):
                other.pending("waits for its turn")
            elif other is not run and not nodes.leads:
                other.pending(nodes.waits_for())
        if run is None:
            self._give_back(nodes)
            return
        reason = self._take_slot(run)
        if self._slot is None:
            nodes.let_go()
            nodes.waits_for_slot = reason
        elif nodes.leads:
            nodes.call(run, now)
        if reason is None:
            nodes.hold(run, now)
            if nodes.may_start(run):
                slot, self._slot = self._slot, None
                assert slot is not None
                nodes.let_go()
                run.begin(slot)
                return
            reason = nodes.waits_for()
        run.pending(reason)
        if nodes.leads and self._slot is not None and nodes.give_up(now):
            self._give_back(nodes)

    def _give_back(self, nodes: Nodes) -> None:
        nodes.let_go()
        if self._slot is not None:
            self._slot.give_back()
            self._slot = None

    def _flush(self) -> bool:
        """Write the states that wait for room, on the ballast's if need be; False where some wait still."""
        waiting = [run for run in self.runs if run.states.waiting]
        if not waiting:
            self._stuck = False
            self.ballast.hold()
            return True
        if all(run.states.flush() for run in waiting):
            return True
        released = self.ballast.release()
        if released:
            self.log.say("no space left under %s: the ballast makes room for states" % self.queue.work)
            if all(run.states.flush() for run in waiting):
                return True
        if not self._stuck:
            self._stuck = True
            error = next((run.states.file.error for run in waiting if run.states.file.error), None)
            self.log.say("states cannot be written and are kept: %s" % (error or "no space left on the disk"))
        return False
