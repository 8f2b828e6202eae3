"""The agent and podman, which has no daemon: its own monitor keeps a container when everybody else is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.support import gone, numbered, pack, until
from tests.hosts.dockerd import BUSYBOX
from tests.hosts.docks import FOREVER, Dock, storage
from tests.hosts.images import busybox

pytestmark = pytest.mark.hosts

COUNT = (
    "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; until [ -e /ekvi/out/gate ]; do sleep 0.02; done"
)
REST = "; while [ $i -lt 6000 ]; do i=$((i+1)); echo line $i; done"
CONF = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Podman with storage of its own, and what its environment needs on a machine inside another one."""
    with storage() as folder:
        (folder / "containers.conf").write_text(CONF)
        words = ("podman", "--root", str(folder / "root"), "--runroot", str(folder / "run"))
        env = {"CONTAINERS_CONF": str(folder / "containers.conf")}
        imports = [*words, "import", str(busybox(BUSYBOX).tar()), BUSYBOX]
        subprocess.run(imports, env=os.environ | env, capture_output=True, timeout=60, check=True)
        yield words, env
        subprocess.run(
            [*words, "rmi", "-a", "-f"], env=os.environ | env, capture_output=True, timeout=60, check=False
        )


@pytest.fixture
def dock(tmp_path: Path, podman: tuple[tuple[str, ...], dict[str, str]]) -> Iterator[Dock]:
    desk = Dock(tmp_path / "work", [sys.executable, "-I", "-S", str(pack(tmp_path / "agent.pyz"))])
    desk.engine, desk.env = podman
    try:
        yield desk
    finally:
        desk.close()


def test_ends_are_told_and_nothing_is_left(dock: Dock) -> None:
    dock.dock(
        {
            "good": dock.create("good", "sh", "-c", "echo words; echo made > /ekvi/out/file"),
            "bad": dock.create("bad", "sh", "-c", "exit 7"),
            "none": dock.create("none", "no-such-program"),
            "image": dock.create("image", "true", image="ekvi-test/none:1"),
        }
    )
    dock.work_to_end()
    ends = {run: (dock.last(run)["state"], dock.last(run)["exit_code"]) for run in ("good", "bad", "none", "image")}
    assert ends == {"good": ("SUCCEEDED", 0), "bad": ("FAILED", 7), "none": ("FAILED", 127), "image": ("FAILED", 125)}
    assert dock.spool("good") == b"words\n"
    assert "the container could not be made: " in dock.last("image")["reason"]
    assert not dock.containers()


def test_stop_lets_the_training_save(dock: Dock) -> None:
    saves = "trap 'echo saved; exit 0' TERM; " + FOREVER
    dock.dock({"a": dock.create("a", "sh", "-c", saves)})
    agent = dock.work_here()
    until(lambda: b"up" in dock.spool("a"), "a is up")
    dock.call("stop", str(dock.q))
    dock.finish(agent)
    assert (dock.last("a")["state"], dock.spool("a")) == ("CANCELLED", b"up\nsaved\n")
    assert not dock.containers()


def test_no_kill_of_all_of_ours_costs_a_byte(dock: Dock) -> None:
    dock.dock({"a": dock.create("a", "sh", "-c", COUNT + REST)})
    agent = dock.work_here()
    until(lambda: b"line 1000" in dock.spool("a"), "a prints")
    dock.kill_agent(agent)
    fields = dock.record("a") or {}
    for pid in (fields["pid"], fields["child_pid"]):
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: gone(pid), "it is gone")  # type: ignore[misc]
    agent = dock.work_here()
    until(lambda: (dock.record("a") or {}).get("pid") not in (None, fields["pid"]), f"another shim: {dock.log()}")
    until(lambda: b"line 3000\n" in dock.spool("a"), "it goes on")
    (dock.run_dir("a") / "out" / "gate").touch()
    dock.finish(agent)
    assert dock.last("a")["state"] == "SUCCEEDED", (dock.states("a"), dock.log())
    assert dock.spool("a") == b"".join(b"line %d\n" % i for i in range(1, 6001))
    assert numbered(dock.states("a"))
    assert not dock.containers()
