"""`telemetry`: the sensors of a profile's servers, live and without a run; recorded, played again, served."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import Exit, UsageError
from cockpit.core.gpu import news
from cockpit.core.text import json_line, printable

if TYPE_CHECKING:
    from cockpit.engine.record import Recorder
    from cockpit.engine.watch import Machine

_PAINTS_HZ = 4.0
_PLAIN_S = 1.0


def telemetry(args: argparse.Namespace) -> int:
    """Watch until Ctrl-C, or for --seconds; exit 3 where a server refused, or none was ever reached."""
    _check(args)
    return asyncio.run(_replay(args) if args.replay else _watch(args))


def _check(args: argparse.Namespace) -> None:
    if args.replay:
        for name, given in (("--record", args.record), ("--profile", args.profile), ("--servers", args.servers)):
            if given:
                raise UsageError(f"--replay plays what was recorded: {name} has no place beside it.")
    elif not args.profile and not args.servers:
        hint = "--profile P, or --servers A,B for server files by name (`ekvi-cockpit servers list` shows them)."
        raise UsageError("`telemetry` needs to know which servers.", hint=hint)
    for name, number in (("--seconds", args.seconds), ("--hz", args.hz), ("--speed", args.speed)):
        if number is not None and not number > 0:
            raise UsageError(f"{name} {number:g}: it must be above 0.")


async def _watch(args: argparse.Namespace) -> int:
    from cockpit.engine.record import Recorder
    from cockpit.engine.sensors import chosen
    from cockpit.engine.watch import REFUSED, watch
    from cockpit.hosts import connect

    watched, temp_c = await asyncio.to_thread(chosen, args.profile, args.overrides, args.servers, args.hz)
    temp_c = args.alarm_temp if args.alarm_temp is not None else temp_c
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(Recorder(args.record)) if args.record else None
        face = _face(args, watched, temp_c, recorder)
        if args.serve:
            stack.enter_context(_serve(args.serve, watched))
        with face:
            await _until_ctrl_c(watch(watched, connect, face, seconds=args.seconds))
    if any(machine.state == REFUSED for machine in watched) or not any(machine.reached for machine in watched):
        return int(Exit.SERVER)
    return int(Exit.OK)


async def _replay(args: argparse.Namespace) -> int:
    from cockpit.engine.record import play, recorded

    watched = await asyncio.to_thread(recorded, args.replay)
    with contextlib.ExitStack() as stack:
        face = _face(args, list(watched.values()), args.alarm_temp, None)
        if args.serve:
            stack.enter_context(_serve(args.serve, list(watched.values())))
        with face:
            await _until_ctrl_c(play(args.replay, watched, face, speed=args.speed or 1.0))
    return int(Exit.OK)


async def _until_ctrl_c(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` until it ends or somebody presses Ctrl-C, which is how a watch is meant to end."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    seen: list[bool] = []

    def note() -> None:
        seen.append(True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note)
    try:
        await task
    except asyncio.CancelledError:
        if not seen:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _serve(where: str, watched: Sequence[Machine]) -> Any:
    from cockpit.telemetry.openmetrics import address, serve

    host, port = address(where)
    server = serve(watched, host, port)
    sys.stderr.write(f"OpenMetrics on http://{host if ':' not in host else f'[{host}]'}:{server.port}/metrics\n")
    return server


def _face(
    args: argparse.Namespace, watched: Sequence[Machine], temp_c: float | None, recorder: Recorder | None
) -> _Base:
    if args.output == "json":
        return _Json(watched, temp_c, recorder)
    return (_Live if sys.stdout.isatty() else _Plain)(watched, temp_c, recorder)


class _Base:
    """A face: alarms and the record are the same for all. A context manager while it shows something."""

    def __init__(self, watched: Sequence[Machine], temp_c: float | None, recorder: Recorder | None) -> None:
        from cockpit.engine.alarms import Alarms

        self.watched = watched
        self.recorder = recorder
        self.alarms = {machine.name: Alarms(temp_c) for machine in watched}
        self._states: dict[str, str] = {}

    def __enter__(self) -> _Base:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def line(self, machine: Machine, line: Mapping[str, Any]) -> None:
        """Record a line, show it, and tell of alarms."""
        if self.recorder is not None and (trouble := self.recorder.add(machine.name, line)):
            self.say(trouble)
        self.show(machine, line)
        if line.get("type") == "err" and line.get("code") != "event" and (told := news(line)):
            self.news(f"{machine.name}{told[1]}")
        for alarm in self.alarms[machine.name].look(machine.now, line):
            gpu = f" GPU {alarm.index}" if alarm.index is not None else ""
            self.alarm(machine, {"kind": alarm.kind, "index": alarm.index, "over": alarm.over, "t": alarm.t,
                                 "text": alarm.text}, f"{machine.name}{gpu}: {alarm.text}")  # fmt: skip

    def changed(self, machine: Machine) -> None:
        """A machine was reached, lost or refused."""
        before = self._states.get(machine.name)
        self._states[machine.name] = machine.state
        if machine.state == "live" and before == "away":
            self.say(f"{machine.name} is back.")
        elif machine.why:
            how = "is away" if machine.state == "away" else "cannot be watched"
            mend = "This tries until it answers." if machine.state == "away" else machine.mend or ""
            self.say(f"{machine.name} {how}: {machine.why} {mend}".rstrip())

    def show(self, machine: Machine, line: Mapping[str, Any]) -> None:
        """One line."""

    def news(self, text: str) -> None:
        """What became of a machine's sensors; events are alarms."""
        self.say(text)

    def alarm(self, machine: Machine, said: Mapping[str, Any], text: str) -> None:
        """Something to be told at once."""
        self.say(f"ALARM {text}" if not said["over"] else text)

    def say(self, text: str) -> None:
        """A sentence."""
        sys.stderr.write(printable(text) + "\n")


class _Json(_Base):
    """JSON Lines on stdout, each with its `server`; the watch's own are of type `alarm` and `state`."""

    def show(self, machine: Machine, line: Mapping[str, Any]) -> None:
        self._print({**line, "server": machine.name, "t_recv": time.time()})

    def news(self, text: str) -> None:
        """Its line is on stdout."""

    def alarm(self, machine: Machine, said: Mapping[str, Any], text: str) -> None:
        self._print({"server": machine.name, "t_recv": time.time(), "type": "alarm", **said})

    def changed(self, machine: Machine) -> None:
        super().changed(machine)
        self._print({"server": machine.name, "t_recv": time.time(), "type": "state", "state": machine.state,
                     "why": machine.why})  # fmt: skip

    @staticmethod
    def _print(obj: Mapping[str, Any]) -> None:
        sys.stdout.write(json_line(obj))
        sys.stdout.flush()


class _Plain(_Base):
    """A line a GPU and second, where stdout is no terminal."""

    def __init__(self, watched: Sequence[Machine], temp_c: float | None, recorder: Recorder | None) -> None:
        super().__init__(watched, temp_c, recorder)
        self._next: dict[str, float] = {}

    def show(self, machine: Machine, line: Mapping[str, Any]) -> None:
        from cockpit.report.sensors import plain, words

        if line.get("type") == "hello":
            for text in words(machine):
                self.say(text)
        now = time.monotonic()
        if line.get("type") != "tick" or now < self._next.get(machine.name, 0.0):
            return
        self._next[machine.name] = now + _PLAIN_S
        clock = time.strftime("%H:%M:%S")
        sys.stdout.write("".join(f"{clock} {text}\n" for text in plain(machine, now)))
        sys.stdout.flush()


class _Live(_Base):
    """A table on a terminal that is painted anew a few times a second; alarms stand above it."""

    def __enter__(self) -> _Live:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(
            get_renderable=self._render, console=self._console, refresh_per_second=_PAINTS_HZ, transient=False
        )
        self._live.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._live.__exit__(*args)

    def say(self, text: str) -> None:
        from rich.markup import escape

        self._console.print(f"{time.strftime('%H:%M:%S')} {escape(printable(text))}", highlight=False)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        from cockpit.report import sensors

        now = time.monotonic()
        notes = [text for machine in self.watched for text in sensors.words(machine)]
        return Group(
            sensors.table(self.watched, now, self._console.width),
            *(Text(text, "yellow") for text in notes),
            Text("Ctrl-C leaves", "dim"),
        )
