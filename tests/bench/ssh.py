"""Budgets over a real sshd: to the journal, fetch, twenty servers. Needs root and what the tests on hosts need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.hosts.duel import User, eventually, twenty_profile, user
from tests.hosts.machines import HOME, LOCK, USER, Machines, Many, two_machines
from tests.hosts.namespace import locked

Row = tuple[str, float, str, str, str]
_SECONDS = 30
_FILE_BY = 500_000_000
_TURNS = 5
# A block every 10 ms, 5 % more than the budget asks for; every hundredth short line is an iteration.
_PRINTER = r"""
import sys, time
rate, width, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
out, total = sys.stdout.buffer, seconds * 100
block = (b"x" * (width - 1) + b"\n") * (rate // 100 - 1)
wire = b'@ekvi {"type":"iteration","step":%d,"total":%d,"loss":1.5,"step_s":0.01}\n'
first, began = time.time(), time.monotonic()
for step in range(1, total + 1):
    out.write(block + wire % (step, total))
    out.flush()
    time.sleep(max(0.0, began + step * 0.01 - time.monotonic()))
print("from %.3f to %.3f" % (first, time.time()), flush=True)
"""
# The spool's bound is lifted: what is measured is more than a run may print by default.
_COCKPIT = """
import sys
import cockpit.cli, cockpit.launch
cockpit.launch.queue.__kwdefaults__["spool_max_by"] = 8 << 30
sys.exit(cockpit.cli.main())
"""


def _stream(someone: User, machines: Machines, rate: int, width: int) -> tuple[float, float, float]:
    """Lines a second from the first byte printed to the last in the mirror, seconds behind, the cockpit's CPU."""
    machines.cuda.settle()
    (machines.cuda.home / "printer.py").write_text(_PRINTER)
    argv = ["python3", str(HOME / "printer.py"), str(rate), str(width), str(_SECONDS)]
    server = {"address": "cuda-host", "training": "cpu"}
    parts: list[Any] = [{"model": "tiny"}, {"data": "synthetic"}, {"training": "cpu"}, {"launcher": "process"}]
    parts += [{"theme": "nord"}, {"pricing": "none"}, "_self_"]
    runner = {"name": "command", "argv": argv}
    profile = {"defaults": parts, "stage": "train", "repeats": 1, "runner": runner, "servers": {"cuda-host": server}}
    someone.write_profile("stream", profile)
    process = subprocess.Popen(
        [sys.executable, "-c", _COCKPIT, "run", "--profile", "stream"],
        env=someone.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    someone.started.append(process)
    run = eventually(lambda: next(iter(someone.metas()), None), 30, "the run did not start")["id"]
    mirror = someone.runs / run / "stdout.log"
    eventually(lambda: mirror.exists() and mirror.stat().st_size, 30, "nothing arrives")
    cpu = psutil.Process(process.pid)
    spent = sum(cpu.cpu_times()[:2])
    whole = rate * _SECONDS * 0.99 * width
    eventually(lambda: mirror.stat().st_size > whole and b"\nfrom " in _tail(mirror), 300, "it does not end")
    ended, spent = time.time(), sum(cpu.cpu_times()[:2]) - spent
    first, last = (float(word) for word in _tail(mirror).split()[-3::2])
    assert process.wait(120) == 0
    steps = someone.steps(run)
    assert steps == list(range(1, _SECONDS * 100 + 1)), "iterations are missing"
    shutil.rmtree(someone.runs / run)
    return rate * _SECONDS / (ended - first), ended - last, spent / (ended - first)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        return file.read()


def _to_journal(someone: User, machines: Machines) -> list[Row]:
    lines, behind, cpu = _stream(someone, machines, 210_000, 24)
    note = (
        f"{_SECONDS} s of 24-byte lines at 210,000/s, a hundred iterations a second; {behind:.1f} s behind at the end"
    )
    wide, late, load = _stream(someone, machines, 25_600, 4096)
    noted = f"{_SECONDS} s of 4 KB lines at 105 MB/s; {late:.1f} s behind at the end"
    return [
        ("SSH: short lines to the journal", lines, "lines/s", "≥ 200,000", note),
        ("SSH: short lines, the cockpit's CPU", cpu * 100, "% of a core", "-", "same"),
        ("SSH: 4 KB lines to the journal", wide * 4096 / 1e6, "MB/s", "≥ 100", noted),
        ("SSH: 4 KB lines, the cockpit's CPU", load * 100, "% of a core", "-", "same"),
    ]


async def _get(machines: Machines, target: Path) -> None:
    """Fetch the file, from no connection to none."""
    from cockpit.core.records import Access
    from cockpit.hosts import connect

    host = connect(Access(address="cuda-host", config=str(machines.ssh_config)))
    await host.get(str(HOME / "big"), target)
    await host.close()


def _scp(machines: Machines, target: Path) -> None:
    argv = ["scp", "-q", "-F", str(machines.ssh_config), f"cuda-host:{HOME}/big", str(target)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def _timed(copy: Callable[[], None], target: Path) -> tuple[float, float]:
    """Seconds, and seconds of CPU at this end, of one copy of the file."""
    spent, began = sum(os.times()[:4]), time.monotonic()
    copy()
    took = time.monotonic() - began
    assert target.stat().st_size == _FILE_BY
    target.unlink()
    return took, sum(os.times()[:4]) - spent


def _fetch(machines: Machines) -> list[Row]:
    """Fetch and scp in turns, so that both see the same machine; in memory, since scp forces nothing to a disk."""
    machines.cuda.settle()
    machines.cuda.exec("sh", "-c", f"head -c {_FILE_BY} /dev/urandom >{HOME}/big; chown {USER} {HOME}/big")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="ekvi-bench-", dir="/dev/shm") as folder:
        target = Path(folder, "copy")
        for _ in range(_TURNS):
            theirs.append(_timed(lambda: _scp(machines, target), target))
            ours.append(_timed(lambda: asyncio.run(_get(machines, target)), target))
    mine, scp = ([statistics.median(column) for column in zip(*side, strict=True)] for side in (ours, theirs))
    ratio = statistics.median(a / b for (a, _), (b, _) in zip(ours, theirs, strict=True))
    note = f"500 MB, summed at both ends: {mine[0]:.2f} s, scp {scp[0]:.2f} s; CPU at this end {mine[1]:.2f} s, "
    note += f"scp {scp[1]:.2f} s; {_TURNS} pairs in turns"
    return [("SSH: fetch against scp", ratio, "x", "≤ 1.10", note)]


async def _connect(many: Many) -> float:
    """Seconds until all of them answered a first command."""
    from cockpit.core.records import Access
    from cockpit.hosts import connect

    hosts = [connect(Access(address=name, config=str(many.ssh_config))) for name in many.names]
    began = time.monotonic()
    answers = await asyncio.gather(*(host.run(["true"]) for host in hosts))
    took = time.monotonic() - began
    assert all(answer.rc == 0 for answer in answers)
    await asyncio.gather(*(host.close() for host in hosts))
    return took


def _ticks(someone: User) -> int:
    return sum((p.read_bytes().count(b'"tick"')) for p in someone.runs.glob("*/telemetry.jsonl"))


def _twenty(someone: User, machines: Machines) -> list[Row]:
    with machines.many(20) as many:
        took = asyncio.run(_connect(many))
        someone.write_profile("twenty", twenty_profile(many))
        someone.call("run", "--profile", "twenty", "--detach", timeout=120)
        cockpit = someone.start("attach", "last")
        eventually(lambda: len(list(someone.runs.glob("*/telemetry.jsonl"))) == 20, 60, someone.said)
        cpu, began = psutil.Process(cockpit.pid), time.monotonic()
        spent, ticks = sum(cpu.cpu_times()[:2]), _ticks(someone)
        with contextlib.suppress(subprocess.TimeoutExpired):
            cockpit.wait(10)
        seconds = time.monotonic() - began
        load, rate = (sum(cpu.cpu_times()[:2]) - spent) / seconds, (_ticks(someone) - ticks) / seconds
        many.machine.home.joinpath("gate").touch()
        assert cockpit.wait(120) == 0, someone.said()
    note = f"following runs on twenty sshds, {rate / 20:.1f} ticks a second from each"
    return [
        (
            "SSH: twenty servers connected",
            took,
            "s",
            "≤ 3",
            "until all answered a command; servers on this machine too",
        ),
        ("SSH: twenty servers followed", load * 100, "% of a core", "≤ 20", note),
    ]


@contextlib.contextmanager
def _somewhere() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ekvi-bench-", dir="/var/tmp") as folder:
        yield Path(folder)


def measure() -> list[Row]:
    """Every budget over SSH; nothing where this machine cannot make the test machines."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("sshd", "dockerd", "iptables"))):
        print("ssh: left out; it needs root and tests/hosts/setup.sh", file=sys.stderr)
        return []
    with locked(LOCK), two_machines() as machines, _somewhere() as folder, user(folder, machines) as someone:
        return [
            *_to_journal(someone, machines),
            *_fetch(machines),
            *_twenty(someone, machines),
        ]
