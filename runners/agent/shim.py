"""The shim: one small process a stage. Starts the program, holds its pipe, keeps its output and how it ended.

The agent may die and come back meanwhile; the shim needs nothing of it. It gets its task as JSON on standard input
and says everything through the status record. It answers no signal but SIGUSR1: a stop was asked for, so what is left
of the program's group after its main process has the stop's grace to end, and not only DRAIN_S.
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
from .spool import Spool

TYPE_CHECKING = False  # typing itself would cost the shim its import
if TYPE_CHECKING:
    from typing import Any, NoReturn

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


def argv(python: str) -> list[str]:
    """The command of a shim from the same code as this, a folder or a .pyz alike; isolated, and without `site`."""
    package = __package__ or "agent"
    root = os.path.abspath(__file__)
    for _ in range(package.count(".") + 2):
        root = os.path.dirname(root)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from %s.shim import main; sys.exit(main())" % package
    return [python, "-I", "-S", "-c", code, root]


def message(task: dict[str, Any]) -> bytes:
    """The bytes for the shim's standard input: a length, so that half a task is noticed, and the task.

    `task` has record_fd, keep_fds (locks that are held by being open), spool, max_by, argv, env, cwd, grace_s and
    stage.
    """
    body = json.dumps(task).encode()
    return b"%d\n%s" % (len(body), body)


def _short(text: str) -> str:
    """`text` as it fits into the record, where a character may take twelve bytes: its middle left out if need be."""
    return text if len(json.dumps(text)) <= 2400 else "%s...%s" % (text[:90], text[-90:])


class Shim:
    """One program under care."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.fd: int = task["record_fd"]
        for fd in (self.fd, *task["keep_fds"]):
            os.set_inheritable(fd, False)  # held here and nowhere else: a daemon of the program must not hold a lock
        self.rec = record.fresh(task["stage"])
        self.spool = Spool(task["spool"], task["max_by"])
        self.stopping = False
        self.pipe = -1
        self.pid = 0
        self._written = 0.0
        signal.signal(signal.SIGUSR1, self._on_stop)

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
        self._drain()
        self._end(error)

    # --- start

    def _start(self) -> str | None:
        """Fork and run the program; why it could not be started, or None.

        The child waits for the record to name it: where the shim is killed before that, nothing has run.
        """
        self.pipe, out = os.pipe()
        go_read, go_write = os.pipe()
        err_read, err_write = os.pipe()
        self._widen(self.pipe)
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
            t_start=time.time(),
            mono_start=time.monotonic(),
        )
        self.write()
        os.write(go_write, b"g")
        os.close(go_write)
        error = b""
        for part in iter(lambda: os.read(err_read, 4096), b""):
            error += part
        os.close(err_read)
        return _short(error.decode("utf-8", "replace")) or None

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
                size = self._read()
                at_eof = size == 0
                dirty = True
            now = time.monotonic()
            if exited_at is None and self._has_exited():
                exited_at = now
                self.rec.update(t_end=time.time(), mono_end=now)
            if exited_at is not None and now - exited_at > (self.task["grace_s"] + 2 if self.stopping else DRAIN_S):
                break
            if dirty and now - self._written >= RECORD_S:
                dirty = not self.write()
            if 0 < size < BLOCK_BY // 4 and exited_at is None:
                time.sleep(0.005)  # many short lines become few long reads
        os.close(self.pipe)

    def _read(self) -> int:
        data = os.read(self.pipe, BLOCK_BY)
        if data:
            self.spool.feed(data)
            self.rec["bytes_in"] += len(data)
            self.rec.update(last_output=time.time(), last_output_mono=time.monotonic())
        return len(data)

    def _has_exited(self, wait: bool = False) -> bool:
        """Whether the main process has ended. It stays a zombie, so that its group's number cannot be reused."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._reap(wait)
        flags = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def _reap(self, wait: bool) -> bool:
        if self.pid == 0:
            return True
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
