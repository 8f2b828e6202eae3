"""The shim: one small process a stage. Starts the program, holds its pipe, keeps its output and how it ended.

The agent may die and come back meanwhile; the shim needs nothing of it. It gets its task as JSON on standard input
and says everything through the status record. It answers no signal but SIGUSR1: a stop was asked for, so what is left
of the program's group after its main process has the stop's grace to end, and not only DRAIN_S.

A container prints into a FIFO, `task["pipe"]`: that is then the pipe. Its bytes go into the spool by splice(2), so
that a kill at any moment loses none and doubles none, and another shim goes on with the rest. The program is the
container's minder, which is started again where something kills it. `task["carry"]` is the record of the shim before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time

from . import record
from .base import boot_id, start_ticks
from .spool import CAPPED, Spool

TYPE_CHECKING = False  # typing itself would cost the shim its import
if TYPE_CHECKING:
    from typing import Any, NoReturn

MINDER_TRIES = 5
DRAIN_S = 3.0  # after the main process, how long others of its group may hold the pipe
RECORD_S = 0.25  # how old the record's counts may be
BLOCK_BY = 256 << 10
PIPE_BY = 1 << 20
F_SETPIPE_SZ = 1031  # Linux; fcntl has the name only from Python 3.10 on
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
RESET = (*IGNORED, signal.SIGPIPE, signal.SIGUSR1, signal.SIGXFSZ)


def main() -> int:
    """Do the task on standard input. 0 when the record says how it ended, 1 where nothing was started."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    data = sys.stdin.buffer.read()
    head, _, body = data.partition(b"\n")
    if not head.isdigit() or int(head) != len(body):
        return 1  # the agent died while it wrote: nothing was started, and the next agent starts it
    Shim(json.loads(body)).work()
    return 0


def message(task: dict[str, Any]) -> bytes:
    """The bytes for the shim's standard input: a length, so that half a task is noticed, and the task.

    `task` has record_fd, keep_fds (locks that are held by being open), spool, max_by, argv, env, cwd, grace_s, stage,
    and for a container pipe and carry (None, or the record of a shim that was killed).
    """
    body = json.dumps(task).encode()
    return b"%d\n%s" % (len(body), body)


class Shim:
    """One program under care."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.fd: int = task["record_fd"]
        for fd in (self.fd, *task["keep_fds"]):
            os.set_inheritable(fd, False)  # held here and nowhere else: a daemon of the program must not hold a lock
        self.rec = record.fresh(task["stage"])
        self.spool = Spool(task["spool"], task["max_by"])
        self._fifo: str | None = task.get("pipe")
        self._minders = 0
        self._carry_on(task.get("carry"))
        self.stopping = False
        self.pipe = -1
        self.pid = 0
        self._written = 0.0
        signal.signal(signal.SIGUSR1, self._on_stop)

    def _carry_on(self, carry: dict[str, Any] | None) -> None:
        """Count on from where a shim that was killed had come to, as far as its record says."""
        if carry is None:
            return
        for key in ("t_start", "mono_start", "bytes_in", "last_output", "last_output_mono"):
            self.rec[key] = carry[key]
        self.spool.written, self.spool.dropped = carry["spool_by"], carry["dropped_by"]
        if carry["spool_state"] == CAPPED:
            self.spool.state = CAPPED

    def _on_stop(self, *_: object) -> None:
        self.stopping = True

    def work(self) -> None:
        """Start the program, keep its output, write down its end."""
        rec = self.rec
        rec.update(phase=record.STARTING, pid=os.getpid(), start_ticks=start_ticks(os.getpid()), boot_id=boot_id())
        self.write()
        error = self._start()
        if error is None:
            rec["phase"] = record.RUNNING
            self.write()
        if self.pipe >= 0:
            self._drain()
        self._end(error)

    # --- start

    def _start(self) -> str | None:
        """Make the pipe and start the program; why it could not be started, or None."""
        try:
            self.pipe, out = self._open_pipe()
        except OSError as error:
            return record.short("cannot open %s: %s" % (self._fifo, error.strerror))
        self._widen(self.pipe)
        return self._fork(out)

    def _open_pipe(self) -> tuple[int, int]:
        if self._fifo is None:
            return os.pipe()
        read = os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return read, os.open(self._fifo, os.O_WRONLY | os.O_CLOEXEC)

    def _fork(self, out: int) -> str | None:
        """Run the program with `out`, which is closed here; why it could not be started, or None.

        The child waits for the record to name it: where the shim is killed before that, nothing has run.
        """
        go_read, go_write = os.pipe()
        err_read, err_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go_write)
            self._become(out, go_read, err_write)
        for fd in (out, go_read, err_write):
            os.close(fd)
        self.rec.update(
            child_pid=self.pid,
            pgid=self.pid,
            child_start_ticks=start_ticks(self.pid),
        )
        if self.rec["t_start"] is None:
            self.rec.update(t_start=time.time(), mono_start=time.monotonic())
        self.write()
        os.write(go_write, b"g")
        os.close(go_write)
        error = b""
        for part in iter(lambda: os.read(err_read, 4096), b""):
            error += part
        os.close(err_read)
        return record.short(error.decode("utf-8", "replace")) or None

    @staticmethod
    def _widen(pipe: int) -> None:
        """A larger pipe lets the program run on while the disk is slow; where it may not be larger, it stays."""
        try:
            fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BY)
        except OSError:
            return

    def _become(self, out: int, go: int, err: int) -> NoReturn:
        """In the child: become the program, or say on `err` why not. Never returns."""
        argv, cwd = self.task["argv"], self.task["cwd"]
        code = 126
        doing = "cannot start %s" % argv[0]
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            if os.read(go, 1) != b"g":
                os._exit(code)
            for number in RESET:
                signal.signal(number, signal.SIG_DFL)
            if self._fifo is not None:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the minder can hear it
            doing = "cannot enter the folder %s" % cwd
            os.chdir(cwd)
            doing = "cannot start %s" % argv[0]
            os.execvpe(argv[0], argv, self.task["env"])  # noqa: S606 (no shell is wanted)
        except (OSError, ValueError) as error:  # ValueError: a word that this system's encoding does not have
            code = 127 if isinstance(error, FileNotFoundError) else 126
            why = getattr(error, "strerror", None) or str(error)
            os.write(err, ("%s: %s" % (doing, why)).encode("utf-8", "backslashreplace"))
        finally:
            os._exit(code)

    # --- while it runs

    def _drain(self) -> None:
        """Keep the output until the program and its pipe have ended, or DRAIN_S after the program."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        exited_at = None
        at_eof = False
        dirty = False
        while not (at_eof and exited_at is not None):
            if at_eof and not dirty:
                self._has_exited(wait=True)
            size = 0
            if at_eof:
                time.sleep(RECORD_S)
            elif poll.poll(100):
                size, at_eof = self._read()
                dirty = True
            now = time.monotonic()
            if exited_at is None and self._has_exited():
                if self._start_minder_again():
                    at_eof = False
                    continue
                exited_at = now
                self.rec.update(t_end=time.time(), mono_end=now)
            if exited_at is not None and now - exited_at > (self.task["grace_s"] + 2 if self.stopping else DRAIN_S):
                break
            if dirty and now - self._written >= RECORD_S:
                dirty = not self.write()
            if 0 < size < BLOCK_BY // 4 and exited_at is None:
                time.sleep(0.005)  # many short lines become few long reads
        os.close(self.pipe)

    def _read(self) -> tuple[int, bool]:
        """How many bytes were taken from the pipe, and whether it has ended."""
        size = None
        try:
            if self._fifo is not None:
                size = self.spool.splice(self.pipe, BLOCK_BY)
            if size is None:
                data = os.read(self.pipe, BLOCK_BY)
                self.spool.feed(data)
                size = len(data)
        except BlockingIOError:
            return 0, False
        if size:
            self.rec["bytes_in"] += size
            self.rec.update(last_output=time.time(), last_output_mono=time.monotonic())
        return size, size == 0

    def _start_minder_again(self) -> bool:
        """Where a signal ended a container's minder, which only a kill from outside does: start another one.

        Not where a stop was asked for: then it was the agent, whose patience with the engine was over.
        """
        if self._fifo is None or self.stopping or self._minders >= MINDER_TRIES:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it had asked the engine with; a zombie keeps the number ours
        self._reap(wait=True)
        if self.rec["signal"] is None:
            return False
        self._minders += 1
        self.rec.update(signal=None, exit_code=None)
        return self._fork(os.open(self._fifo, os.O_WRONLY | os.O_CLOEXEC)) is None

    def _has_exited(self, wait: bool = False) -> bool:
        """Whether the main process has ended. It stays a zombie, so that its group's number cannot be reused."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._reap(wait)
        flags = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def _reap(self, wait: bool) -> bool:
        if self.pid == 0:
            return True  # it was never there, or was waited for before
        pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
        if pid == 0:
            return False
        self.pid = 0
        killed = os.WIFSIGNALED(status)
        self.rec["signal"] = os.WTERMSIG(status) if killed else None
        self.rec["exit_code"] = None if killed else os.WEXITSTATUS(status)
        return True

    # --- the end

    def _end(self, error: str | None) -> None:
        """End what is left of the group, and keep how the program ended, however full the disk is."""
        rec = self.rec
        if rec["pgid"] is not None and self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rec["pgid"], signal.SIGKILL)
        self._reap(wait=True)
        self.spool.close()
        rec.update(phase=record.ENDED, ended=True, error=error)
        while not self.write(sync=True):
            time.sleep(0.2)

    def write(self, sync: bool = False) -> bool:
        """Rewrite the record; False where the disk refuses even that (a file system that copies on write)."""
        spool = self.spool
        self.rec.update(spool_by=spool.written, dropped_by=spool.dropped, spool_state=spool.state)
        self._written = time.monotonic()
        try:
            record.write(self.fd, self.rec, sync)
        except OSError:
            return False
        return True
