"""The agent's side of a stage in a container: its FIFO, what its minder notes, how it ended, and that nothing stays.

Nothing here waits for the engine: what asks it is a process that is looked after from step to step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from typing import Any

from . import container, procs, record
from .base import own_argv
from .files import Log
from .queuefile import Queue, RunSpec, Stage

ANYONE = 0o666  # a container may run as any user; the folders above are 0700
ENDED_BY_ENGINE = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 255)  # 255: nobody saw how
STOP_MARGIN_S = 15.0  # beyond the container's own grace, before the agent stops being patient with the engine
TIDY_S = 90.0


class Contained:
    """One stage's container. Made anew by each agent; what lasts stands in container.<i>.json."""

    def __init__(self, queue: Queue, spec: RunSpec, index: int, log: Log) -> None:
        self.queue, self.spec, self.index, self.log = queue, spec, index, log
        self.dir = queue.run_dir(spec.run)
        self.path = os.path.join(self.dir, "container.%d.json" % index)
        self.pipe = os.path.join(self.dir, "pipe.%d" % index)
        self.rebooted = False
        self.notes: list[str] = []
        self._held = -1
        self._tidy: subprocess.Popen[bytes] | None = None
        self._tidied = False
        self._tidy_until = 0.0
        self._away_told = False

    @property
    def stage(self) -> Stage:
        """The stage."""
        return self.spec.stages[self.index]

    def argv(self) -> list[str]:
        """The minder's command."""
        return own_argv("container", self.queue.path, self.spec.run, str(self.index))

    def fields(self) -> dict[str, Any] | None:
        """What the minder noted, or None before it noted anything."""
        return record.read(self.path)

    # --- the FIFO

    def open_pipe(self) -> None:
        """Make the FIFO where there is none and hold it: what it holds lives by being open. Raises OSError."""
        if not os.path.exists(self.pipe):
            os.mkfifo(self.pipe + ".tmp")
            os.chmod(self.pipe + ".tmp", ANYONE)
            os.rename(self.pipe + ".tmp", self.pipe)
        self.hold()

    def hold(self) -> None:
        """Keep the FIFO's content over a change of shims."""
        if self._held < 0:
            with contextlib.suppress(OSError):
                self._held = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """The stage has ended."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    # --- what is told of it

    def running(self) -> dict[str, Any] | None:
        """When it started (`t`, `mono`) and `data` for its RUNNING; None while it has not, or never did."""
        fields = self.fields()
        if fields is None or fields["started"] is None:
            return None
        mono = time.monotonic() - (time.time() - fields["started"])
        about = {"name": fields["name"], "image_id": fields["image_id"]}
        return {"t": fields["started"], "mono": mono, "data": {"container": about}}

    def news(self) -> str | None:
        """A word when the engine stops answering, and one when it answers again; None where nothing changed."""
        fields = self.fields()
        if fields is None or fields["id"] is None:
            return None
        engine = self.stage.engine[0]
        if fields["away"] is not None and not self._away_told:
            self._away_told = True
            return "%s does not answer (%s); the container is left alone" % (engine, fields["away"])
        if fields["away"] is None and self._away_told:
            self._away_told = False
            return "%s answers again" % engine
        return None

    def ended(self) -> bool:
        """Whether the container's end, or that there is none, is known."""
        return container.has_ended(self.fields())

    def truth(self, rec: dict[str, Any]) -> dict[str, Any]:
        """The shim's record with the container's own exit code, signal and time of its end."""
        fields = self.fields() or container.fresh("")
        code = fields["exit_code"]
        number = code - 128 if isinstance(code, int) and 128 < code <= 128 + 64 else None
        told = {**rec, "exit_code": None if number else code, "signal": number}
        if fields["finished"] is not None:
            passed = max(0.0, time.time() - fields["finished"])
            told.update(t_end=fields["finished"], mono_end=time.monotonic() - passed)
        return told

    def failure(self, rec: dict[str, Any]) -> str | None:
        """Why the stage failed, in one sentence without its subject; None where it succeeded. `rec` is of `truth`."""
        fields = self.fields()
        if fields is None or not container.has_ended(fields):
            return "could not be watched to its end: the container's minder does not stay; see agent.log"
        if fields["error"] is not None:
            return "failed: %s" % fields["error"]
        if rec["exit_code"] == 0:
            return None
        if fields["oom_killed"]:
            limit = fields["memory_by"]
            bound = " of %.3g GiB" % (limit / (1 << 30)) if limit else ""
            return "was killed by the kernel for lack of memory: the container passed its limit%s" % bound
        return _how(rec, fields)

    def processes(self) -> list[procs.Process]:
        """What lives in the container, as far as this machine's process list shows it."""
        fields = self.fields()
        return procs.of_container(fields["id"]) if fields is not None and fields["id"] else []

    # --- nothing stays

    def tidied(self, now: float) -> bool:
        """Have the run's containers removed and its files given to our user; True when that is done, or given up."""
        if self._tidied:
            return True
        if self._tidy is None:
            self._begin_tidying(now)
            return False
        if self._tidy.poll() is None:
            if now < self._tidy_until:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._tidy.pid, signal.SIGKILL)
            self._tidy.wait()
        assert self._tidy.stdout is not None
        with self._tidy.stdout as pipe:
            self._hear(pipe.read())
        left = self.processes()  # of an engine that lost its container, or does not answer
        if left:
            procs.kill(left)
            self.log.say("run %s: killed what its container left: %s" % (self.spec.run, [p.pid for p in left]))
        self._tidied = True
        return True

    def _begin_tidying(self, now: float) -> None:
        with self.log.file() as words:
            self._tidy = subprocess.Popen(
                own_argv("tidy", self.queue.path, self.spec.run, str(self.index)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
                cwd="/",
            )
        self._tidy_until = now + TIDY_S

    def _hear(self, data: bytes) -> None:
        try:
            self.notes = [str(note) for note in json.loads(data)["notes"]]
        except (ValueError, KeyError, TypeError):
            self.notes = ["whether a container of this run is left is not known: the engine does not answer"]
        for note in self.notes:
            self.log.say("run %s: %s" % (self.spec.run, note))


def _how(rec: dict[str, Any], fields: dict[str, Any]) -> str:
    if rec["exit_code"] in (126, 127):
        what = "cannot be executed" if rec["exit_code"] == 126 else "was not found"
        return "exited with code %d: a command %s in the container" % (rec["exit_code"], what)
    if fields["aways"] and fields["exit_code"] in ENDED_BY_ENGINE:
        code = fields["exit_code"]
        return "ended with code %d while its engine restarted, which ends containers without live-restore" % code
    if rec["signal"] == signal.SIGKILL:
        return "was ended by signal 9 (SIGKILL), not by the cockpit and not for lack of memory"
    return procs.how_it_ended(rec["exit_code"], rec["signal"])
