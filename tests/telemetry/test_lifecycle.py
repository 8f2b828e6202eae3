"""The real agent, deployed, started, killed, started again and stopped through a Host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from cockpit.hosts import LocalHost, layout
from cockpit.telemetry import deploy
from cockpit.telemetry.pack import build_agent, build_code

LIMIT_S = 60.0
# Prints a line, waits until the test makes a file, prints another line.
SLOW = 'echo first; until [ -e "$EKVI_OUT/../go" ]; do sleep 0.02; done; echo last'


@pytest.fixture
def work(tmp_path: Path) -> Iterator[str]:
    folder = str(tmp_path / "work")
    yield folder
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = [*(process.info["cmdline"] or ()), *(process.info["environ"] or {}).values()]
        if any(folder in word for word in words) and process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _queue(*scripts: str) -> dict[str, Any]:
    stage: dict[str, Any] = {
        "stage": "train",
        "env": {},
        "cwd": None,
        "timeout_s": 60.0,
        "stall_after_s": None,
        "stop_grace_s": 1.0,
    }
    runs = [
        {"run": f"g.r{i}", "server": "s", "env": {}, "stages": [stage | {"argv": ["sh", "-c", script]}]}
        for i, script in enumerate(scripts)
    ]
    return {
        "schema": "ekvi.queue/1", "group": "g", "key": "k", "slot": "default", "slots": 1, "cooldown_s": 0.0,
        "code": None, "telemetry": {"hz": 5.0}, "spool_max_by": 2**20, "runs": runs,
    }  # fmt: skip


async def _start(work: str, *scripts: str) -> str:
    host, q = LocalHost(), layout.queue_folder(work, "g", "k")
    await deploy.deploy(host, work, q, _queue(*scripts), {}, build_agent(), build_code())
    await deploy.start(host, q, sys.executable)
    return q


async def _until(path: str, done: Callable[[bytes], bool]) -> bytes:
    """The bytes of a file, once `done` says that they suffice."""
    got = b""
    async with asyncio.timeout(LIMIT_S), aclosing(LocalHost().follow({path: 0}, interval=0.01)) as chunks:
        async for chunk in chunks:
            got += chunk.data
            if done(got):
                break
    return got


def _states(data: bytes) -> list[str]:
    """The states that whole lines of states.jsonl tell."""
    lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
    assert [line["agent_seq"] for line in lines] == list(range(len(lines)))
    return [line["state"] for line in lines]


def _ended(data: bytes) -> bool:
    return bool(_states(data)) and _states(data)[-1] in ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "LOST")


async def test_a_queue_outlives_a_killed_agent(work: str) -> None:
    host = LocalHost()
    q = await _start(work, SLOW, "echo second")
    await _until(f"{q}/runs/g.r0/spool.log", lambda data: data == b"first\n")
    before = await deploy.status(host, q)
    assert before["alive"]
    os.kill(before["pid"], signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        while await deploy.alive(host, q):
            pass
    assert (await deploy.start(host, q, sys.executable))["started"]
    assert (await deploy.status(host, q))["pid"] != before["pid"]
    assert (await deploy.start(host, q, sys.executable))["already"], "a second one has nothing to do"
    Path(q, "runs", "g.r0", "go").touch()
    states = _states(await _until(f"{q}/runs/g.r0/states.jsonl", _ended))
    assert (states[-1], states.count("SUCCEEDED")) == ("SUCCEEDED", 1)
    assert Path(q, "runs", "g.r0", "spool.log").read_bytes() == b"first\nlast\n"
    assert _states(await _until(f"{q}/runs/g.r1/states.jsonl", _ended))[-1] == "SUCCEEDED"


async def test_stopping_one_run_leaves_the_others_and_stopping_all_ends_it(work: str) -> None:
    host = LocalHost()
    q = await _start(work, SLOW, SLOW, SLOW)
    await _until(f"{q}/runs/g.r0/spool.log", lambda data: data == b"first\n")
    await deploy.stop(host, q, "g.r0")
    assert _states(await _until(f"{q}/runs/g.r0/states.jsonl", _ended))[-1] == "CANCELLED"
    await _until(f"{q}/runs/g.r1/spool.log", lambda data: data == b"first\n")
    await deploy.stop(host, q)
    for run in ("g.r1", "g.r2"):
        assert _states(await _until(f"{q}/runs/{run}/states.jsonl", _ended))[-1] == "CANCELLED"


async def test_a_queue_that_is_done_can_be_cleaned_and_its_folder_removed(work: str) -> None:
    host = LocalHost()
    q = await _start(work, "echo done")
    await _until(f"{q}/runs/g.r0/states.jsonl", _ended)
    async with asyncio.timeout(LIMIT_S):
        while await deploy.alive(host, q):  # it says the last state before it lets go of its lock
            pass
    await deploy.clean(host, q)
    await deploy.clean(host, q)
    await host.workdir(work)
    await host.remove_tree(q)
    assert not Path(q).exists()
