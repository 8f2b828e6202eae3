"""Queues that are left on a server, told by a real agent, and the commands that tidy them up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cockpit.engine.checks_leftovers import leftovers
from cockpit.engine.findings import Finding
from cockpit.hosts import LocalHost, layout
from cockpit.telemetry.pack import build_agent


@pytest.fixture
async def queue(tmp_path: Path) -> str:
    """A queue of one run that takes a second, with nobody working it."""
    host, agent = LocalHost(), build_agent()
    await host.put(agent.data, layout.agent_file(str(tmp_path), agent.sha256))
    stage: dict[str, Any] = {
        "stage": "train", "argv": ["sleep", "1"], "env": {}, "cwd": None, "timeout_s": None, "stall_after_s": None,
        "stop_grace_s": 1.0, "container": None,
    }  # fmt: skip
    document = {
        "schema": "ekvi.queue/1", "group": "g-1", "key": "k", "slot": "default", "slots": 1, "cooldown_s": 0,
        "code": None, "files": [], "telemetry": {"hz": 1}, "spool_max_by": 1 << 20, "peers": None,
        "runs": [{"run": "r1", "server": "a", "gpus": None, "env": {}, "links": {}, "stages": [stage]}],
    }  # fmt: skip
    place = layout.queue_folder(str(tmp_path), "g-1", "k")
    await host.put(b"{}", layout.config_file(place, "r1"))
    await host.put(json.dumps(document).encode(), layout.queue_file(place))
    return place


async def told(queue: str) -> Finding:
    (finding,) = await leftovers(LocalHost(), layout.workdir_of(queue), sys.executable)
    return finding


async def test_an_agent_at_work_and_a_queue_that_nobody_fetched(queue: str, tmp_path: Path) -> None:
    agent = str(next((tmp_path / "bin").glob("*.pyz")))
    subprocess.run([sys.executable, agent, "start", queue], check=True, capture_output=True, timeout=20)
    working = await told(queue)
    assert working.level == "ok"
    assert "an agent works it (pid " in working.text
    assert "1 of 1 runs to go" in working.text
    end = time.monotonic() + 20
    while (done := await told(queue)).level == "ok":
        assert time.monotonic() < end, done
    assert "done, not fetched" in done.text
    await tidied(done, queue)


async def test_a_queue_whose_agent_is_gone(queue: str) -> None:
    left = await told(queue)
    assert "its agent is gone, and 1 of 1 runs are not done" in left.text
    await tidied(left, queue)


async def tidied(left: Finding, queue: str) -> None:
    """The command of the mend, as a user would type it, leaves nothing."""
    command = str(left.mend).rpartition(": ")[2]
    subprocess.run(command, shell=True, check=True, capture_output=True, timeout=20)
    assert not Path(queue).exists()
    assert "no queue is left" in (await told(queue)).text
