"""Which time a server has, by pings with four timestamps, while a session lives. No stamp of its lines is rewritten.

A ping bears when it was sent (t0), the answer when the agent read it (t1) and wrote (t2), and it is heard at t3: the
server is ahead by ((t1 - t0) + (t2 - t3)) / 2, wrong by at most half of what the way there and back took. So the ping
with the shortest way of the last ones counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from cockpit.hosts.base import Host, Talk
from cockpit.metrics.clock import DRIFT_PPM

EVERY_S = 10.0
_KEPT = 8  # pings of which the one with the shortest way counts
_FIRST = 4  # pings at a short distance in the beginning: a short run has a point, and seldom a bad one
_FIRST_EVERY_S = 0.25
_ANSWER_S = 10.0
_UNANSWERED = 64
_LINE_BY = 4096
_MOST_NS = 1 << 63
_BEATS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a laptop sleeps


class Reference:
    """The cockpit's time (ns since the epoch): its wall clock when it began, never set since."""

    def __init__(self) -> None:
        self._began = time.time_ns() - time.clock_gettime_ns(_BEATS)

    def __call__(self) -> int:
        """Now."""
        return self._began + time.clock_gettime_ns(_BEATS)


reference = Reference()


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ns: int  # by the server
    offset_ns: int
    rtt_ns: int
    error_ns: int

    def line(self) -> dict[str, Any]:
        """As a line of ekvi.gpu/1, at the moment it was measured."""
        return {
            "type": "clock",
            "t_wall_ns": self.at_ns,
            "offset_s": self.offset_ns / 1e9,
            "error_s": self.error_ns / 1e9,
            "rtt_s": self.rtt_ns / 1e9,
        }

    def agrees(self, other: _Sample) -> bool:
        """Whether both can be true of one clock that nobody set."""
        drift_ns = abs(self.at_ns - other.at_ns) * DRIFT_PPM * 1e-6
        return abs(self.offset_ns - other.offset_ns) <= self.error_ns + other.error_ns + drift_ns


class Pings:
    """One server's pings and what they tell. `now` is the cockpit's time in ns, the same for all servers."""

    def __init__(self, now: Callable[[], int] = reference) -> None:
        self._now = now
        self._next = 0
        self._sent: OrderedDict[int, int] = OrderedDict()
        self._kept: deque[_Sample] = deque(maxlen=_KEPT)
        self._told: _Sample | None = None

    def ping(self) -> dict[str, Any]:
        """The next line to send."""
        self._next += 1
        self._sent[self._next] = self._now()
        if len(self._sent) > _UNANSWERED:
            self._sent.popitem(last=False)
        return {"type": "ping", "id": self._next, "t0_ns": self._sent[self._next]}

    def pong(self, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """The `clock` line that an answer gives, None where it tells nothing new or cannot be true."""
        heard = self._now()
        number, t1, t2 = (line.get(key) for key in ("id", "t1_ns", "t2_ns"))
        sent = self._sent.pop(number, None) if type(number) is int else None
        if sent is None or not (_is_ns(t1) and _is_ns(t2)):
            return None
        rtt = (heard - sent) - (t2 - t1)
        if t2 < t1 or rtt < 0:
            return None  # its clock was set in between, or it makes things up
        error = rtt // 2 + 1 + round((heard - sent) * DRIFT_PPM * 1e-6)
        sample = _Sample((t1 + t2) // 2, ((t1 - sent) + (t2 - heard)) // 2, rtt, error)
        if not all(sample.agrees(old) for old in self._kept):
            self._kept.clear()  # a clock was set: what was before says nothing of now
        self._kept.append(sample)
        best = min(self._kept, key=lambda kept: kept.rtt_ns)
        if best is self._told:
            return None
        self._told = best
        return best.line()


def _is_ns(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST_NS


def here(now: Callable[[], int] = reference) -> dict[str, Any]:
    """The `clock` line of the machine that the cockpit itself runs on."""
    before = now()
    wall = time.time_ns()
    took = now() - before
    return _Sample(wall, wall - before - took // 2, took, took // 2 + 1).line()


async def keep(host: Host, argv: Sequence[str], take: Callable[[Mapping[str, Any]], None]) -> None:
    """Ping the agent's `pong` (`argv`) until cancelled, and hand on the clock lines that come of it.

    Returns when the program ends; raises ServerError where it cannot be talked with, TimeoutError where it is silent.
    The machine that we run on needs no program.
    """
    while host.access.address == "local":
        take(here())
        await asyncio.sleep(EVERY_S)
    async with host.talk(argv) as talk:
        pings = Pings()
        asking = asyncio.ensure_future(_ask(talk, pings))
        rest = b""
        try:
            while True:
                async with asyncio.timeout(EVERY_S + _ANSWER_S):
                    data = await talk.read()
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:_LINE_BY]
                for raw in lines:
                    line = _object(raw)
                    told = pings.pong(line) if line is not None and line.get("type") == "pong" else None
                    if told is not None:
                        take(told)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _ask(talk: Talk, pings: Pings) -> None:
    for number in range(1 << 62):
        async with asyncio.timeout(_ANSWER_S):
            await talk.send(json.dumps(pings.ping()).encode() + b"\n")
        await asyncio.sleep(_FIRST_EVERY_S if number + 1 < _FIRST else EVERY_S)


def _object(raw: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        line = json.loads(raw)
        if isinstance(line, dict):
            return line
    return None
