"""Following a group where something goes wrong on the way: said in a sentence, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.errors import ServerError, StoreError
from cockpit.core.events import Event
from cockpit.core.records import Access
from cockpit.engine import queue_follow, queue_home
from cockpit.engine.finish import finish_run
from cockpit.engine.observer import GroupInfo, Outcome
from cockpit.engine.queue_home import WayHome
from cockpit.engine.session import LiveSession
from cockpit.hosts import Host, LocalHost
from cockpit.store.store import Store
from tests.engine.conftest import Duel, eventually

pytestmark = pytest.mark.timeout(120)


class Notes:
    """An observer that keeps what the user is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, info: GroupInfo) -> None: ...

    def event(self, run: str, event: Event) -> None: ...

    def log(self, run: str, offset: int, data: bytes) -> None: ...

    def tick(self, run: str, tick: Mapping[str, Any]) -> None: ...

    def note(self, level: str, text: str) -> None:
        self.said.append(text)

    def end(self, outcome: Outcome) -> None: ...


def _follow(duel: Duel, connect: Callable[[Access], Host]) -> tuple[Outcome, list[str]]:
    store, notes = Store(duel.runs), Notes()
    session = LiveSession(store, store.group(duel.group["id"]), connect)
    outcome = asyncio.run(asyncio.wait_for(session.run(notes), 60))
    return outcome, notes.said


def _local(_: Access) -> Host:
    return LocalHost()


def _spool(duel: Duel) -> Path:
    """The output of the first run, which waits at step 3 with all that it said so far mirrored."""

    def mirrored() -> Path | None:
        for path in duel.work.glob("groups/*/runs/*/spool.log"):
            journal = duel.runs / path.parent.name / "events.jsonl"
            if journal.exists() and len(duel.steps(path.parent.name)) >= 3:
                return path
        return None

    found: Path = eventually(mirrored)
    return found


def _held(duel: Duel) -> Any:
    duel.write(hold=True, repeats=1)
    return duel.start("run", "--profile", "toy")


def test_a_spool_that_was_cut_is_said_and_the_group_goes_on(duel: Duel) -> None:
    cockpit = _held(duel)
    spool = _spool(duel)
    os.truncate(spool, 10)
    eventually(lambda: "was cut or replaced" in (duel.home / "err.txt").read_text())
    duel.release()
    assert cockpit.wait(60) == 0
    err = (duel.home / "err.txt").read_text()
    assert "Traceback" not in err
    assert "not all of it is home" in err
    assert duel.steps(spool.parent.name)[:3] == [1, 2, 3]
    assert {duel.meta(run)["state"] for run in duel.group["runs"]} == {"SUCCEEDED"}


def test_what_a_server_refuses_while_it_is_followed_is_one_sentence(duel: Duel) -> None:
    cockpit = _held(duel)
    spool = _spool(duel)
    spool.rename(spool.with_name("moved"))
    spool.mkdir()
    assert cockpit.wait(60) == 3
    errors = [s for s in (duel.home / "err.txt").read_text().splitlines() if s.startswith("error: ")]
    assert len(errors) == 1
    assert str(spool) in errors[0]


class _Killed(BaseException):
    """Stands for kill -9: nothing of the session may go on after it."""


@pytest.mark.parametrize("last", [False, True], ids=["one run left", "none left"])
def test_killed_before_the_files_are_home_they_come_home_later(
    duel: Duel, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    duel.write(repeats=1, steps=5)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0
    calls = [0]

    async def killed(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1 + last:
            raise _Killed
        return await finish_run(*args)

    monkeypatch.setattr(queue_home, "finish_run", killed)
    with pytest.raises(BaseExceptionGroup):
        _follow(duel, _local)
    monkeypatch.setattr(queue_home, "finish_run", finish_run)
    outcome, _ = _follow(duel, _local)
    assert outcome.state == "SUCCEEDED"
    for run in duel.group["runs"]:
        assert (duel.runs / run / "artifacts" / "result.txt").read_text() == run
        assert (duel.runs / run / "summary.json").exists()
    assert list((duel.work / "groups").iterdir()) == [], "what is home is taken off the server"


def test_killed_before_the_server_was_tidied_it_is_tidied_later(duel: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    duel.write(repeats=1, steps=5)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0

    async def killed(*_: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(WayHome, "tidy", killed)
        with pytest.raises(BaseExceptionGroup):
            _follow(duel, _local)
    assert list((duel.work / "groups").iterdir())
    _follow(duel, _local)
    assert list((duel.work / "groups").iterdir()) == []


def test_a_disk_that_fills_while_files_come_home_is_waited_for(duel: Duel) -> None:
    duel.write(repeats=1, steps=5)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0
    full = [True]

    class Full(LocalHost):
        async def get(self, path: str, target: Path, **how: Any) -> str:
            if full.pop() if full else False:
                raise StoreError("The disk is full.") from OSError(errno.ENOSPC, "No space left on device")
            return await super().get(path, target, **how)

    outcome, said = _follow(duel, lambda _: Full())
    assert outcome.state == "SUCCEEDED"
    assert [s for s in said if "disk is full" in s]
    for run in duel.group["runs"]:
        assert (duel.runs / run / "artifacts" / "result.txt").read_text() == run


def test_a_file_that_cannot_be_fetched_stays_on_the_server_and_the_rest_comes_home(duel: Duel) -> None:
    duel.write(repeats=1, steps=5)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0

    class Refuses(LocalHost):
        async def get(self, path: str, target: Path, **how: Any) -> str:
            if ".left.r1/" in path:
                raise ServerError(f"{path} cannot be read: Permission denied.")
            return await super().get(path, target, **how)

    outcome, said = _follow(duel, lambda _: Refuses())
    assert outcome.state == "SUCCEEDED"
    assert [s for s in said if "not fetched" in s and "Permission denied" in s]
    assert list(duel.work.glob("groups/*/runs/*.left.r1/out/result.txt")), "it was removed without being home"
    right = next(run for run in duel.group["runs"] if ".right." in run)
    assert (duel.runs / right / "artifacts" / "result.txt").exists()


def test_an_agent_that_ends_again_and_again_is_given_up(duel: Duel, monkeypatch: pytest.MonkeyPatch) -> None:
    duel.write(hold=True, repeats=1)
    assert duel.call("run", "--profile", "toy", "--detach").returncode == 0
    out = eventually(lambda: list(duel.work.glob("groups/*/runs/*.right.r1/out")))[0]
    for pid in duel.pids("agent-"):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not duel.pids("agent-"))
    out.rmdir()
    out.touch()  # where the agent needs a folder
    monkeypatch.setattr(queue_follow, "_SILENCE_S", 0.05)
    outcome, said = _follow(duel, _local)
    assert outcome.exit_code == 3
    assert [s for s in said if "again and again" in s]
