"""`build` and `shell` on two servers over SSH, where the user is not root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts import images
from tests.hosts.dockerd import PYTHON
from tests.hosts.duel import User
from tests.hosts.engines import base_image, shelf
from tests.hosts.machines import Machines
from tests.hosts.namespace import wait_for
from tests.hosts.test_build_shell import Controlling

pytestmark = pytest.mark.hosts

BASE = "ekvi-test/far-base:1"
LAUNCHER = {
    "kind": "container",
    "base_image": BASE,
    "build_args": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/good"},
    "ulimits": {"memlock": None, "stack": None},
}
GROUPS = ("model: tiny", "data: synthetic", "runner: smoke", "theme: nord", "pricing: none")


@pytest.fixture
def user(machines: Machines, tmp_path: Path) -> User:
    found = User(tmp_path, machines)
    servers = {m.name: {"address": m.name, "vendor": m.kind, "training": "cpu"} for m in machines.both}
    defaults = [dict([g.split(": ")]) for g in GROUPS]
    found.write_profile(
        "far", {"defaults": [*defaults, "_self_"], "stage": "train", "servers": servers, "launcher": LAUNCHER}
    )
    return found


def test_both_servers_build_at_once(user: User, machines: Machines) -> None:
    for machine in machines.both:
        machine.dockerd.load(images.python(PYTHON))
        base_image(machine.dockerd, BASE, torch=True, shelves={"good": shelf()})
    process = user.start("build", "--profile", "far", "--output", "json")
    assert process.wait(100) == 0, user.said()
    rows = json.loads((user.home / "out.txt").read_text())["servers"]
    assert [r["server"] for r in rows] == ["cuda-host", "rocm-host"]
    for row, machine, kind in zip(rows, machines.both, ("cuda", "rocm"), strict=True):
        assert row["image"].startswith(f"ekvi-cockpit/{kind}:")
        there = machine.dockerd.run("image", "inspect", "--format", "{{.Id}}", row["image"]).stdout.strip()
        assert row["image_id"] == there
    assert "cuda-host: " in user.said()
    assert "rocm-host: " in user.said()


def test_a_shell_there_is_like_a_run_and_goes_with_its_terminal(user: User, machines: Machines) -> None:
    machines.rocm.dockerd.load(images.python(PYTHON))
    words = ["shell", "--profile", "far", "--server", "rocm-host", f"launcher.image={PYTHON}"]
    with Controlling(words, user.env, (90, 30)) as terminal:
        terminal.until("/ekvi/run #")
        terminal.keys("hostname; ls /dev/kfd; touch /ekvi/out/mine; echo rea''dy\n")
        terminal.until("ready")
        assert b"rocm-host" in terminal.output
        assert b"No such file" not in terminal.output
        terminal.resize(70, 22)
        since = len(terminal.output)
        wait_for(lambda: _sized(terminal, since, b"22 70"), 15, "the size does not arrive")
        terminal.hang_up()
        terminal.process.wait(30)
    wait_for(lambda: not machines.rocm.dockerd.run("ps", "-aq").stdout, 30, "its container stays")
    shells = machines.rocm.home / ".local/state/ekvi-cockpit"
    wait_for(lambda: not list(shells.glob("*/shells/*")), 30, "its folder stays")


def _sized(terminal: Controlling, since: int, size: bytes) -> bool:
    terminal.keys("stty size\n")
    terminal.pump(0.3)
    return size in terminal.output[since:]
