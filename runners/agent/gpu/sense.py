"""The process that asks the drivers: what crashes, hangs or prints in there ends or stops this process alone.

Opens the first source that can be opened, reads it on the grid t0 + k / hz that the agent has too, and writes frames.
Only the main thread writes; what may block is asked by threads of its own (`slow`, `static`, `energy`) and goes along
with the next tick. The end of stdin ends it, whatever it is at: by SIGIO, which no lock of the interpreter keeps off.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import signal
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, List, NoReturn, Optional, Sequence, Tuple

from . import frames
from .choose import SYS, Maker, makers, numbers
from .frames import BACK_OFF_S, STUCK, WELL_S, Grid, err_line
from .loops import Limiter, Loop, slower, with_runs, with_time
from .source import DEVICE_KEYS, FAILED, HOT, NOT_FOUND, Reading, Source, SourceError

FIRST_S = 1.0  # how long the hello waits for the first answers, whose reasons stand in it
BEAT_S = 5.0
SLOW_S, STATIC_S, ENERGY_S = 1.0, 10.0, 1.0
NONE_HZ = 2.0  # without a source only the machine itself is told of
MOST_WAITING = 100  # err lines that wait for room in the pipe


class Sense:
    """The sources in their order, read one at a time. `gpus` are the indices that are wanted, None for all."""

    def __init__(
        self, order: List[Maker], vendor: str, writer: frames.Writer, gpus: Optional[Tuple[int, ...]] = None
    ) -> None:
        self.order = order
        self.vendor = vendor
        self.gpus = gpus
        self._writer = writer
        self._fates: Dict[str, Dict[str, Any]] = {}
        self._limiter = Limiter()
        self._errs: Deque[bytes] = deque(maxlen=MOST_WAITING)
        self._told = b""  # the last hello

    def leave_out(self, names: Sequence[str]) -> None:
        """Try these sources no more: their process ended too often."""
        for name in names:
            self._fate(name, FAILED, "its process ended again and again, so it was left out")
        self.order = [maker for maker in self.order if maker.name not in names]

    def work(self, asked_hz: float, t0_ns: int) -> NoReturn:
        """Read, for ever; `t0_ns` is a moment of CLOCK_MONOTONIC."""
        at = tries = 0  # `tries` counts since the source at `at` was gone
        while True:
            if at >= len(self.order):
                self._hello(None, min(asked_hz, NONE_HZ))
                at = tries = 0
                self._pause(BACK_OFF_S[-1])
                continue
            source = self._opened(self.order[at])
            if source is None and tries == 0:
                at += 1  # it never worked here
                continue
            if source is not None:
                begun = time.monotonic()
                self._serve(source, min(asked_hz, source.most_hz), t0_ns)
                tries = 0 if time.monotonic() - begun >= WELL_S else tries
            tries += 1
            if tries > len(BACK_OFF_S):
                at, tries = at + 1, 0
            else:
                self._pause(BACK_OFF_S[tries - 1])

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._writer.write(frames.BEAT)
            self._flush_errs()
            time.sleep(max(0.0, min(BEAT_S, until - time.monotonic())))

    # --- opening

    def _opened(self, maker: Maker) -> Optional[Source]:
        """The source, open, or None and its fate noted."""
        self._writer.write(frames.opening(maker.name))
        source: Optional[Source] = None
        try:
            source = maker.make()
            source.open()
        except SourceError as error:
            self._fate(maker.name, error.code, error.text + (" (%s)" % error.mend if error.mend else ""))
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a library may do anything)
            self._fate(maker.name, FAILED, _words(error))
        else:
            if source.devices:
                self._fate(maker.name, None, None, source.version)
                return source
            self._fate(maker.name, NOT_FOUND, "it shows no GPU")
        if source is not None:
            _close(source)
        return None

    def _fate(self, name: str, code: Optional[str], text: Optional[str], version: Optional[str] = None) -> None:
        fate = {"name": name, "ok": code is None, "version": version, "code": code, "text": text}
        if code is not None and self._told:
            self._err(name, code, "%s cannot be used: %s" % (name, text))
        self._fates[name] = fate

    def _hello(self, source: Optional[Source], hz: float) -> None:
        """Tell which sources and devices there are, where that is not what was told last."""
        devices = []
        for device, reasons in zip(source.devices, source.reasons) if source is not None else ():  # noqa: B905
            known = {field: list(why) for field, why in dict(reasons.known).items()}  # threads may add to it
            reasons.new()
            if self._wants(device["index"]):
                devices.append({**dict.fromkeys(DEVICE_KEYS), **device, "unavailable": known})
        about = {"backend": source.name if source is not None else "none", "vendor": self.vendor}
        frame = frames.hello({**about, "sources": list(self._fates.values()), "devices": devices, "hz": hz})
        while frame != self._told:
            if self._writer.write(frame):
                self._told = frame
            else:
                time.sleep(0.05)  # nothing can be understood without it

    def _wants(self, index: int) -> bool:
        return self.gpus is None or index in self.gpus

    # --- reading

    def _serve(self, source: Source, hz: float, t0_ns: int) -> None:
        """Read one source until it is gone, and close it."""
        loops = [Loop("static", lambda: with_runs(source.static()), STATIC_S, 0.7 / hz)]
        if source.energy_apart:
            loops.append(Loop("slow", source.slow, SLOW_S, 0.5 / hz))
            loops.append(Loop("energy", lambda: with_time(source.energy), ENERGY_S, 0.3 / hz))
        else:
            loops.append(Loop("slow", lambda: slower(source.slow, source.energy), SLOW_S, 0.5 / hz))
        try:
            self._read(source, loops, hz, t0_ns)
        except BrokenPipeError:
            os._exit(0)  # nobody listens any more
        except SourceError as error:
            why = error.text
        except (Exception, SystemExit) as error:  # noqa: BLE001 (broken, as far as we can know)
            why = _words(error)
        self._err(source.name, "gone", "%s does not answer any more: %s; it is opened again" % (source.name, why))
        self._flush_errs()
        for loop in loops:
            loop.end()
        if not all(loop.joined(FIRST_S) for loop in loops):
            sys.stderr.write("a call of %s does not come back: this process ends\n" % source.name)
            sys.stderr.flush()
            os._exit(STUCK)
        _close(source)

    def _read(self, source: Source, loops: List[Loop], hz: float, t0_ns: int) -> NoReturn:
        """The hot loop. Raises Gone, or whatever a broken source raises."""
        for loop in loops:
            loop.start()
        source.hot()  # the first answers give the reasons that stand in the hello
        until = time.monotonic() + FIRST_S
        for loop in loops:
            loop.first.wait(max(0.0, until - time.monotonic()))
        self._hello(source, hz)
        carried: Dict[int, Reading] = {}
        grid, looked = Grid(hz, t0_ns), time.monotonic()
        sent = at = grid.now()
        while True:
            grid.wait(at + 1)
            mono, wall, at = time.monotonic_ns(), time.time_ns(), grid.now()
            readings = source.hot()
            took = time.monotonic_ns() - mono
            if took > grid.period_ns:  # what was read is as old as its end, not as its beginning
                mono, wall, at = mono + took, wall + took, grid.now()
            rows = self._rows(source, loops, readings, carried)
            if self._writer.write(frames.tick(mono, wall, max(0, at - sent - 1), rows)):
                sent = at
                carried.clear()
            if mono / 1e9 - looked >= 1.0:
                looked = mono / 1e9
                self._look(source, loops, looked)
            if self._errs:
                self._flush_errs()

    def _rows(
        self, source: Source, loops: List[Loop], readings: List[Reading], carried: Dict[int, Reading]
    ) -> Dict[int, Reading]:
        """What a frame tells of each device; `carried` is what the loops said and no frame has told yet."""
        for loop in loops:
            if loop.fresh:
                for device, reading in zip(source.devices, loop.fresh.popleft()):  # noqa: B905
                    carried.setdefault(device["index"], {}).update(reading)
        if len(readings) != len(source.devices):
            raise ValueError("%d readings of %d devices" % (len(readings), len(source.devices)))
        rows = {}
        for device, reading in zip(source.devices, readings):  # noqa: B905
            index = device["index"]
            if self._wants(index):
                rows[index] = {"index": index, **_UNKNOWN, **reading, **carried.get(index, _NOTHING)}
        return rows

    # --- words

    def _look(self, source: Source, loops: List[Loop], now: float) -> None:
        """Once a second: the driver's events, reasons that came since the hello, what the loops met."""
        self._events(source)
        for device, reasons in zip(source.devices, source.reasons):  # noqa: B905
            for field, code, text in reasons.new():
                self._err(source.name, code, text, index=device["index"], field=field)
        for loop in loops:
            if loop.gone is not None:
                raise loop.gone
            while loop.failures:
                self._err(source.name, FAILED, "%s: %s" % (loop.name, loop.failures.popleft()))
            blocked = loop.news(now)
            if blocked is not None:
                code, words = ("blocked", "has not come back") if blocked else ("recovered", "comes back again")
                self._err(source.name, code, "%s of %s %s" % (loop.name, source.name, words), loop=loop.name)
        if self._limiter.left_out and len(self._errs) < MOST_WAITING:
            text = "%d more lines were left out" % self._limiter.left_out
            self._limiter.left_out = 0
            self._errs.append(frames.err(err_line(source.name, FAILED, text)))

    def _events(self, source: Source) -> None:
        for event in source.events():
            if self._wants(event.get("index", -1)) or event.get("index") is None:
                text = str(event.get("text") or event.get("event"))
                self._err(source.name, "event", text, **{k: event.get(k) for k in ("index", "event", "value")})

    def _err(self, name: str, code: str, text: str, **more: Any) -> None:
        if self._limiter.allows(name, code, text, *more.values()):
            self._errs.append(frames.err(err_line(name, code, text, **more)))

    def _flush_errs(self) -> None:
        while self._errs and self._writer.write(self._errs[0]):
            self._errs.popleft()


_UNKNOWN: Reading = dict.fromkeys(HOT)
_NOTHING: Reading = {}


def _words(error: BaseException) -> str:
    return "%s: %s" % (type(error).__name__, error)


def _close(source: Source) -> None:
    try:
        source.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (it is done with)
        sys.stderr.write("%s does not close: %s\n" % (source.name, _words(error)))


def end_with_stdin() -> None:
    """Let the end of stdin end this process, also while a library holds the interpreter's lock."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0] and not os.read(0, 1):
        os._exit(0)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Called by the agent (gpu/watch.py); `--source MODULE:CLASS` is for tests, in place of the vendor's sources."""
    parser = argparse.ArgumentParser(prog="sense", description="Asks the drivers of GPUs, and writes frames.")
    parser.add_argument("--vendor", required=True)
    parser.add_argument("--frames", type=int, required=True, help="the open file that frames go to")
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--t0-ns", type=int, default=0)
    parser.add_argument("--gpus", type=numbers)
    parser.add_argument("--sys", default=SYS)
    parser.add_argument("--without", default="", help="sources to leave out, with commas")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    end_with_stdin()
    out = os.dup(args.frames)
    if args.frames > 2:
        os.close(args.frames)
    os.dup2(2, 1)  # what a library prints is no frame
    sensing = Sense(makers(args.vendor, args.sys, args.source), args.vendor, frames.Writer(out), args.gpus)
    sensing.leave_out([name for name in args.without.split(",") if name])
    try:
        sensing.work(args.hz, args.t0_ns or time.monotonic_ns())
    except (BrokenPipeError, KeyboardInterrupt):
        return 0
