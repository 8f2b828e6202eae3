"""A queue on its server, with a small agent of the tests' own in the place of the real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.hosts import LocalHost, layout
from cockpit.telemetry import deploy
from cockpit.telemetry.pack import Package, build_agent, build_code

# Answers as the contract says, keeps whether it was started in a file, and fails on command.
AGENT = """
import json, os, sys
def main(argv):
    command, q = argv
    state = os.path.join(q, "started")
    if os.path.exists(os.path.join(q, "control", "stop.fail")):
        print("first words", file=sys.stderr); print("it is broken.", file=sys.stderr)
        return 7
    if command == "start":
        fresh = not os.path.exists(state)
        open(state, "w").close()
        print("chatter"); print(json.dumps({"started": fresh, "pid": 1}))
    elif command == "status":
        print(json.dumps({"alive": os.path.exists(state), "pid": 1, "runs": {}}))
    elif command == "clean":
        os.remove(state)
    return 0
"""
QUEUE: dict[str, Any] = {"schema": "ekvi.queue/1", "group": "g", "key": "k", "code": "x" * 16, "runs": []}
CONFIGS = {"g.left.r1": {"model": {"name": "tiny"}}, "g.right.r1": {"model": {"name": "größer"}}}


@pytest.fixture
def agent(tmp_path: Path) -> Package:
    source = tmp_path / "source"
    (source / "agent").mkdir(parents=True)
    (source / "agent" / "__init__.py").touch()
    (source / "agent" / "main.py").write_text(AGENT)
    return build_agent(source)


@pytest.fixture
def work(tmp_path: Path) -> str:
    return str(tmp_path / "work")


@pytest.fixture
async def q(agent: Package, work: str) -> str:
    folder = layout.queue_folder(work, "g", "k")
    return await deploy.deploy(LocalHost(), work, folder, QUEUE, CONFIGS, agent, build_code())


async def test_everything_is_there_private_and_whole(q: str, work: str, agent: Package) -> None:
    code = build_code()
    assert Path(layout.agent_file(work, agent.sha256)).read_bytes() == agent.data
    assert Path(layout.code_file(work, code.sha256)).read_bytes() == code.data
    assert json.loads(Path(q, "queue.json").read_text()) == QUEUE
    for run, config in CONFIGS.items():
        assert json.loads(Path(q, "runs", run, "config.json").read_text()) == config
    for path in [Path(work), *Path(work).rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


async def test_the_queue_goes_last(agent: Package, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    put = LocalHost.put

    async def noting(self: LocalHost, data: bytes, path: str, mode: int = 0o600) -> None:
        order.append(Path(path).name)
        await put(self, data, path, mode)

    monkeypatch.setattr(LocalHost, "put", noting)
    await deploy.deploy(LocalHost(), work, f"{work}/groups/g.k", QUEUE, CONFIGS, agent, build_code())
    assert order[-1] == "queue.json"
    assert len(order) == 6


async def test_code_that_no_run_needs_stays_at_home(agent: Package, work: str) -> None:
    await deploy.deploy(LocalHost(), work, f"{work}/groups/g.k", QUEUE | {"code": None}, {}, agent, build_code())
    assert not Path(work, "code").exists()


async def test_a_package_that_is_there_is_not_sent_again(q: str, work: str, agent: Package) -> None:
    pyz = Path(layout.agent_file(work, agent.sha256))
    before = pyz.stat().st_ino
    await deploy.deploy(LocalHost(), work, q, QUEUE, CONFIGS, agent, build_code())
    assert pyz.stat().st_ino == before
    pyz.write_bytes(agent.data[:-1])
    await deploy.deploy(LocalHost(), work, q, QUEUE, CONFIGS, agent, build_code())
    assert pyz.read_bytes() == agent.data


async def test_a_queue_is_never_changed(q: str, work: str, agent: Package) -> None:
    with pytest.raises(LaunchRefused, match="already holds another queue"):
        await deploy.deploy(LocalHost(), work, q, QUEUE | {"key": "other"}, CONFIGS, agent, build_code())
    assert json.loads(Path(q, "queue.json").read_text()) == QUEUE


async def test_start_status_and_clean_ask_the_agent(q: str) -> None:
    host = LocalHost()
    assert await deploy.status(host, q) == {"alive": False, "pid": None, "runs": {}}
    assert await deploy.start(host, q, sys.executable) == {"started": True, "pid": 1}
    assert await deploy.status(host, q) == {"alive": True, "pid": 1, "runs": {}}
    assert await deploy.alive(host, q)
    assert await deploy.start(host, q, sys.executable) == {"started": False, "pid": 1}
    await deploy.clean(host, q)
    assert not await deploy.alive(host, q)


async def test_stop_leaves_its_wish_in_a_file(q: str) -> None:
    host = LocalHost()
    await deploy.stop(host, q, "g.left.r1")
    assert [e.path for e in await host.listdir(f"{q}/control")] == ["stop.g.left.r1"]
    await deploy.stop(host, q)
    assert [e.path for e in await host.listdir(f"{q}/control")] == ["stop", "stop.g.left.r1"]


async def test_what_is_not_there_is_refused_and_not_made(work: str) -> None:
    host, q = LocalHost(), f"{work}/groups/none.k"
    with pytest.raises(ServerError, match=r"There is no queue .*none\.k on this machine"):
        await deploy.stop(host, q)
    with pytest.raises(LaunchRefused, match=r"There is no queue .*none\.k on this machine"):
        await deploy.start(host, q, sys.executable)
    await deploy.clean(host, q)
    assert not Path(work).exists()


async def test_an_agent_that_fails_is_quoted(q: str) -> None:
    host = LocalHost()
    await deploy.start(host, q, sys.executable)
    await host.put(b"", f"{q}/control/stop.fail")
    with pytest.raises(LaunchRefused, match=r"The agent did not start on this machine: it is broken\. "):
        await deploy.start(host, q, sys.executable)
    with pytest.raises(ServerError, match=r"did not answer `status`: it is broken\."):
        await deploy.status(host, q)
    with pytest.raises(ServerError, match=r"could not be tidied up: it is broken\."):
        await deploy.clean(host, q)


async def test_a_python_that_is_not_there_is_named(q: str) -> None:
    with pytest.raises(LaunchRefused, match=r"/nonexistent/python.*No such file or directory"):
        await deploy.start(LocalHost(), q, "/nonexistent/python")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"agent": 1, "python": ["x"]}', '{"agent": null, "python": "x"}', "[" * 9999]
)
async def test_a_damaged_launch_file_is_named(q: str, text: str) -> None:
    Path(q, "launch.json").write_text(text)
    with pytest.raises(ServerError, match=r"launch\.json on this machine is damaged"):
        await deploy.status(LocalHost(), q)


async def test_an_agent_that_was_deleted_is_put_there_again(q: str, work: str, agent: Package) -> None:
    host = LocalHost()
    Path(layout.agent_file(work, agent.sha256)).unlink()
    assert not await deploy.alive(host, q)
    # What comes in its place is this installation's own agent, which refuses the tests' queue in its own words.
    with pytest.raises(LaunchRefused, match="did not start"):
        await deploy.start(host, q, sys.executable)
    assert Path(layout.agent_file(work, build_agent().sha256)).exists()
