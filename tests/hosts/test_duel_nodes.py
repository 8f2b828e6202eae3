"""Two machines train one model: its loss curve is that of one process, and one machine's failure ends the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import images
from tests.hosts.duel import BASE, User, agents_ended, duel_profile, eventually, queues, user
from tests.hosts.machines import Machine, Machines

pytestmark = [pytest.mark.hosts, pytest.mark.train, pytest.mark.timeout(300)]
NODES = {"nodes": ["cuda-host", "rocm-host"], "vendor": "cpu", "training": "cpu"}
ONE = {"address": "cuda-host", "vendor": "cpu", "training": "cpu"}


@pytest.fixture(scope="module")
def with_image(running_machines: Machines) -> Machines:
    """Both machines with an image that trains."""
    running_machines.load(images.training(BASE))
    return running_machines


@pytest.fixture
def someone(tmp_path: Path, with_image: Machines, machines: Machines) -> Iterator[User]:
    with user(tmp_path, machines) as made:
        launcher = {"image": BASE, "pull": "never", "ulimits": {"memlock": None, "stack": None}}
        both = {"both": {**NODES, "overrides": ["training.parallel.data=2"]}, "one": dict(ONE)}
        made.write_profile("nodes", duel_profile(launcher=launcher, servers=both, repeats=1))
        yield made


def losses(someone: User, server: str) -> list[float]:
    run = next(m["id"] for m in someone.metas() if m["server"] == server)
    return [e["loss"] for e in someone.events(run, "iteration")]


def test_two_nodes_give_the_curve_of_one_process(someone: User, machines: Machines) -> None:
    someone.call("run", "--profile", "nodes", timeout=250)
    assert {m["server"]: m["state"] for m in someone.metas()} == {"both": "SUCCEEDED", "one": "SUCCEEDED"}
    both, one = losses(someone, "both"), losses(someone, "one")
    assert len(both) == len(one) == 20
    assert both == pytest.approx(one, rel=1e-4)
    run = next(m["id"] for m in someone.metas() if m["server"] == "both")
    assert (someone.runs / run / "stdout.node1.log").stat().st_size
    assert (someone.runs / run / "telemetry.node1.jsonl").stat().st_size
    for machine in machines.both:
        assert not machine.dockerd.run("ps", "-aq").stdout
        assert not queues(machine)


def kill_training(machine: Machine) -> bool:
    """kill -9 to torchrun's child on that machine; whether there was one."""
    return machine.exec("pkill", "-9", "-f", "--", " -u -m runners ", check=False).returncode == 0


def test_a_node_that_fails_ends_the_other_and_is_named(someone: User, machines: Machines) -> None:
    cockpit = someone.start("run", "--profile", "nodes", "--servers", "both", "training.train_iters=100000")
    eventually(lambda: any(someone.steps(m["id"]) for m in someone.metas()), 150, someone.said)
    assert kill_training(machines.rocm)
    assert cockpit.wait(90) == 1, someone.said()
    meta = someone.metas()[0]
    assert meta["state"] == "FAILED"
    assert "node rocm-host" in meta["reason"]
    for machine in machines.both:
        eventually(lambda m=machine: agents_ended(m), 20, f"an agent lives on {machine.name}")  # type: ignore[misc]
        assert not machine.dockerd.run("ps", "-aq").stdout
