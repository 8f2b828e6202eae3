"""Nothing is lost: the wire to a server is cut again and again, the cockpit is killed, and every byte arrives once.

The program prints in bursts at full speed; a burst is let go in the middle of each cut, so that there is always
something on its way when the wire breaks and when it mends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts.duel import ENDED, User, eventually, spool, user
from tests.hosts.machines import HOME, Machine, Machines

pytestmark = pytest.mark.hosts

LINES, BURSTS = 200_000, 10
PRINTER = """
import os, sys, time
bursts, lines, gate = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
each = lines // bursts
for burst in range(bursts + 1):
    while not os.path.exists(gate + "." + str(burst)):
        time.sleep(0.01)
    if burst == bursts:
        break
    out = []
    for n in range(burst * each, (burst + 1) * each):
        out.append("line %06d of %d" % (n, lines))
        if n % 100 == 99:
            step = n // 100 + 1
            out.append('@ekvi {"type":"iteration","step":%d,"total":%d,"loss":%.6f,"step_s":0.01,"tokens":64}'
                       % (step, lines // 100, 5.0 / step))
    sys.stdout.write("\\n".join(out) + "\\n")
    sys.stdout.flush()
print("the end", flush=True)
"""


def expected() -> bytes:
    """All that the program prints."""
    lines = []
    for n in range(LINES):
        lines.append(f"line {n:06} of {LINES}")
        if n % 100 == 99:
            step = n // 100 + 1
            wire = f'"step":{step},"total":{LINES // 100},"loss":{5.0 / step:.6f},"step_s":0.01,"tokens":64'
            lines.append(f'@ekvi {{"type":"iteration",{wire}}}')
    return ("\n".join([*lines, "the end"]) + "\n").encode()


@pytest.fixture
def someone(tmp_path: Path, machines: Machines) -> Iterator[User]:
    with user(tmp_path, machines) as made:
        yield made


class Printing:
    """A run of the printer on one machine, and the ways to cut what leads there."""

    def __init__(self, user: User, machine: Machine) -> None:
        self.user, self.machine, self._burst = user, machine, 0
        (machine.home / "printer.py").write_text(PRINTER)
        argv = ["python3", str(HOME / "printer.py"), str(BURSTS), str(LINES), str(HOME / "gate")]
        user.write_profile(
            "lines",
            {
                "defaults": [
                    {"model": "tiny"}, {"data": "synthetic"}, {"training": "cpu"}, {"launcher": "process"},
                    {"theme": "nord"}, {"pricing": "none"}, "_self_",
                ],
                "stage": "train",
                "repeats": 1,
                "runner": {"name": "command", "argv": argv},
                "servers": {machine.name: {"address": machine.name, "training": "cpu"}},
            },
        )  # fmt: skip
        self.cockpit = user.start("run", "--profile", "lines")
        meta = eventually(lambda: next(iter(user.metas()), None), 20, user.said)
        self.run = str(meta["id"])
        self.spool = eventually(lambda: spool(machine, self.run), 20, user.said)

    @property
    def mirror(self) -> Path:
        return self.user.runs / self.run / "stdout.log"

    def mirrored(self) -> int:
        """Bytes that have arrived."""
        return self.mirror.stat().st_size if self.mirror.exists() else 0

    def burst(self) -> None:
        """Let the next burst go."""
        (self.machine.home / f"gate.{self._burst}").touch()
        self._burst += 1

    def printed(self) -> None:
        """Wait until what was let go stands in the spool."""
        end = f"line {self._burst * (LINES // BURSTS) - 1:06}".encode()
        eventually(lambda: end in self.spool.read_bytes()[-4000:], 30, "the program does not print")

    def arrives(self) -> None:
        """Wait until something of the next burst arrived."""
        size = self.mirrored()
        self.burst()
        eventually(lambda: self.mirrored() > size, 60, self.user.said)

    def kill_and_attach(self) -> None:
        """Kill the cockpit in the middle of a burst, and attach a new one."""
        self.arrives()
        assert self.cockpit.poll() is None, self.user.said()
        self.user.kill(self.cockpit)
        self.cockpit = self.user.start("attach", "last")

    def end(self) -> bytes:
        """Let the program end when all else has come; the spool as it was just before."""
        while self._burst < BURSTS:
            self.burst()
        self.printed()
        raw = self.spool.read_bytes()
        self.burst()
        return raw


Cut = tuple[Callable[[Machine], None], Callable[[Machine], None]]
DOWN: Cut = (Machine.link_down, Machine.link_up)
DROP: Cut = (Machine.drop_packets, Machine.accept_packets)
SSHD: Cut = (Machine.kill_sshd, Machine.start_sshd)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param((1.0, 3.0, 1.0, 2.0, 1.0), id="short"),
        pytest.param((1.0, 20.0, 5.0, 20.0, 10.0), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
def test_five_cuts_and_two_kills_cost_nothing(someone: User, machines: Machines, seconds: tuple[float, ...]) -> None:
    printing = Printing(someone, machines.cuda)
    printing.arrives()
    for number, ((cut, mend), length) in enumerate(zip((DOWN, DROP, SSHD, DROP, DOWN), seconds, strict=True)):
        cut(machines.cuda)
        printing.burst()
        printing.printed()
        with pytest.raises(subprocess.TimeoutExpired):  # a cockpit that gives up ends the wait, and fails the test
            printing.cockpit.wait(length)
        mend(machines.cuda)
        if number in (1, 3):
            printing.kill_and_attach()
    raw = printing.end()
    assert printing.cockpit.wait(90) == 0, someone.said()
    mirror = printing.mirror.read_bytes()
    assert mirror.startswith(raw)
    assert mirror == expected()
    assert someone.steps(printing.run) == list(range(1, LINES // 100 + 1))
    states = someone.states(printing.run)
    assert states[-1] == "SUCCEEDED"
    assert not ENDED & set(states[:-1])
