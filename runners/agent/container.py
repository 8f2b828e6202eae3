"""The minder of one container, under the shim: makes and starts it, waits for its end, notes it, removes it.

It may be killed at any moment: what is to be done next is read from the engine each time, so another minder goes on
where this one was. While the engine does not answer it waits and asks again. Its standard output is the FIFO that the
container prints into, so it says nothing there but what the engine complains about before anything runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from typing import Any, Dict, Optional, Sequence

from . import engine, record
from .base import write_all
from .engine import Answer, EngineAway, Seen
from .queuefile import Queue, RunSpec, Stage

FIELDS = (
    "name",
    "id",  # None until it is made
    "image_id",
    "pid",  # of its main process, on this machine
    "memory_by",  # its limit
    "started",
    "away",  # why the engine gives no answer; None while it does
    "aways",  # how often it gave none
    "exit_code",
    "oom_killed",
    "error",  # why there was no container, or none any more
    "finished",  # seconds since the epoch; None until its end is known
)
MAKE_S = 600.0  # an engine that is told to pull does it here
START_S = 300.0
PATIENCE_S = 60.0  # for an engine that does not answer before anything was made
RETRY_S = 0.5
WAKE_S = 1.0
START_TRIES = 5
HOLD_S = 3600.0
NOT_MADE = 125
NEW = ("created", "configured", "initialized")


def main(words: Optional[Sequence[str]] = None) -> int:
    """`container Q RUN INDEX`: see a stage's container to its end and exit with its code."""
    called = engine.called(words)
    return NOT_MADE if called is None else Minder(*called).work()


def fresh(name: str) -> Dict[str, Any]:
    """What is known of a container that was not made yet."""
    fields: Dict[str, Any] = dict.fromkeys(FIELDS)
    fields.update(name=name, aways=0, oom_killed=False)
    return fields


def has_ended(fields: Optional[Dict[str, Any]]) -> bool:
    """Whether it is known how the container ended, or that there is none."""
    return fields is not None and (fields["finished"] is not None or fields["error"] is not None)


class Minder:
    """One container's."""

    def __init__(self, queue: Queue, spec: RunSpec, stage: Stage, index: int) -> None:
        assert stage.container is not None
        self.queue, self.spec, self.stage = queue, spec, stage
        self.name = stage.container.name
        self.engine = engine.of_stage(queue, spec, stage, dict(os.environ))
        path = os.path.join(queue.run_dir(spec.run), "container.%d.json" % index)
        known = record.read(path)
        self.fields = known or fresh(self.name)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC) if known else record.create(path, self.fields)
        self.stopping = False
        self._stop: Optional[subprocess.Popen[bytes]] = None
        self._tries = 0
        self._began = time.monotonic()
        self._parent = os.getppid()
        self._wake_read, self._wake_write = os.pipe()
        self._listen()

    def _listen(self) -> None:
        """TERM is kept back by the shim until here: none is lost, and none ends us before we can hear it."""
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _on_term(self, *_: object) -> None:
        self.stopping = True

    def work(self) -> int:
        """See the container to its end; its exit code, or 125 where there was none."""
        code: Optional[int] = self._code() if has_ended(self.fields) else None
        while code is None:
            try:
                seen = self.engine.look(self.name)
                if self.fields["away"] is not None:
                    self._note(away=None)
                code = self._step(seen)
            except EngineAway as away:
                code = self._wait_for_engine(away)
        self._hold_output()
        return code

    # --- what is next

    def _step(self, seen: Optional[Seen]) -> Optional[int]:
        if seen is None:
            return self._make()
        if any(seen.labels.get(key) != value for key, value in engine.labels(self.queue, self.spec).items()):
            return self._fail("there is a container %s already that is not this run's" % self.name)
        if self.fields["id"] != seen.id:
            self._note(id=seen.id, image_id=seen.image_id, memory_by=seen.memory_by)
        if seen.status in NEW and self.fields["started"] is not None:
            self._remove()  # it ran, and must not train a second time
            self._note(error="its engine restarted and lost it, as engines do without live-restore", exit_code=None)
            return NOT_MADE
        if seen.status in NEW:
            return self._start()
        if seen.status in ("exited", "dead", "stopped"):
            return self._settle(seen)
        if seen.status == "removing":
            self._pause(RETRY_S)
            return None
        self._attend(seen)
        return None

    def _make(self) -> Optional[int]:
        if self.fields["id"] is not None:
            return self._fail("the container was removed by somebody else")
        if self.stopping:
            return self._fail("the stage was stopped before its container was made")
        words = [self.queue.expand(word, self.spec.run) for word in self.stage.argv[len(self.stage.engine) :]]
        answer = self.engine.call(*words, timeout=MAKE_S)
        self._say(answer.err)
        if answer.rc == 0 or self.engine.look(self.name) is not None or self.stopping:
            return None
        self._tries += 1
        if answer.engine_failed and self._tries < START_TRIES:
            self._pause(RETRY_S)
            return None
        return self._fail("the container could not be made: %s" % answer.why)

    def _start(self) -> Optional[int]:
        if self.stopping:
            self.engine.remove(self.name)
            return self._fail("the stage was stopped before its container was started")
        self._tries += 1
        answer = self.engine.call("start", self.name, timeout=START_S)
        if answer.rc == 0:
            return None
        now = self.engine.look(self.name)
        if now is None or now.status not in NEW:
            return None
        if answer.engine_failed and self._tries < START_TRIES and not self.stopping:
            self._pause(RETRY_S)  # it was the engine that failed, not the container
            return None
        return self._not_started(answer, now)

    def _not_started(self, answer: Answer, seen: Seen) -> int:
        self._say(answer.err)
        code = seen.exit_code if seen.exit_code in (126, 127) else NOT_MADE
        self._remove()
        return self._fail("the container could not be started: %s" % answer.why, code)

    def _attend(self, seen: Seen) -> None:
        """Wait until the container ends or the engine goes away; ask it to stop where that is wished."""
        if self.fields["started"] is None:
            self._note(started=seen.started or time.time(), pid=seen.pid)
        began = time.monotonic()
        wait = self.engine.begin("wait", self.name)
        try:
            while wait.poll() is None:
                self._drive_stop()
                self._pause(WAKE_S)
        finally:
            if wait.poll() is None:
                wait.kill()
            wait.wait()
        if wait.returncode != 0 and time.monotonic() - began < RETRY_S:
            self._pause(RETRY_S)

    def _drive_stop(self) -> None:
        if not self.stopping or (self._stop is not None and self._stop.poll() in (None, 0)):
            return
        grace_s = int(self.stage.stop_grace_s + 0.999)
        self._stop = self.engine.begin("stop", "-t", str(grace_s), self.name)

    # --- how it ended

    def _settle(self, seen: Seen) -> int:
        self._note(
            started=self.fields["started"] or seen.started,
            exit_code=seen.exit_code,
            oom_killed=seen.oom_killed,
            finished=seen.finished or time.time(),
        )
        self._remove()
        return self._code()

    def _fail(self, why: str, code: int = NOT_MADE) -> int:
        self._note(error=record.short(why), exit_code=code)
        return code

    def _code(self) -> int:
        code = self.fields["exit_code"]
        return code if isinstance(code, int) else NOT_MADE

    def _remove(self) -> None:
        """The agent looks afterwards whether one is left."""
        with contextlib.suppress(EngineAway):
            self.engine.remove(self.name)

    def _wait_for_engine(self, away: EngineAway) -> Optional[int]:
        made = self.fields["id"] is not None
        if not made and (self.stopping or away.hopeless or time.monotonic() - self._began > PATIENCE_S):
            self._say("%s\n" % away)
            return self._fail("the container could not be made: %s" % away)
        if self.fields["away"] is None:
            self._note(away=record.short(str(away)), aways=self.fields["aways"] + 1)
        self._pause(RETRY_S)
        return None

    # --- small things

    def _note(self, **fields: Any) -> None:
        self.fields.update(fields)
        while True:
            try:
                return record.write(self._fd, self.fields, sync=True)
            except OSError:  # a file system that copies on write may be full for that too
                time.sleep(RETRY_S)

    @staticmethod
    def _say(text: str) -> None:
        if text.strip():
            with contextlib.suppress(OSError):
                write_all(1, (text.rstrip("\n") + "\n").encode("utf-8", "replace"))

    def _pause(self, seconds: float) -> None:
        """Until a child ended or a signal came, or the time is over."""
        select.select([self._wake_read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 512)

    def _hold_output(self) -> None:
        """Where the shim was killed, keep what the FIFO holds until another one has read it."""
        until = time.monotonic() + HOLD_S
        while os.getppid() != self._parent and _waiting_by(1) > 0 and time.monotonic() < until:
            self._pause(RETRY_S)


def _waiting_by(fd: int) -> int:
    """Bytes that nobody has read from a pipe yet."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, struct.pack("i", 0)))[0])
    except OSError:
        return 0
