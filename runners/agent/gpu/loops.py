"""What the process of a source has beside its hot loop: threads with deadlines of their own, and a bound on words."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from .source import Gone, Reading

PROC = "/proc"
BLOCKED_S = 5.0  # a call that takes longer is told of
_REPEAT_S = 60.0
_BURST, _EACH_S = 50, 2.0  # err lines at once, and how often one more may follow


class Loop:
    """Asks for something every `period_s`, in a thread that alone waits for it. `fresh` holds the newest answer."""

    def __init__(self, name: str, ask: Callable[[], List[Reading]], period_s: float, offset_s: float) -> None:
        self.name = name
        self.fresh: Deque[List[Reading]] = deque(maxlen=1)
        self.failures: Deque[str] = deque(maxlen=10)
        self.gone: Optional[Gone] = None
        self.first = threading.Event()  # the first call has ended
        self._ask = ask
        self._period_s = period_s
        self._offset_s = offset_s  # from the hot loop's moments, so that both do not want the interpreter at once
        self._end = threading.Event()
        self._since: Optional[float] = None
        self._told = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Ask at once, and then by the clock."""
        self._thread.start()

    def end(self) -> None:
        """Ask no more; does not wait."""
        self._end.set()

    def joined(self, seconds: float) -> bool:
        """Whether the thread has ended, waited for that long."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def news(self, now: float) -> Optional[bool]:
        """True once when a call has not come back for BLOCKED_S, False once when it has; None otherwise."""
        since = self._since
        blocked = since is not None and now - since > BLOCKED_S
        if blocked == self._told:
            return None
        self._told = blocked
        return blocked

    def _work(self) -> None:
        begun = time.monotonic() + self._offset_s
        while not self._end.is_set():
            self._since = time.monotonic()
            try:
                self.fresh.append(self._ask())
            except Gone as error:
                self.gone = error
                return
            except (Exception, SystemExit) as error:  # noqa: BLE001 (the hot loop goes on without this)
                self.failures.append("%s: %s" % (type(error).__name__, error))
            finally:
                self._since = None
                self.first.set()
            past = time.monotonic() - begun
            self._end.wait(begun + (past // self._period_s + 1) * self._period_s - time.monotonic())


class Limiter:
    """Which err lines are told: the same one once a minute, and of all not more than a reader can bear."""

    def __init__(self) -> None:
        self.left_out = 0
        self._told: Dict[Any, float] = {}
        self._tokens, self._at = float(_BURST), time.monotonic()

    def allows(self, *what: Any) -> bool:
        """Whether this one may be told now."""
        now = time.monotonic()
        if now - self._told.get(what, -_REPEAT_S) < _REPEAT_S:
            return False
        self._tokens = min(float(_BURST), self._tokens + (now - self._at) / _EACH_S)
        self._at = now
        if self._tokens < 1:
            self.left_out += 1
            return False
        self._tokens -= 1
        if len(self._told) > 1000:
            self._told.clear()
        self._told[what] = now
        return True


def slower(slow: Callable[[], List[Reading]], energy: Callable[[], List[Reading]]) -> List[Reading]:
    """`slow` and `energy` by one thread, where neither blocks."""
    return [{**a, **b} for a, b in zip(slow(), with_time(energy))]  # noqa: B905 (strict came with 3.10)


def with_time(energy: Callable[[], List[Reading]]) -> List[Reading]:
    """`energy`, and for each counter when it was read, where its source does not say: the middle of the call."""
    begun = time.monotonic_ns()
    found = energy()
    at = (begun + time.monotonic_ns()) // 2
    return [{**one, "energy_at": one.get("energy_at", at)} if "energy_j" in one else one for one in found]


def with_runs(readings: List[Reading], proc: str = PROC) -> List[Reading]:
    """`procs` with each process's name, and the run whose environment it has (None where that is none, or hidden)."""
    for reading in readings:
        for process in reading.get("procs") or ():
            folder = "%s/%s" % (proc, process.get("pid"))
            if process.get("name") is None:
                process["name"] = _read(folder + "/comm").decode("utf-8", "replace").strip() or None
            words = [word for word in _read(folder + "/environ").split(b"\0") if word.startswith(b"EKVI_RUN=")]
            process["run"] = words[0][9:].decode("utf-8", "replace") if words else None
    return readings


def _read(path: str) -> bytes:
    """A file of /proc; empty where the process is gone or not ours to look at."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 20)
    except OSError:
        return b""
    finally:
        os.close(fd)
