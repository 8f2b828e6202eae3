"""The agent's side of `sense`: starts that process, reads its frames, and notices when it hangs, crashes or babbles.

Nothing here waits: `fds` says what to wait for, `due` until when at most, `step` does what can be done now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections import deque
from typing import Callable, Deque, List, NamedTuple, Optional, Set, Tuple

from ..base import own_argv
from . import frames
from .choose import SYS
from .frames import BACK_OFF_S, STUCK, WELL_S, err_line

STALE_S = 1.0
KILL_S = 30.0  # without any frame
OPEN_S = 90.0  # the same while a source is opened: drivers that sleep take long to wake
END_S = 1.0  # from the end of its stdin to SIGKILL, and from there on as long
DIE_S = 5.0  # after this a killed process that lives is told of
LEFT_OUT_AFTER, WITHIN_S = 3, 600.0
WORDS_BY, ALL_WORDS_BY = 32 << 10, 256 << 10  # of what libraries print: of one process, of all
BATCH = 10  # frames at a time at most
EAGER_S = 0.05  # the same while there is something to wait for
PIPE_BY = 1 << 20
F_SETPIPE_SZ = 1031  # linux/fcntl.h; Python knows it from 3.10 on


class Wanted(NamedTuple):
    """Whose GPUs are asked, how often at most, and which; `source` is MODULE:CLASS of a test's own.

    Frames are read every `batch_s`: to wake costs more than to read.
    """

    vendor: str
    hz: float
    gpus: Optional[Tuple[int, ...]] = None
    sys_root: str = SYS
    source: Optional[str] = None
    batch_s: float = 0.5


class Watch:
    """One `sense` at a time. `about` is what its last H frame said, None before the first.

    `silent` is why no readings come now: starting, blocked, gone, ended; None while they come.
    """

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self.wanted = wanted
        self.about: Optional[frames.Hello] = None
        self.silent: Optional[str] = "starting"
        self._say = say
        self._t0_ns = 0
        self._child: Optional[Child] = None
        self._dying: Optional[Child] = None  # killed: nothing is started until it is gone
        self._start_at: Optional[float] = None
        self._crashes: Deque[Tuple[float, str]] = deque(maxlen=20)
        self._left_out: Set[str] = set()
        self._tries = 0
        self._words_by = 0
        self._last_tick = 0.0
        self._read_at = 0.0

    @property
    def hz(self) -> float:
        """The rate that readings come at."""
        return float(self.about.about["hz"]) if self.about is not None else self.wanted.hz

    @property
    def patience_s(self) -> float:
        """How long after a reading the next one is still awaited."""
        return max(STALE_S, 2.5 / self.hz)

    @property
    def live(self) -> bool:
        """Whether the next tick is to be expected from the child."""
        return self.silent is None and self.about is not None and bool(self.about.about["devices"])

    def start(self, t0_ns: int) -> None:
        """Have the GPUs read on the grid from `t0_ns` on."""
        self._t0_ns = t0_ns
        self.about, self.silent = None, "starting"
        self._last_tick = time.monotonic()
        self._start_at = self._last_tick

    def stop(self) -> None:
        """Have it end; one that does not is killed."""
        self._start_at = None
        if self._child is not None:
            self._child.end()
            ended = self._child.waited(END_S)
            self._drop(self._child, ended)

    def fds(self) -> List[int]:
        """Files that `step` wants to read as soon as they can be; frames wait for `due`."""
        return self._child.fds() if self._child is not None else []

    def due(self) -> float:
        """When `step` is to be called at the latest, by the monotonic clock."""
        if self._child is None:
            at = self._start_at if self._dying is None else None
            return at if at is not None else time.monotonic() + 1.0
        return self._read_at

    def stale_s(self, now: float) -> float:
        """Seconds since the last reading, or since the start."""
        return now - self._last_tick

    def step(self, ready: Tuple[int, ...], at_once: bool = False) -> List[frames.Frame]:
        """Read what came, and see to the process; the frames to tell, in order. Never raises.

        Frames are read when they are due, or `at_once`.
        """
        now = time.monotonic()
        self._read_at = min(self._read_at, now) if at_once else self._read_at
        found: List[frames.Frame] = []
        if self._dying is not None and self._dying.gone():
            self._dying = None
        elif self._dying is not None and now - self._dying.signs > DIE_S:
            self._dying.signs = float("inf")  # said once
            self._say("the process %d of %s does not die: it is left alone" % (self._dying.pid, self._dying.source))
        if self._child is not None:
            self._hear(self._child, ready, now, found)
        if self._child is not None:
            self._judge(self._child, now, found)
        if self._child is None and self._dying is None and self._start_at is not None and now >= self._start_at:
            self._begin(now, found)
        return found

    # --- its life

    def _begin(self, now: float, found: List[frames.Frame]) -> None:
        self._start_at = None
        try:
            self._child = Child(self.wanted, self._t0_ns, sorted(self._left_out), now)
        except OSError as error:
            self._tell(found, "", "ended", "the process that asks the GPUs cannot be started: %s" % error)
            self._start_at = now + BACK_OFF_S[-1]

    def _hear(self, child: Child, ready: Tuple[int, ...], now: float, found: List[frames.Frame]) -> None:
        if child.words in ready:
            self._print(child)
        if now < self._read_at:
            return
        self._read_at = now + (
            min(self.wanted.batch_s, BATCH / self.hz) if self.silent in (None, "none") else EAGER_S
        )
        self._read(child, now, found)

    def _read(self, child: Child, now: float, found: List[frames.Frame]) -> None:
        try:
            for frame in child.read():
                child.signs = now
                self._take(child, frame, now, found)
        except frames.FrameError as error:
            self._tell(found, child.source, "ended", "%s is not to be understood: %s" % (child.source, error))
            child.kill()

    def _take(self, child: Child, frame: frames.Frame, now: float, found: List[frames.Frame]) -> None:
        if isinstance(frame, frames.Opening):
            child.source, child.opening = frame.name, True
            return
        if isinstance(frame, frames.Beat):
            return
        if isinstance(frame, frames.Hello):
            child.opening, self.about = False, frame
            if not frame.about["devices"]:
                self.silent = "none"
        elif isinstance(frame, frames.Tick):
            child.opening, self._last_tick = False, now
            if self.silent not in (None, "starting"):
                self._tell(found, child.source, "recovered", "%s answers again" % child.source)
            self.silent = None
        elif frame.line.get("code") == "gone":
            self.silent = "gone"
        found.append(frame)

    def _judge(self, child: Child, now: float, found: List[frames.Frame]) -> None:
        """Whether it has ended, hangs, or is to be killed."""
        code = child.ended(now)
        if code is not None:
            self._read(child, now, found)  # its last words
            self._drop(child, True)
            self._crashed(child, code, now, found)
            return
        if self.silent is None and now - self._last_tick > self.patience_s:
            self.silent = "blocked"
            self._tell(found, child.source, "blocked", "%s does not answer" % child.source)
        quiet_s = now - child.signs
        if quiet_s > max(OPEN_S if child.opening else KILL_S, 3 * self.patience_s):
            text = "%s did not answer for %d s: its process is killed" % (child.source, quiet_s)
            self._tell(found, child.source, "ended", text)
            self.silent = "ended"
            child.kill()
            child.signs = now
            self._drop(child, False)
            self._again(now)

    def _crashed(self, child: Child, code: int, now: float, found: List[frames.Frame]) -> None:
        how = "ended with code %d" % code
        if code < 0:
            how = "was ended by signal %d%s" % (-code, _name(-code))
        elif code == STUCK:
            how = "ended, since a call of the driver did not come back"
        self._crashes.append((now, child.source))
        lately = [at for at, name in self._crashes if name == child.source and now - at < WITHIN_S]
        if now - child.begun > WELL_S:
            self._tries = 0
        self._again(now)
        then = "it is started again"
        if child.source and len(lately) >= LEFT_OUT_AFTER:
            self._left_out.add(child.source)
            self._tries, self._start_at = 0, now
            then = "that is the third time in ten minutes, so %s is left out" % child.source
        self.silent = "ended"
        text = "the process that asks %s %s; %s" % (child.source or "the GPUs", how, then)
        self._tell(found, child.source, "ended", text)

    def _again(self, now: float) -> None:
        self._start_at = now + BACK_OFF_S[min(self._tries, len(BACK_OFF_S) - 1)]
        self._tries += 1

    def _drop(self, child: Child, ended: bool) -> None:
        """Be done with a process; one that lives still (a driver in an uninterruptible sleep) is only waited for."""
        self._print(child)
        child.close()
        self._child = None
        if not ended:
            self._dying = child

    # --- words

    def _tell(self, found: List[frames.Frame], name: str, code: str, text: str) -> None:
        self._say(text)
        found.append(frames.Err(err_line(name or self.wanted.vendor, code, text)))

    def _print(self, child: Child) -> None:
        """What libraries print goes to the agent's log, as far as it is not too much."""
        data = child.read_words()
        room = max(0, min(WORDS_BY - child.words_by, ALL_WORDS_BY - self._words_by))
        had_room = room > 0
        child.words_by += len(data)
        self._words_by += min(len(data), room)
        for line in data[:room].decode("utf-8", "replace").splitlines():
            if line.strip():
                self._say("%s prints: %s" % (child.source or "a source", line[:500]))
        if had_room and len(data) >= room:
            self._say("%s prints too much: no more of it is kept" % (child.source or "a source"))


def _name(number: int) -> str:
    try:
        return " (%s)" % signal.Signals(number).name
    except ValueError:
        return ""


class Child:
    """The process, its pipe of frames and its pipe of words. Raises OSError where it cannot be started."""

    def __init__(self, wanted: Wanted, t0_ns: int, without: List[str], now: float) -> None:
        self.source = ""
        self.opening = True
        self.begun = self.signs = now
        self.words_by = 0
        self.eof = False
        self._eof_at = 0.0
        self._mute = False  # it has closed its stdout and stderr
        self._reader = frames.Reader()
        words = ["--vendor", wanted.vendor, "--hz", repr(wanted.hz), "--t0-ns", str(t0_ns), "--sys", wanted.sys_root]
        words += ["--gpus", ",".join(map(str, wanted.gpus))] if wanted.gpus is not None else []
        words += ["--without", ",".join(without)] if without else []
        words += ["--source", wanted.source] if wanted.source is not None else []
        self.frames, frames_in = os.pipe()
        with contextlib.suppress(OSError, ValueError):
            fcntl.fcntl(self.frames, F_SETPIPE_SZ, PIPE_BY)
        self.words, words_in = os.pipe()
        try:
            self._process = subprocess.Popen(
                own_argv("gpu.sense", "--frames", str(frames_in), *words),
                stdin=subprocess.PIPE,
                stdout=words_in,
                stderr=words_in,
                pass_fds=(frames_in,),
                start_new_session=True,  # a terminal's Ctrl-C is for the agent
                cwd="/",
            )
        except OSError:
            os.close(self.frames)
            os.close(self.words)
            raise
        finally:
            os.close(frames_in)
            os.close(words_in)
        self.pid = self._process.pid
        os.set_blocking(self.frames, False)
        os.set_blocking(self.words, False)

    def fds(self) -> List[int]:
        """What can be waited for."""
        return [] if self._mute else [self.words]

    def read(self) -> List[frames.Frame]:
        """The frames that came. Raises FrameError."""
        try:
            data = os.read(self.frames, PIPE_BY)
        except BlockingIOError:
            return []
        if not data:
            self.eof, self._eof_at = True, time.monotonic()
        return list(self._reader.feed(data))

    def read_words(self) -> bytes:
        """What was printed, as far as it is there."""
        if self.words < 0 or self._mute:
            return b""
        try:
            data = os.read(self.words, PIPE_BY)
        except BlockingIOError:
            return b""
        self._mute = not data
        return data

    def ended(self, now: float) -> Optional[int]:
        """Its exit code, a signal's number negative; None while it lives. One without frames is killed."""
        code = self._process.poll()
        if code is None and self.eof and now - self._eof_at > 1.0:
            self.kill()
        return code

    def end(self) -> None:
        """Let it end by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def waited(self, seconds: float) -> bool:
        """Whether it has ended within that time, or within as long again once it was killed."""
        for _ in range(2):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                return True
            self.kill()
        return False

    def close(self) -> None:
        """Close our ends of its pipes, of which it ends if it has not."""
        self.end()
        for name in ("frames", "words"):
            fd: int = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)
