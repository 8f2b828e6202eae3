"""The whole product on two machines: images built there, trained in containers, results brought home and compared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import images
from tests.hosts.duel import BASE, ENDED, User, agents_ended, duel_profile, eventually, queues, user
from tests.hosts.machines import Machines

pytestmark = [pytest.mark.hosts, pytest.mark.train, pytest.mark.timeout(300)]

FLAGS = {
    "cuda-host": [["--gpus", "all"]],
    "rocm-host": [["--device", "/dev/kfd"], ["--device", "/dev/dri"], ["--security-opt", "seccomp=unconfined"]],
}


@pytest.fixture(scope="module")
def trained(running_machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Machines:
    """Both machines with the image that `build` makes there."""
    running_machines.load(images.training(BASE))
    with user(tmp_path_factory.mktemp("builder"), running_machines) as builder:
        builder.write_profile("duel-hosts", duel_profile())
        builder.call("build", "--profile", "duel-hosts", timeout=200)
    return running_machines


@pytest.fixture
def someone(tmp_path: Path, trained: Machines, machines: Machines) -> Iterator[User]:
    with user(tmp_path, machines) as made:
        made.write_profile("duel-hosts", duel_profile())
        yield made


def everything_is_home(someone: User, machines: Machines, repeats: int) -> None:
    """So many runs a side, trained, fetched, compared, and nothing left behind."""
    metas = someone.metas()
    assert sorted((m["server"], m["repeat"], m["state"]) for m in metas) == [
        (server, repeat, "SUCCEEDED") for server in ("cuda-host", "rocm-host") for repeat in range(repeats)
    ]
    for meta in metas:
        assert someone.steps(meta["id"]) == list(range(1, 21))
        artifacts = someone.runs / meta["id"] / "artifacts"
        assert json.loads((artifacts / "train.json").read_text())["steps"] == 20
        assert (artifacts / "output.zip").exists()
    finals = {m["id"]: someone.events(m["id"], "iteration")[-1]["loss"] for m in metas}
    assert len(set(finals.values())) == 1, f"the same training on the same CPU differs: {finals}"
    for machine in machines.both:
        eventually(lambda m=machine: agents_ended(m), 20, f"an agent lives on {machine.name}")  # type: ignore[misc]
        assert not machine.dockerd.run("ps", "-aq").stdout
        assert not queues(machine)


def test_both_machines_train_in_containers_at_once_and_are_compared(someone: User, machines: Machines) -> None:
    someone.call("run", "--profile", "duel-hosts", timeout=250)
    everything_is_home(someone, machines, 3)
    for meta in someone.metas():
        container = meta["provenance"]["container"]
        (machine,) = (m for m in machines.both if m.name == meta["server"])
        seen = machine.dockerd.run("image", "inspect", "--format", "{{.Id}}", container["image"]).stdout
        assert container["image_id"] == (seen if isinstance(seen, str) else seen.decode()).strip()
        for stage in meta["provenance"]["stages"]:
            words = stage["argv"]
            assert container["image"] in words
            for flag in FLAGS[meta["server"]]:
                pairs = [words[i : i + 2] for i in range(len(words))]
                assert flag in pairs, f"{flag} is not in the plan of {meta['id']}: {words}"
    compared = someone.json("compare", "last")
    assert {s["name"] for s in compared["sides"]} == {"cuda-host", "rocm-host"}
    assert compared["parity"]["verdict"] in ("fair", "labelled")
    assert compared["loss_parity"]["max_rel_diff"] == 0


def test_a_cockpit_that_was_killed_finds_all_done(someone: User, machines: Machines) -> None:
    cockpit = someone.start("run", "--profile", "duel-hosts", "--repeats", "2")
    eventually(lambda: any(someone.steps(m["id"]) for m in someone.metas()), 150, someone.said)
    someone.kill(cockpit)
    for machine in machines.both:
        eventually(lambda m=machine: agents_ended(m), 200, f"an agent lives on {machine.name}")  # type: ignore[misc]
    assert {m["state"] for m in someone.metas()} & ENDED != ENDED
    someone.call("attach", "last", timeout=60)
    everything_is_home(someone, machines, 2)


def test_the_dry_run_done_by_hand_trains_on_both_machines(someone: User, machines: Machines) -> None:
    script = someone.call("run", "--profile", "duel-hosts", "--repeats", "1", "--dry-run").stdout
    assert "target=/data" in script
    assert "source=/root" not in script  # the folder is the server's user's, and not a guess
    done = subprocess.run(
        ["sh"], input=script, env=someone.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for machine in machines.both:
        (q,) = queues(machine)
        (states,) = q.glob("runs/*/states.jsonl")

        def ended(path: Path = states) -> str | None:
            last = json.loads(path.read_text().splitlines()[-1])
            return str(last["state"]) if last["state"] in ENDED else None

        assert eventually(ended, 90, states.read_text) == "SUCCEEDED", states.read_text()
        assert (q / "runs" / states.parent.name / "out" / "output.zip").exists()
