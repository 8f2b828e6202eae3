"""Leaving the caller behind: a worker in a session of its own that says once how it went."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Callable

from .base import AgentError

WAIT_S = 30.0


def detach(log_path: str, act: Callable[[Callable[[dict[str, Any]], None]], None]) -> dict[str, Any]:
    """Run `act(tell)` in a detached process and return the first object that it tells.

    The process has no terminal, no open file of the caller's, and its words go to `log_path`. AgentError where it
    ends or is silent without having told anything.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = _grandchild(log_path, write, act) if os.fork() == 0 else 0
        finally:
            os._exit(code)
    os.close(write)
    os.waitpid(child, 0)
    data = b""
    while select.select([read], [], [], WAIT_S)[0]:
        part = os.read(read, 65536)
        data += part
        if not part:
            break
    os.close(read)
    if not data:
        raise AgentError("The agent did not start; %s may say why." % log_path)
    told: dict[str, Any] = json.loads(data)
    return told


def _grandchild(log_path: str, write: int, act: Callable[[Callable[[dict[str, Any]], None]], None]) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        out = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        out = null
    for fd, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, target)
    pipe = os.dup2(write, 3, inheritable=False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)
    os.chdir("/")
    open_pipe = [pipe]

    def tell(obj: dict[str, Any]) -> None:
        if open_pipe:
            os.write(pipe, json.dumps(obj).encode())
            os.close(open_pipe.pop())

    try:
        act(tell)
    except (AgentError, OSError) as error:
        tell({"started": False, "error": str(error)})
        return 1
    return 0
