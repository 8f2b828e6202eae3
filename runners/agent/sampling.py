"""Samplers put together: for a queue, for a file by hand, for whoever listens on stdout."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from .base import AgentError
from .gpu.choose import vendor_of
from .gpu.watch import Wanted, Watch
from .hostread import CpuSource
from .nodepower import NodePower, Redfish, ipmi
from .queuefile import Queue
from .telemetry import Sampler
from .ticks import PlainTicks, TickFile, Ticks

CPU_HZ, GPU_HZ = 2.0, 10.0
LIVE_S = 0.2  # how far behind a stream may be
Say = Callable[[str], None]


def of_queue(queue: Queue, agent_id: str, say: Say) -> Sampler:
    """The sampler of a queue's runs, into the segments of their folders."""
    about = queue.telemetry
    chosen = [run.gpus for run in queue.runs]
    gpus = None if None in chosen else tuple(sorted({i for some in chosen for i in some or ()}))
    return Sampler(
        CpuSource(),
        about.hz,
        agent_id,
        lambda run_dir, hello, hz: TickFile(run_dir, hello, hz, about.keep_by),
        watch=None if about.vendor == "cpu" else Watch(Wanted(about.vendor, about.hz, gpus), say),
        node_power=node_power(queue),
        say=say,
    )


def node_power(queue: Queue) -> Optional[NodePower]:
    """The sensor of the whole machine, where the queue names one."""
    about = queue.telemetry.node_power
    if about is None:
        return None
    if about.kind == "ipmi":
        return NodePower("ipmi", ipmi)
    secret = os.path.join(queue.secrets_dir, about.secret)
    redfish = Redfish(about.url, about.user, secret, about.insecure)
    return NodePower("redfish", redfish.read, close=redfish.close)


def wanted(
    vendor: str, hz: Optional[float], gpus: Optional[Tuple[int, ...]], sys_root: str, source: Optional[str] = None
) -> Tuple[float, Optional[Wanted]]:
    """The rate, and what is asked of the GPUs: None on a machine without. `vendor` may be auto."""
    if vendor == "auto":
        vendor = vendor_of(sys_root)
    hz = hz or (CPU_HZ if vendor == "cpu" else GPU_HZ)
    return hz, None if vendor == "cpu" else Wanted(vendor, hz, gpus, sys_root, source)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _sampler(hz: float, about: Optional[Wanted], opener: Callable[[str, Dict[str, Any], float], Ticks]) -> Sampler:
    watch = None if about is None else Watch(about, _say)
    return Sampler(CpuSource(), hz, os.urandom(6).hex(), opener, watch=watch, say=_say)


class _SaidTicks(PlainTicks):
    """A file, and a sentence for whoever started it: what it gets."""

    def hello(self, hello: Dict[str, Any]) -> None:
        super().hello(hello)
        count, tried = len(hello["devices"]), [s for s in hello["sources"] if s.get("text")]
        if count:
            _say("%d GPU%s by %s, %g samples a second" % (count, "s" * (count != 1), hello["backend"], hello["hz"]))
        elif hello["sources"]:
            why = "; ".join("%s: %s" % (s["name"], s["text"]) for s in tried) or "none of them was chosen"
            _say("No GPU is sampled. %s" % why)
        else:
            _say("No GPU was looked for: the machine's own values, %g samples a second" % hello["hz"])


def sample(path: str, hz: float, about: Optional[Wanted], seconds: Optional[float], stop: threading.Event) -> None:
    """Sample into one file until `stop` is set or `seconds` are over; what is sampled is said on stderr."""
    try:  # later a file that cannot be written is waited for: a disk may be full for a while
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as error:
        raise AgentError("--out %s cannot be written: %s." % (path, error.strerror)) from None
    sampler = _sampler(hz, about, _SaidTicks)
    sampler.activate({path: about.gpus if about is not None else None})
    sampler.start()
    stop.wait(seconds)
    sampler.stop()


class Out:
    """Standard output, a whole line at a time, from any thread. `broken` once nobody reads it, or is to any more."""

    def __init__(self) -> None:
        self.broken = threading.Event()
        self._lock = threading.Lock()

    def put(self, line: bytes) -> None:
        """Write a line; after the end of the reader nothing."""
        with self._lock:
            if self.broken.is_set():
                return
            try:
                view = memoryview(line)
                while view and not self.broken.is_set():
                    if select.select([], [1], [], 0.5)[1]:  # a reader that sleeps must not keep us for ever
                        view = view[os.write(1, view[: select.PIPE_BUF]) :]
            except OSError:
                self.broken.set()


class StreamTicks(Ticks):
    """Lines for whoever listens."""

    def __init__(self, out: Out, hello: Dict[str, Any], hz: float) -> None:
        super().__init__(hello, hz)
        self._out = out
        self.hello(hello)

    def _put(self, line: bytes) -> None:
        self._out.put(line)


def stream(hz: float, about: Optional[Wanted], idle_end_s: Optional[float]) -> None:
    """Write lines to stdout, and answer pings, until stdin ends or was silent for `idle_end_s`."""
    out = Out()
    about = None if about is None else about._replace(batch_s=LIVE_S)
    sampler = _sampler(hz, about, lambda path, hello, hz: StreamTicks(out, hello, hz))
    sampler.activate({"": about.gpus if about is not None else None})
    sampler.start()
    answer(out, idle_end_s)
    out.broken.set()
    sampler.stop()


def answer(out: Out, idle_end_s: Optional[float]) -> None:
    """Answer pings on stdin until it ends, or was silent for `idle_end_s`, or nobody reads the answers."""
    rest, heard = b"", time.monotonic()
    while not out.broken.is_set():
        if select.select([0], [], [], 0.5)[0]:
            data = os.read(0, 65536)
            t1 = time.time_ns()
            if not data:
                return
            heard = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest if len(rest) < 65536 else b""
            for line in lines:
                _pong(out, line, t1)
        if idle_end_s is not None and time.monotonic() - heard > idle_end_s:
            return


def _pong(out: Out, line: bytes, t1_ns: int) -> None:
    """The answer to one ping; what is none is only a sign of life."""
    try:
        ping = json.loads(line)
    except ValueError:
        return
    if isinstance(ping, dict) and ping.get("type") == "ping":
        told = {
            "type": "pong",
            "id": ping.get("id"),
            "t0_ns": ping.get("t0_ns"),
            "t1_ns": t1_ns,
            "t2_ns": time.time_ns(),
        }
        out.put(json.dumps(told, separators=(",", ":")).encode() + b"\n")
