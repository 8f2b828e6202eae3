"""What stands ready before a stage, and the shim that it starts under."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Any

from . import record, shim
from .base import AgentError, own_argv
from .contained import Contained
from .files import Log
from .queuefile import Queue, RunSpec
from .slots import Slot

OPEN_DIR, OPEN_FILE, SHARED_DIR = 0o755, 0o644, 0o777


def make_ready(queue: Queue, spec: RunSpec, spool: str) -> None:
    """The run's folders, links and spool. Raises OSError, AgentError."""
    run_dir = queue.run_dir(spec.run)
    cache, out = os.path.join(queue.work, "cache"), os.path.join(run_dir, "out")
    os.makedirs(cache, mode=0o700, exist_ok=True)
    os.close(os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    for path, target in spec.links.items():
        _link(os.path.join(run_dir, path), queue.expand(target, spec.run))
    if spec.contained:  # it may run as any user; the folders above are ours alone
        for folder in (queue.work, queue.path):
            with contextlib.suppress(PermissionError):  # a work folder that an administrator made
                os.chmod(folder, 0o700)
        for path, mode in ((run_dir, OPEN_DIR), (out, SHARED_DIR), (cache, SHARED_DIR)):
            with contextlib.suppress(PermissionError):  # not ours, so a container has it already
                os.chmod(path, mode)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(os.path.join(run_dir, "config.json"), OPEN_FILE)
        for folder in {f for stage in spec.stages if stage.container for f in stage.container.folders}:
            with contextlib.suppress(OSError):  # the engine then says what is missing
                os.makedirs(queue.expand(folder, spec.run), mode=OPEN_DIR, exist_ok=True)


def _link(path: str, target: str) -> None:
    """A symbolic link, also where it is there already; a file of that name is nobody's to replace."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    if os.path.islink(path):
        if os.readlink(path) == target:
            return
        os.unlink(path)
    try:
        os.symlink(target, path)
    except FileExistsError as error:
        raise AgentError("%s is there already, so it cannot be a link to %s." % (path, target)) from error


def start_shim(
    queue: Queue, spec: RunSpec, index: int, log: Log, slot: Slot, contained: Contained | None, carry: Any = None
) -> subprocess.Popen[bytes]:
    """Make the record of stage `index`, and the shim that inherits its lock and the slot's. Raises OSError.

    `carry` is the record of a shim that was killed, while its container lives on.
    """
    stage = spec.stages[index]
    run_dir = queue.run_dir(spec.run)
    path = os.path.join(run_dir, "shim.%d.json" % index)
    if contained is not None:
        contained.open_pipe()
    fd = record.create(path, record.fresh(stage.stage))
    try:
        task = {
            "record_fd": fd,
            "keep_fds": [slot.fd],
            "spool": os.path.join(run_dir, "spool.log"),
            "max_by": queue.spool_max_by,
            "argv": contained.argv() if contained else [queue.expand(word, spec.run) for word in stage.argv],
            "env": queue.environment(spec, stage, dict(os.environ)),
            "cwd": queue.expand(stage.cwd, spec.run) if stage.cwd and not contained else run_dir,
            "grace_s": stage.stop_grace_s,
            "stage": stage.stage,
            "pipe": contained.pipe if contained else None,
            "carry": carry,
        }
        with log.file() as words:  # never the agent's own stderr: whoever reads that waits for its end
            started = subprocess.Popen(
                own_argv("shim", path),
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                pass_fds=(fd, slot.fd),
                start_new_session=True,
                cwd="/",
            )
        assert started.stdin is not None
        with contextlib.suppress(BrokenPipeError), started.stdin as pipe:  # broken: seen by the record
            pipe.write(shim.message(task))
    finally:
        os.close(fd)
    slot.tell({"group": queue.group, "run": spec.run, "pid": started.pid})
    return started
