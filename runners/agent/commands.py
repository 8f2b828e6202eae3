"""What each command does. Every one prints one JSON object, or one sentence on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Sequence

from . import QUEUE_SCHEMA, VERSION, cleaning, daemon, queuefile, sampling, states
from .base import AgentError, is_locked
from .files import Log, read_whole_lines
from .gpu.choose import SYS, VENDORS, numbers
from .queuefile import Queue
from .worker import Worker, take_queue


def run(words: Sequence[str]) -> int:
    """Parse and do a command; its exit code."""
    args = _parser().parse_args(words)
    try:
        code: int = args.act(args)
    except AgentError as error:
        sys.stderr.write("%s\n" % error)
        return 1
    except OSError as error:
        sys.stderr.write("%s: %s.\n" % (error.filename or "The agent failed", error.strerror or error))
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent", description="Works a queue of training runs on this machine.")
    parser.add_argument("--version", action="version", version="ekvi-agent %s (%s)" % (VERSION, QUEUE_SCHEMA))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, act, help_text in (
        ("work", _work, "work the queue here until it is done"),
        ("start", _start, "work the queue detached; returns when it is taken"),
        ("status", _status, "who works the queue, and its runs"),
        ("stop", _stop, "stop the queue, or one run of it"),
        ("clean", _clean, "remove the queue's folder; refused while something runs"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("queue", metavar="Q", help="the queue's folder, WORK/groups/GROUP.KEY")
        command.set_defaults(act=act)
        if name == "stop":
            command.add_argument("--run", help="only this run")
    lister = commands.add_parser("list", help="the queues below a work folder")
    lister.add_argument("work", metavar="WORK", help="the work folder")
    lister.set_defaults(act=_list)
    sampler = commands.add_parser("sample", help="sample this machine into a file until stopped")
    sampler.add_argument("--out", required=True, help="the file to append to")
    sampler.add_argument("--seconds", type=float, help="stop after so many seconds")
    sampler.set_defaults(act=_sample)
    streamer = commands.add_parser("stream", help="sample this machine to stdout until stdin ends")
    streamer.set_defaults(act=_stream)
    for command in (sampler, streamer):
        command.add_argument("--hz", type=float, help="samples a second (default 10, and 2 without GPUs)")
        command.add_argument("--vendor", choices=("auto", *VENDORS), default="auto", help="whose GPUs (default auto)")
        command.add_argument("--gpus", type=_gpus, help="a subset by index: 0-3 or 0,2 (default all)")
        command.add_argument("--sys", default=SYS, help="where sysfs is (default /sys)")
        command.add_argument("--source", help=argparse.SUPPRESS)  # MODULE:CLASS of a test's own
    ponger = commands.add_parser("pong", help="answer pings on stdin until it ends")
    ponger.set_defaults(act=_pong)
    for command in (streamer, ponger):
        command.add_argument("--idle-end", type=float, metavar="S", help="end after so many seconds without a line")
    return parser


def _print(obj: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(obj) + "\n")
    sys.stdout.flush()


# --- work and start


def _work(args: argparse.Namespace) -> int:
    queue = queuefile.load(args.queue)
    _work_queue(queue, echo=True, tell=lambda about: None)
    return 0


def _work_queue(queue: Queue, echo: bool, tell: Callable[[dict[str, Any]], None]) -> None:
    log = Log(queue.file("agent.log"), echo)
    lock = take_queue(queue)
    if lock is None:
        log.say("another agent works %s: nothing to do here" % queue.path)
        tell({"started": False, "already": True, **_who(_agent(queue.path))})
        return
    try:
        Worker(queue, log).work(lambda about: tell({"started": True, "already": False, **_who(about)}))
    except Exception:
        log.say("the agent failed; what it started goes on:\n%s" % traceback.format_exc())
        raise
    finally:
        os.close(lock)


def _start(args: argparse.Namespace) -> int:
    told = _start_queue(queuefile.load(args.queue))
    _print(told)
    if "error" in told:
        sys.stderr.write("%s\n" % told["error"])
        return 1
    return 0


def _start_queue(queue: Queue) -> dict[str, Any]:
    return daemon.detach(queue.file("agent.log"), lambda tell: _work_queue(queue, echo=False, tell=tell))


def _who(about: dict[str, Any]) -> dict[str, Any]:
    return {key: about.get(key) for key in ("pid", "agent_id", "version")}


def _agent(path: str) -> dict[str, Any]:
    """What agent.json says, or nothing."""
    with contextlib.suppress(OSError, ValueError):
        with open(os.path.join(path, "agent.json"), "rb") as f:
            about = json.loads(f.read())
        if isinstance(about, dict):
            return about
    return {}


# --- status, stop, clean


def _status(args: argparse.Namespace) -> int:
    queue = queuefile.load(args.queue)
    alive = is_locked(queue.file("agent.lock"))
    about = _agent(queue.path)
    runs = []
    for spec in queue.runs:
        lines = read_whole_lines(os.path.join(queue.run_dir(spec.run), "states.jsonl"))
        last = lines[-1] if lines else {}
        shown = {key: last.get(key) for key in ("state", "stage", "reason", "exit_code", "signal", "t", "agent_seq")}
        inside = {stage.stage: stage.container.name for stage in spec.stages if stage.container is not None}
        where = {"container": inside.get(str(shown["stage"])), "shim": cleaning.has_shim(queue.run_dir(spec.run))}
        runs.append({"run": spec.run, **shown, **where})
    _print({"alive": alive, "pid": about.get("pid") if alive else None, "agent": about, "runs": runs})
    return 0


def _stop(args: argparse.Namespace) -> int:
    queue = queuefile.load(args.queue)
    names = [spec.run for spec in queue.runs]
    if args.run is not None and args.run not in names:
        raise AgentError("%s has no run %s; its runs are %s." % (queue.path, args.run, ", ".join(names)))
    os.makedirs(queue.file("control"), mode=0o700, exist_ok=True)
    control = queue.file("control", "stop" if args.run is None else "stop." + args.run)
    os.close(os.open(control, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    told = {} if is_locked(queue.file("agent.lock")) or _all_ended(queue) else _start_queue(queue)
    _print({"stopping": names if args.run is None else [args.run], **told})
    return 0


def _all_ended(queue: Queue) -> bool:
    for spec in queue.runs:
        lines = read_whole_lines(os.path.join(queue.run_dir(spec.run), "states.jsonl"))
        if not lines or lines[-1].get("state") not in states.ENDED:
            return False
    return True


def _clean(args: argparse.Namespace) -> int:
    path = queuefile.folder(args.queue)
    queue = queuefile.load(path)
    lock = take_queue(queue)
    if lock is None:
        raise AgentError("%s is being worked (pid %s). Stop it first." % (path, _agent(path).get("pid")))
    try:
        cleaning.clean(queue)
    finally:
        os.close(lock)
    _print({"removed": path})
    return 0


def _list(args: argparse.Namespace) -> int:
    work = os.path.realpath(args.work)
    if not os.path.isdir(work):
        raise AgentError("%s is no folder." % args.work)
    _print({"work": work, "queues": cleaning.queues(work)})
    return 0


# --- sample, stream, pong


def _gpus(text: str) -> tuple[int, ...]:
    try:
        return numbers(text)
    except ValueError:
        raise argparse.ArgumentTypeError("%r is no list of GPUs: write 0-3 or 0,2" % text) from None


def _wanted(args: argparse.Namespace) -> tuple[float, Any]:
    if args.hz is not None and not 0.01 <= args.hz <= 1000:
        raise AgentError("--hz must lie in 0.01..1000.")
    return sampling.wanted(args.vendor, args.hz, args.gpus, args.sys, args.source)


def _sample(args: argparse.Namespace) -> int:
    hz, wanted = _wanted(args)
    if args.seconds is not None and args.seconds < 0:
        raise AgentError("--seconds must not be negative.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sampling.sample(args.out, hz, wanted, args.seconds, stop)
    return 0


def _stream(args: argparse.Namespace) -> int:
    hz, wanted = _wanted(args)
    sampling.stream(hz, wanted, args.idle_end)
    return 0


def _pong(args: argparse.Namespace) -> int:
    sampling.answer(sampling.Out(), args.idle_end)
    return 0
