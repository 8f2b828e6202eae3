"""Telemetry on disk: schema ekvi.gpu/1, numbered ticks in segments that are thinned as they grow old.

`seq` counts the grid points of one run from 0, over all segments and agents: a point that nobody took stands in a gap
line. A line that the disk refuses is written first when there is room; the ticks meanwhile become a gap.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .base import boot_id, free_by
from .files import LineFile, read_whole_lines
from .segments import SEGMENT_BY, Keeper, segment_path, segments_of
from .spool import MARGIN_BY

KEEP_BY = 256 << 20
LATE, AWAY, NO_SPACE = "late", "the agent was away", "no space left on the disk"
_MOST_WAITING = 64  # lines that a full disk holds up; what comes then is dropped
_TAIL_BY = 64 << 10
_PLENTY_BY, _SURE_S = 256 << 20, 1.0

Now = Callable[[], Tuple[int, int]]


def now_ns() -> Tuple[int, int]:
    """CLOCK_MONOTONIC and the wall clock, in ns."""
    return time.monotonic_ns(), time.time_ns()


class Ticks:
    """Numbers ticks and says what is missing. A subclass says where lines go, by `_room` and `_put`.

    `hello` is what the agent says of itself and the machine, without its time; `hz` how many ticks a second has.
    """

    def __init__(self, hello: Dict[str, Any], hz: float, now: Now = now_ns) -> None:
        self.hz = hz
        self._now = now
        self._hello = dict(hello)
        self._seq = 0  # of the next tick
        self._missed_from: Optional[int] = None
        self._why = ""
        self._begun = False
        self._space = _Room()

    def hello(self, hello: Dict[str, Any]) -> None:
        """Say hello again: the source or the devices have changed."""
        self._hello = dict(hello)
        self._put(_encoded(self._greeting()))

    def tick(
        self, t_mono_ns: int, t_wall_ns: int, late: int, devices: Dict[int, bytes], host: Optional[Dict[str, Any]]
    ) -> None:
        """Keep one sample; `late` grid points before it were passed over.

        `devices` holds the JSON of each device by its index, which is written as it is; `host` is None where the
        machine's values are not in this tick.
        """
        if late > 0 and self._begun:
            self._miss(late, LATE)
        self._begun = True
        if not self._room():
            self._miss(1, NO_SPACE)
            return
        self._tell_missed()
        line = b'{"type":"tick","seq":%d,"t_mono_ns":%d,"t_wall_ns":%d,"devices":[%s]' % (
            self._seq,
            t_mono_ns,
            t_wall_ns,
            b",".join(devices[index] for index in sorted(devices)),
        )
        if host is not None:
            line += b',"host":' + json.dumps(host, separators=(",", ":")).encode()
        self._seq += 1
        self._put(line + b"}\n")

    def line(self, obj: Dict[str, Any]) -> None:
        """Keep a line that has no number (an `err`); dropped where the disk is full."""
        if self._room():
            self._tell_missed()
            self._put(_encoded(obj))

    def close(self) -> None:
        """Say what is missing at the end."""
        self._tell_missed()

    def _put(self, line: bytes) -> None:
        """Write one whole line, or hold it until there is room."""
        raise NotImplementedError

    def _room(self) -> bool:
        """Whether a tick may be written now."""
        return True

    def _greeting(self) -> Dict[str, Any]:
        return {**self._hello, "t_wall_ns": self._now()[1]}

    def _miss(self, count: int, why: str) -> None:
        if count <= 0:
            return
        if self._missed_from is not None and why != self._why:
            self._tell_missed()
        if self._missed_from is None:
            self._missed_from, self._why = self._seq, why
        self._seq += count

    def _tell_missed(self) -> None:
        if self._missed_from is not None:
            gap = {"type": "gap", "from_seq": self._missed_from, "to_seq": self._seq - 1, "reason": self._why}
            self._missed_from = None
            self._put(_encoded(gap))

    def _resume(self, lines: List[Dict[str, Any]], first_seq: int) -> None:
        """Continue the numbers of the agent before, whose last lines these are, and say how long nobody sampled."""
        self._seq = first_seq
        at, since = first_seq, None  # the number that was due at a moment, and that moment
        for line in lines:
            kind = line.get("type")
            last = line.get({"tick": "seq", "gap": "to_seq"}.get(str(kind), ""))
            if isinstance(last, int):
                self._seq = max(self._seq, last + 1)
            if kind == "tick" or (kind == "hello" and since is None):
                at, since = (self._seq - 1, line) if kind == "tick" else (self._seq, line)
        if since is not None:
            boots = [line["boot_id"] for line in lines if line.get("type") == "hello" and line.get("boot_id")]
            self._begun = True
            self._miss(at + self._ticks_since(since, boots[-1] if boots else None) - self._seq, AWAY)

    def _ticks_since(self, line: Dict[str, Any], boot: Optional[str]) -> int:
        """Ticks that fell due since `line`: by the monotonic clock within one boot, else by the wall clock."""
        mono, wall = self._now()
        then = line.get("t_mono_ns")
        if isinstance(then, int) and boot is not None and boot == self._hello.get("boot_id", boot_id()):
            return int((mono - then) / 1e9 * self.hz)
        then = line.get("t_wall_ns")
        return int((wall - then) / 1e9 * self.hz) if isinstance(then, int) else 0


class PlainTicks(Ticks):
    """One file without segments or bound, for a sampling by hand; an existing one is continued."""

    def __init__(self, path: str, hello: Dict[str, Any], hz: float, now: Now = now_ns) -> None:
        super().__init__(hello, hz, now)
        self._lines = LineFile(path)
        self._lines.flush()
        past = read_whole_lines(path, tail_by=_TAIL_BY)
        if past:
            self._resume(past, 0)
        self.hello(hello)
        self._tell_missed()

    def close(self) -> None:
        """Say what is missing at the end, and close."""
        super().close()
        self._lines.close()

    def _put(self, line: bytes) -> None:
        if len(self._lines.pending) < _MOST_WAITING:
            self._lines.append_line(line)

    def _room(self) -> bool:
        return self._space.left(self._lines)


class TickFile(Ticks):
    """A run's telemetry: `telemetry.<first_seq>.jsonl` in `run_dir`, bounded by `keep_by` bytes in all.

    Continues where the agent before left off. Old segments are thinned in a thread of their own (`background`), so
    that no tick waits for them.
    """

    def __init__(
        self,
        run_dir: str,
        hello: Dict[str, Any],
        hz: float,
        keep_by: int = KEEP_BY,
        now: Now = now_ns,
        background: bool = True,
    ) -> None:
        super().__init__(hello, hz, now)
        self.run_dir = run_dir
        self.segment_by = max(1, min(SEGMENT_BY, keep_by // 8))
        self._keeper = Keeper(run_dir, keep_by, self.segment_by, background)
        found = segments_of(run_dir)
        if not found:
            self._open(0)
            return
        self._first = found[-1]
        self._lines = LineFile(segment_path(run_dir, self._first))
        self._lines.flush()
        past = self._past()
        self._keeper.begin(found[:-1])
        self._resume(past, self._first)
        if past and past[-1].get("type") == "segment" and len(past) > 1:  # killed between closing and opening
            self._keeper.add(self._first, self._lines.size)
            self._lines.close()
            missed, self._missed_from = self._missed_from, None
            self._open(self._seq if missed is None else missed)
            self._missed_from = missed
        else:
            if not past:
                self._put(_encoded({"type": "segment", "first_seq": self._first}))
            self._put(_encoded(self._greeting()))
        self._tell_missed()

    def tick(
        self, t_mono_ns: int, t_wall_ns: int, late: int, devices: Dict[int, bytes], host: Optional[Dict[str, Any]]
    ) -> None:
        """Keep one sample; see Ticks.tick. A segment that is full by it is closed."""
        super().tick(t_mono_ns, t_wall_ns, late, devices, host)
        full = self._lines.size >= self.segment_by and self._seq > self._first
        if full and self._missed_from is None and not self._lines.pending:
            self._put(_encoded({"type": "segment", "first_seq": self._seq}))
            if not self._lines.pending:
                self._lines.close()
                self._keeper.add(self._first, self._lines.size)
                self._open(self._seq)

    def line(self, obj: Dict[str, Any]) -> None:
        """Keep a line that has no number; dropped where the disk is full or the segment holds little else."""
        if self._lines.size < 2 * self.segment_by:
            super().line(obj)

    def close(self) -> None:
        """Say what is missing at the end, and close."""
        super().close()
        self._keeper.close()
        self._lines.close()

    def _open(self, first_seq: int) -> None:
        self._first = first_seq
        self._lines = LineFile(segment_path(self.run_dir, first_seq))
        self._put(_encoded({"type": "segment", "first_seq": first_seq}))
        self._put(_encoded(self._greeting()))

    def _past(self) -> List[Dict[str, Any]]:
        """The last lines of the last segment: with a tick among them where it has any."""
        past = read_whole_lines(self._lines.path, tail_by=_TAIL_BY)
        if not any(line.get("type") == "tick" for line in past) or not any(line.get("boot_id") for line in past):
            past = read_whole_lines(self._lines.path)
        return past

    def _put(self, line: bytes) -> None:
        if len(self._lines.pending) < _MOST_WAITING:
            self._lines.append_line(line)

    def _room(self) -> bool:
        return self._space.left(self._lines)


class _Room:
    """Whether nothing waits to be written, and what is left of the disk does not belong to the states."""

    def __init__(self) -> None:
        self._sure_until = 0.0

    def left(self, lines: LineFile) -> bool:
        """Ask the disk; where there is plenty, once a second: less than the margin is written until then."""
        try:
            if not lines.flush():
                return False
            now = time.monotonic()
            if now >= self._sure_until:
                free = free_by(lines.path)
                self._sure_until = now + _SURE_S if free > _PLENTY_BY else 0.0
                return free > MARGIN_BY
        except OSError:
            return False
        return True


def _encoded(obj: Dict[str, Any]) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode() + b"\n"
