"""The dry run done by hand on a real server: over a real sshd, with a real Docker daemon."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.records import ContainerFacts, GroupPlan, StagePlan
from cockpit.engine.deliver import Packing
from cockpit.hosts import LocalHost, layout
from cockpit.hosts.probe import container_facts
from cockpit.launch import queue, render
from cockpit.telemetry.pack import build_agent, build_code
from tests.hosts.dockerd import PYTHON, Dockerd
from tests.hosts.sshd import Sshd, sshd
from tests.launch.made import group, run, server

pytestmark = pytest.mark.hosts
LIMIT_S = 60.0
AWKWARD = 'it\'s $HOME; `id`\n\\ "quoted" ü'
SECRET = "planted-value-of-a-secret"
SAY = """
import hashlib, json, os, sys
out, word, conf, secret = sys.argv[1:]
said = {"word": word, "env": os.environ["NOTE"], "conf": open(conf).read(), "run": os.environ["EKVI_RUN"]}
said["secret"] = hashlib.sha256(open(secret, "rb").read()).hexdigest()
said["shown"] = "HF_TOKEN" in os.environ
json.dump(said, open(out, "w"))
print("said", flush=True)
"""
NONE = ContainerFacts()
LIMITS = {"memlock": None, "stack": None}  # a nested machine may not raise them


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, dockerd: Dockerd) -> Iterator[Sshd]:
    """A server over SSH whose user has the tests' Docker daemon."""
    with sshd(tmp_path_factory.mktemp("sshd"), lines=(f"SetEnv DOCKER_HOST=unix://{dockerd.socket}",)) as running:
        yield running


def _do(script: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        ["sh"],
        input=script.encode(),
        env=os.environ | {"HF_TOKEN": SECRET} | env,
        capture_output=True,
        timeout=LIMIT_S,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def _ended(q: str, run_id: str) -> dict[str, Any]:
    """The last state of a run, once it has ended."""
    states = Path(q, "runs", run_id, "states.jsonl")
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        lines = states.read_text().splitlines() if states.exists() else []
        last = json.loads(lines[-1]) if lines else {}
        if last.get("state") in ("SUCCEEDED", "FAILED", "CANCELLED"):
            return dict(last)
        time.sleep(0.05)
    raise AssertionError(f"the run does not end: {lines}")


class Case:
    """A group of one run that needs a file and a secret, its script, and what a launch would put there."""

    def __init__(self, folder: Path, plan: GroupPlan) -> None:
        (folder / "a conf").write_text("configured\n")
        self.plan = plan
        self.folder = folder
        self.work = str(plan.queues[0].workdir)
        self.q = layout.queue_folder(self.work, "g", "k")
        packing = Packing()
        files = {k: a.there for k, a in packing.pack(plan.servers["s"]).items()}
        packing.close()
        agent, code = build_agent().sha256, build_code().sha256
        self.document = queue(plan.queues[0], plan.servers, code=code, files=files)
        self.script = render(plan, agent=agent, code=code, files=files)

    def said(self) -> dict[str, Any]:
        return dict(json.loads(Path(self.q, "runs", "g.s.r1", "out", "said.json").read_text()))


def _case(folder: Path, *, container: bool, work: Path, facts: ContainerFacts = NONE, **changes: Any) -> Case:
    conf, secret = (
        ("/etc/the conf", "/run/secrets/HF_TOKEN") if container else ("the conf", "${SECRETS_DIR}/HF_TOKEN")
    )
    python = "python3" if container else "/usr/bin/python3"
    stage = StagePlan(stage="train", argv=(python, "-c", SAY, "${OUT_DIR}/said.json", AWKWARD, conf, secret))
    env = {"NOTE": AWKWARD}
    spec = server(
        facts,
        env=env,
        files={"a conf": conf},
        secrets=("HF_TOKEN",),
        workdir=str(work),
        python="/usr/bin/python3",
        **changes,
    )
    launch = {"image": PYTHON, "ulimits": LIMITS, "hf_cache": str(work / "hf, cache")} if container else {}
    return Case(folder, group(run(stage, "container" if container else "process", **launch), spec))


def _check(case: Case) -> None:
    last = _ended(case.q, "g.s.r1")
    spool = Path(case.q, "runs", "g.s.r1", "spool.log").read_text()
    assert (last["state"], last["exit_code"], spool) == ("SUCCEEDED", 0, "said\n"), last
    assert case.said() == {
        "word": AWKWARD, "env": AWKWARD, "conf": "configured\n", "run": "g.s.r1", "shown": False,
        "secret": hashlib.sha256(SECRET.encode()).hexdigest(),
    }  # fmt: skip
    assert json.loads(Path(layout.queue_file(case.q)).read_text()) == case.document
    kept = [path for path in Path(case.work).rglob("*") if path.is_file() and path.parent.name != "secrets"]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in case.script


def test_processes_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: Sshd) -> None:
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "the, work's"
    case = _case(tmp_path, container=False, work=work, **_over(far))
    _do(case.script, tmp_path)
    _check(case)


def _over(far: Sshd) -> dict[str, Any]:
    access = far.access(identity=str(far.identity), port=far.port)
    return {"address": access.address, "access": access}


async def test_a_container_over_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: Sshd, dockerd: Dockerd
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", dockerd.env["DOCKER_HOST"])
    facts = await container_facts(LocalHost(), "docker", PYTHON, vendor="nvidia")
    monkeypatch.delenv("DOCKER_HOST")
    case = _case(tmp_path, container=True, work=tmp_path / "the, work's", vendor="nvidia", facts=facts, **_over(far))
    assert "--gpus" in case.document["runs"][0]["stages"][0]["argv"]
    await asyncio.to_thread(_do, case.script, tmp_path)
    await asyncio.to_thread(_check, case)
    assert "ekvi-g.s.r1" not in dockerd.run("ps", "-a", "--format", "{{.Names}}").stdout


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu"])
def test_the_remarks_do_by_hand_what_the_agent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dockerd: Dockerd, vendor: str
) -> None:
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "the, work's"
    case = _case(tmp_path, container=True, work=work, vendor=vendor, address="local")
    script = re.sub(r"^#   ", "", case.script, flags=re.M)
    script = re.sub(r"^.* start \"\$Q\"$", "", script, flags=re.M)
    said = _do(script, tmp_path, **dockerd.env)
    assert "said\n" in said, said
    assert case.said()["word"] == AWKWARD
    assert "ekvi-g.s.r1" not in dockerd.run("ps", "-a", "--format", "{{.Names}}").stdout
