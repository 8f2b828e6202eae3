"""The agent's sampler: one thread, one grid t0 + k / hz, the lines of schema ekvi.gpu/1 for every run that is active.

Readings of GPUs come as frames of another process (gpu/watch.py), on the same grid: a tick is written when one comes,
with its stamps and its bytes. Where none comes, or there are no GPUs, ticks stand at the grid's own moments. What is
too late is left out and counted, so that a slow reading shifts nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

from . import TELEMETRY_SCHEMA
from .base import boot_id
from .gpu import frames
from .gpu.frames import Grid
from .gpu.source import HOT
from .gpu.watch import Watch
from .hostread import CpuSource
from .nodepower import NodePower
from .ticks import Ticks

HOST_S = 0.5  # beside GPUs the machine's own values are taken this often
HELLO_S = 3.0  # how long a file waits for the first hello of the GPUs' source
FAILED_S = 1.0  # the pause after a failure of our own
_WAITING = 50  # err lines until then
DRAIN_S = 0.5  # how long the end of a run waits for what was read until then
Gpus = Optional[Tuple[int, ...]]
Opener = Callable[[str, Dict[str, Any], float], Ticks]
_NULLS = b"".join(b',"%s":null' % field.encode() for field in HOT)


class Out:
    """What one run gets: the lines of its `gpus` (None for all). `since` is when it got its first tick, monotonic."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self.from_ns = time.monotonic_ns()  # what was read before is not this run's
        self.file: Optional[Ticks] = None
        self.since: Optional[float] = None
        self.waiting: Deque[Dict[str, Any]] = deque(maxlen=_WAITING)

    def wants(self, index: Any) -> bool:
        """Whether a device, or what concerns all, is for this run."""
        return self.gpus is None or index is None or index in self.gpus

    def line(self, obj: Dict[str, Any]) -> None:
        """An err line, kept until the hello is there."""
        if self.file is None:
            self.waiting.append(obj)
        else:
            self.file.line(obj)


class Sampler:
    """Samples while a run is active. `opener(run_dir, hello, hz)` opens what a run's lines go to.

    `watch` None is a machine without GPUs. `say` takes a sentence for the agent's log.
    """

    def __init__(
        self,
        host: CpuSource,
        hz: float,
        agent_id: str,
        opener: Opener,
        *,
        watch: Optional[Watch] = None,
        node_power: Optional[NodePower] = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.host = host
        self.hz = hz
        self.agent_id = agent_id
        self.watch = watch
        self._opener = opener
        self._node_power = node_power
        self._say = say
        self._outs: Dict[str, Out] = {}
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._ended = False
        self._draining = False
        self._drained = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._sampling = False
        self._grid = Grid(hz, time.monotonic_ns())
        self._at = -1  # the grid's number of the last tick
        self._host_at = 0.0

    def start(self) -> None:
        """Begin sampling in a thread: a slow driver holds up no timeout."""
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self._thread.start()

    def activate(self, wanted: Mapping[str, Gpus]) -> None:
        """Sample for these runs, by folder, and close the files of the others."""
        if wanted.keys() == self._outs.keys():  # only this changes them
            return
        if set(self._outs) - set(wanted):
            self._drain()
        with self._lock:
            for path in set(self._outs) - set(wanted):
                file = self._outs.pop(path).file
                if file is not None:
                    file.close()
            for path in set(wanted) - set(self._outs):
                self._outs[path] = Out(wanted[path])
                if self.watch is None:
                    self._open(path, self._outs[path])
        self._wake()

    def since(self, path: str) -> Optional[float]:
        """When a run got its first tick of this agent (monotonic seconds); None where it has none yet."""
        out = self._outs.get(path)
        return out.since if out is not None else None

    def stop(self) -> None:
        """End the thread and close the files."""
        self.activate({})
        self._ended = True
        self._wake()
        if self._thread is not None:
            self._thread.join(5)
        if self._thread is None or not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _drain(self) -> None:
        """Have frames that came but were not looked at yet told to those that they were taken for."""
        if self.watch is None or self._thread is None or not self._thread.is_alive():
            return
        self._drained.clear()
        self._draining = True
        self._wake()
        self._drained.wait(DRAIN_S)

    # --- the thread

    def _work(self) -> None:
        told = ""
        while not self._ended:
            try:
                self._turn()
            except Exception:  # noqa: BLE001 (the runs go on, and so do we)
                found = traceback.format_exc()
                if found != told:  # a night of the same would fill the disk
                    self._say("the sampler failed, and goes on:\n%s" % found)
                told = found
                time.sleep(FAILED_S)
        self._rest()

    def _turn(self) -> None:
        """Begin or end where runs came or went, wait for what is next, and do it."""
        if bool(self._outs) != self._sampling:
            self._rest() if self._sampling else self._begin()
        ready = self._wait()
        with contextlib.suppress(BlockingIOError):
            if self._wake_read in ready:
                os.read(self._wake_read, 512)
        draining, self._draining = self._draining, False
        if self._sampling and not self._ended:
            self._step(ready, draining)
        if draining:
            self._drained.set()

    def _step(self, ready: Tuple[int, ...], now: bool) -> None:
        """Tell what came; `now`: also frames whose time to be looked at has not come."""
        if self.watch is not None:
            for frame in self.watch.step(ready, now):
                self._take(frame)
        if time.monotonic() >= self._due():
            self._own_tick()

    def _begin(self) -> None:
        self._sampling = True
        self.host.begin()
        self._grid, self._at, self._host_at = Grid(self.hz, time.monotonic_ns()), -1, 0.0
        if self._node_power is not None:
            self._node_power.start()
        if self.watch is not None:
            self.watch.start(self._grid.t0_ns)

    def _rest(self) -> None:
        if self._sampling:
            self._sampling = False
            if self._node_power is not None:
                self._node_power.stop()
            if self.watch is not None:
                self.watch.stop()

    def _wait(self) -> Tuple[int, ...]:
        """The files that can be read, once there are any or something is due."""
        if not self._sampling:
            return tuple(select.select([self._wake_read], [], [])[0])
        until, fds = self._due(), [self._wake_read]
        if self.watch is not None:
            until, fds = min(until, self.watch.due()), fds + self.watch.fds()
        return tuple(select.select(fds, [], [], max(0.0, until - time.monotonic()))[0])

    def _due(self) -> float:
        """When a tick of our own is due: the next grid point, where no reading is to be expected for it."""
        if self.watch is None:
            return self._grid.at_s(self._at + 1)
        if self.watch.live:
            return float("inf")  # the watch says when that is over
        if self.watch.silent == "starting":
            return max(self._grid.at_s(self._at + 1), self._grid.t0_ns / 1e9 + HELLO_S)
        return self._grid.at_s(self._at + 1)

    # --- what came

    def _take(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Hello):
            self._greet()
        elif isinstance(frame, frames.Err):
            with self._lock:
                for out in self._outs.values():
                    if out.wants(frame.line.get("index")):
                        out.line(frame.line)
        elif isinstance(frame, frames.Tick):
            at = self._grid.of(frame.t_mono_ns)
            late, self._at = at - self._at - 1 if self._at >= 0 else frame.late, max(at, self._at)
            if late >= 0:  # else one of our own stands there
                self._tell(frame.t_mono_ns, frame.t_wall_ns, late, frame.devices)

    def _greet(self) -> None:
        """The source or the devices have changed."""
        assert self.watch is not None
        if self.watch.hz != self.hz:
            self.hz = self.watch.hz
            self._grid = Grid(self.hz, self._grid.t0_ns)
            self._at = self._grid.now() if self._at >= 0 else -1
        with self._lock:
            for out in self._outs.values():
                if out.file is not None:
                    out.file.hz = self.hz
                    out.file.hello(self._hello(out))

    def _own_tick(self) -> None:
        """A tick without a reading: of a machine without GPUs, or while their driver says nothing."""
        mono, wall = time.monotonic_ns(), time.time_ns()
        at = self._grid.of(mono)
        late, self._at = max(0, at - self._at - 1), at
        devices: Dict[int, bytes] = {}
        if self.watch is not None and self.watch.about is not None:
            stale = self.watch.stale_s(mono / 1e9)
            for device in self.watch.about.about["devices"]:
                index = device["index"]
                devices[index] = b'{"index":%d,"stale_s":%.1f%s}' % (index, stale, _NULLS)
        self._tell(mono, wall, late, devices)

    def _tell(self, mono: int, wall: int, late: int, devices: Dict[int, bytes]) -> None:
        """One tick to every run, of its devices."""
        host = self._host(mono / 1e9)
        with self._lock:
            for path, out in self._outs.items():
                if mono < out.from_ns:
                    continue
                file = out.file or self._open(path, out)
                if out.since is None:
                    out.since = mono / 1e9
                mine = devices if out.gpus is None else {i: row for i, row in devices.items() if i in out.gpus}
                file.tick(mono, wall, late, mine, host)

    def _host(self, now: float) -> Optional[Dict[str, Any]]:
        if self.watch is not None and now - self._host_at < HOST_S - 0.5 / self.hz:
            return None
        self._host_at = now
        host = self.host.sample()
        if self._node_power is not None:
            host.update(self._node_power.fresh())
            for line in self._node_power.errs():
                with self._lock:
                    for out in self._outs.values():
                        out.line(line)
        return host

    def _open(self, path: str, out: Out) -> Ticks:
        out.file = self._opener(path, self._hello(out), self.hz)
        while out.waiting:
            out.file.line(out.waiting.popleft())
        return out.file

    def _hello(self, out: Out) -> Dict[str, Any]:
        """What the hello line of a run says, but for its time."""
        about: Dict[str, Any] = {
            "backend": self.host.backend,
            "vendor": self.host.vendor,
            "sources": [],
            "devices": [],
        }
        if self.watch is not None:
            about.update(backend="none", vendor=self.watch.wanted.vendor)
            if self.watch.about is not None:
                about.update({key: self.watch.about.about[key] for key in about})
                about["devices"] = [device for device in about["devices"] if out.wants(device["index"])]
        return {
            "type": "hello",
            "schema": TELEMETRY_SCHEMA,
            "agent_id": self.agent_id,
            "boot_id": boot_id(),
            **about,
            "hz": self.hz,
            "host": self.host.describe(),
            "unavailable": dict(self.host.unavailable),
        }
