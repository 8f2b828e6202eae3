"""A server whose sshd and Docker daemon go away in the middle of a run: LOST, then the truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import images
from tests.hosts.dockerd import BUSYBOX
from tests.hosts.duel import User, eventually, user
from tests.hosts.machines import HOME, Machines

pytestmark = pytest.mark.hosts


@pytest.fixture
def someone(tmp_path: Path, machines: Machines) -> Iterator[User]:
    with user(tmp_path, machines) as made:
        yield made


def test_lost_then_the_truth(someone: User, machines: Machines) -> None:
    rocm = machines.rocm
    rocm.dockerd.load(images.busybox(BUSYBOX))
    gate = rocm.home / "gate"
    gate.mkdir()
    gate.chmod(0o777)
    program = "echo before; while [ ! -e /gate/open ]; do sleep 0.1; done; echo after; echo x >$EKVI_OUT/x; exit 7"
    someone.write_profile(
        "waits",
        {
            "defaults": [
                {"model": "tiny"}, {"data": "synthetic"}, {"training": "cpu"}, {"launcher": "container"},
                {"theme": "nord"}, {"pricing": "none"}, "_self_",
            ],
            "stage": "train",
            "repeats": 1,
            "runner": {"name": "command", "argv": ["sh", "-c", program]},
            "launcher": {"image": BUSYBOX, "pull": "never", "ulimits": {"memlock": None, "stack": None}},
            "servers": {
                "rocm-host": {"address": "rocm-host", "vendor": "amd", "training": "cpu",
                              "mounts": {str(HOME / "gate"): "/gate"}},
            },
        },
    )  # fmt: skip
    cockpit = someone.start("run", "--profile", "waits")
    meta = eventually(lambda: next(iter(someone.metas()), None), 20, someone.said)
    run = str(meta["id"])
    log = someone.runs / run / "stdout.log"
    eventually(lambda: log.exists() and b"before" in log.read_bytes(), 30, someone.said)
    rocm.stop_dockerd(crash=True)
    rocm.kill_sshd()
    eventually(lambda: "LOST" in someone.states(run), 30, someone.said)
    (gate / "open").touch()  # it ends while nobody can see it
    assert cockpit.poll() is None, someone.said()
    rocm.start_sshd()
    rocm.start_dockerd()
    assert cockpit.wait(60) == 1, someone.said()
    ended = someone.meta(run)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 7)
    states = someone.states(run)
    assert states.index("LOST") < len(states) - 1
    assert log.read_bytes() == b"before\nafter\n"
    assert (someone.runs / run / "artifacts" / "x").read_text() == "x\n"
