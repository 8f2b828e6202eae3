"""A Megatron training over two nodes: planned, rendered, worked by two agents, each with a work folder of its own."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from cockpit import launch
from cockpit.config import load
from cockpit.core.records import GroupPlan, QueuePlan
from cockpit.plan import make_plan
from cockpit.telemetry import pack
from runners import wire
from tests.agent.support import Desk, until
from tests.agent.test_peers import free_port

pytestmark = pytest.mark.train

PROFILE = """
servers:
  one: {{address: local, vendor: cpu, python: {python}}}
  two: {{nodes: [127.0.0.1, local], vendor: cpu, python: {python}, master_port: {port}, stop_grace_s: 1.0}}
"""
WORDS = ("training.train_iters={n}", "training.micro_batch=2", "two:training.parallel.data=2")


@dataclass
class Lab:
    """The plan and a work folder for each machine."""

    plan: GroupPlan
    folder: Path
    desks: list[Desk]

    def queue(self, plan: QueuePlan) -> list[Desk]:
        """Put a queue on each of its nodes; they are prepared to be worked."""
        code = pack.build_code()
        out = []
        for node in range(max(1, len(plan.nodes))):
            document = launch.queue(plan, self.plan.servers, code=code.sha256, node=node, token="5eed" * 8)
            desk = Desk(self.folder / f"{plan.key}.{node}")
            desk.q = desk.work / "groups" / f"{self.plan.group}.{plan.key}"
            for run in plan.runs:
                desk.run_dir(run.run).mkdir(parents=True)
                (desk.run_dir(run.run) / "config.json").write_text(json.dumps(run.config))
            (desk.work / "code").mkdir()
            (desk.work / "code" / f"{code.sha256[:16]}.zip").write_bytes(code.data)
            (desk.q / "queue.json").write_text(json.dumps(document))
            self.desks.append(desk)
            out.append(desk)
        return out


def losses(desk: Desk, run: str) -> list[float]:
    parsed = (wire.parse(line) for line in desk.spool(run).splitlines())
    return [line["loss"] for line in parsed if line is not None and line["type"] == "iteration"]


def lab_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int) -> Lab:
    profiles = tmp_path / "xdg" / "ekvi-cockpit" / "profiles"
    profiles.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (profiles / "lab.yaml").write_text(PROFILE.format(python=sys.executable, port=free_port()))
    words = [word.format(n=iterations) for word in WORDS]
    return Lab(make_plan(load("lab", words), group="g1", repeats=1), tmp_path, [])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for process in psutil.process_iter():  # what a failing test left
        try:
            if str(tmp_path) in process.environ().get("EKVI_OUT", ""):
                process.kill()
        except psutil.Error:
            continue


def test_two_nodes_give_the_curve_of_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_of(folder, monkeypatch, 10)
    single, double = sorted(lab.plan.queues, key=lambda q: len(q.nodes))
    (one,) = lab.queue(single)
    one.finish(one.work_here(), 110)
    assert one.last(single.runs[0].run)["state"] == "SUCCEEDED", one.spool(single.runs[0].run).decode()
    two = lab.queue(double)
    for desk in two:
        shutil.copytree(one.work / "cache", desk.work / "cache")
    agents = [desk.work_here() for desk in two]
    for desk, agent in zip(two, agents, strict=True):
        desk.finish(agent, 110)
    run = double.runs[0].run
    assert [desk.last(run)["state"] for desk in two] == ["SUCCEEDED"] * 2, two[0].spool(run).decode()
    assert losses(two[0], run) == []
    assert losses(two[1], run) == pytest.approx(losses(one, single.runs[0].run), rel=1e-6)
    assert len(losses(two[1], run)) == 10


def test_a_killed_process_ends_both_and_names_its_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_of(folder, monkeypatch, 100_000)
    double = next(q for q in lab.plan.queues if q.nodes)
    two = lab.queue(double)
    agents = [desk.work_here() for desk in two]
    run = double.runs[0].run
    until(lambda: len(losses(two[1], run)) > 3, "it trains", 110)
    _worker(two[1].record(run, 1)).kill()
    for desk, agent in zip(two, agents, strict=True):
        desk.finish(agent, 60)
    assert two[0].last(run)["state"] == "FAILED"
    assert re.match(r"node local: stage train exited with", two[0].last(run)["reason"])
    assert "exitcode  : -9" in "\n".join(two[0].last(run)["data"]["tail"])


def _worker(record: dict[str, Any] | None) -> psutil.Process:
    """The training process below torchrun."""
    assert record is not None
    (worker,) = psutil.Process(record["child_pid"]).children()
    return worker
