"""The agent and its containers on a real daemon: each end is told as it was, and no kill costs a byte."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runners.agent import record
from runners.agent.base import is_locked
from tests.agent.support import gone, numbered, pack, until
from tests.hosts import dockerd as daemon
from tests.hosts.dockerd import BUSYBOX, PYTHON, Dockerd
from tests.hosts.docks import COUNT, EXPECTED, FOREVER, Dock

pytestmark = pytest.mark.hosts


@pytest.fixture
def dock(tmp_path: Path, dockerd: Dockerd) -> Iterator[Dock]:
    desk = Dock(tmp_path / "work", [sys.executable, "-I", "-S", str(pack(tmp_path / "agent.pyz"))])
    desk.daemon, desk.env = dockerd, dockerd.env
    try:
        yield desk
    finally:
        desk.close()


def test_a_container_is_a_run_and_nothing_of_it_is_left(dock: Dock) -> None:
    dock.dock({"a": dock.create("a", "sh", "-c", "echo words; echo made > /ekvi/out/file")})
    (dock.q / "secrets").mkdir()
    (dock.q / "secrets" / "HF_TOKEN").write_text("planted")
    dock.work_to_end()
    states = dock.states("a")
    assert numbered(states)
    assert dock.names("a") == ["PENDING", "STARTING", "RUNNING", "SUCCEEDED"], dock.log()
    running = states[2]
    assert running["data"]["container"]["name"] == dock.name("a")
    assert (
        running["data"]["container"]["image_id"]
        == dock.daemon.run("image", "inspect", "-f", "{{.Id}}", BUSYBOX).stdout.strip()
    )
    assert (dock.last("a")["exit_code"], dock.last("a")["signal"]) == (0, None)
    assert dock.spool("a") == b"words\n"
    assert (dock.run_dir("a") / "out" / "file").read_text() == "made\n"
    assert not dock.containers()
    assert not (dock.q / "secrets").exists()
    assert not dock.marked()


@pytest.mark.parametrize(
    ("argv", "more", "code", "number", "words"),
    [
        (["sh", "-c", "exit 7"], {}, 7, None, "exited with code 7"),
        (["sh", "-c", "kill -TERM $$; sleep 9"], {"flags": ("--init",)}, None, 15, "signal 15 (SIGTERM)"),
        (["no-such-program"], {}, 127, None, "a command was not found in the container"),
        (["/etc"], {}, 126, None, "a command cannot be executed in the container"),
        (["true"], {"image": "ekvi-test/none:1"}, 125, None, "the container could not be made: "),
        (["true"], {"flags": ("--device", "/dev/no-such")}, 125, None, "the container could not be started: "),
        (["true"], {"flags": ("--ulimit", "memlock=-1")}, 125, None, "Leave that out: launcher.ulimits.memlock=null"),
        (["true"], {"flags": ("--entrypoint", "/bin/none")}, 127, None, "the container could not be started: "),
    ],
    ids=["code", "signal", "not-found", "not-a-program", "no-image", "no-device", "no-limit", "no-shell"],
)
def test_how_it_ended_is_told(
    dock: Dock, argv: list[str], more: dict[str, Any], code: int | None, number: int | None, words: str
) -> None:
    dock.dock({"a": dock.create("a", *argv, **more)})
    dock.work_to_end()
    end = dock.last("a")
    assert (end["state"], end["exit_code"], end["signal"]) == ("FAILED", code, number), end
    assert words in end["reason"]
    assert not dock.containers()


def test_a_kill_for_lack_of_memory_names_the_limit(dock: Dock) -> None:
    code = "x = bytearray(200 << 20)\nprint(len(x))"
    dock.dock({"a": dock.create("a", "python3", "-c", code, image=PYTHON, flags=("--memory", "32m"))})
    dock.work_to_end()
    end = dock.last("a")
    assert (end["state"], end["signal"]) == ("FAILED", signal.SIGKILL)
    assert "for lack of memory: the container passed its limit of 0.0312 GiB" in end["reason"]


def test_stop_lets_the_training_save(dock: Dock) -> None:
    saves = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    dock.dock({"a": dock.create("a", "sh", "-c", saves), "b": dock.create("b", "true")})
    agent = dock.work_here()
    until(lambda: b"up" in dock.spool("a"), "a is up")
    dock.call("stop", str(dock.q), "--run", "a")
    dock.finish(agent)
    assert dock.names("a")[-2:] == ["STOPPING", "CANCELLED"]
    assert dock.last("a")["exit_code"] == 0
    assert dock.spool("a") == b"up\nsaved\n"
    assert dock.last("b")["state"] == "SUCCEEDED"
    assert not dock.containers()


def test_what_ignores_term_is_killed_by_the_engine_after_the_grace(dock: Dock) -> None:
    dock.dock({"a": dock.create("a", "sh", "-c", "trap '' TERM; " + FOREVER, timeout_s=1.0, stop_grace_s=1.0)})
    dock.work_to_end()
    end = dock.last("a")
    assert (end["state"], end["signal"]) == ("TIMEOUT", signal.SIGKILL)
    assert not dock.containers()


def test_silence_is_a_stall(dock: Dock) -> None:
    dock.dock({"a": dock.create("a", "sh", "-c", "echo last words; sleep 60", stall_after_s=5.0, stop_grace_s=0.0)})
    dock.work_to_end()
    assert dock.last("a")["state"] == "STALLED"
    assert "the last line was: last words" in dock.last("a")["reason"]
    assert any("(sleep)" in where for where in dock.last("a")["data"]["wchan"].values())


def test_nothing_but_its_own_containers_is_removed(dock: Dock) -> None:
    others = {
        "other-agent": ("ekvi.agent=/elsewhere", "ekvi.run=a"),
        "other-run": (f"ekvi.agent={dock.q}", "ekvi.run=z"),
    }
    for name, labels in others.items():
        words = [word for label in labels for word in ("--label", label)]
        dock.daemon.run("run", "-d", "--name", name, "--network", "host", *words, BUSYBOX, "sleep", "600")
    try:
        dock.dock({"a": dock.create("a", "true")})
        dock.work_to_end()
        left = dock.daemon.run("ps", "--format", "{{.Names}}").stdout.split()
        assert set(others) <= set(left)
    finally:
        dock.daemon.run("rm", "-f", *others)


# --- kills


def _shim(dock: Dock) -> None:
    pid = (dock.record("a") or {})["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), "the shim is gone")


def _minder(dock: Dock) -> None:
    os.kill((dock.record("a") or {})["child_pid"], signal.SIGKILL)


def _agent(dock: Dock) -> None:
    dock.kill_agent(dock.agents[-1])
    dock.work_here()


def _all(dock: Dock) -> None:
    dock.kill_agent(dock.agents[-1])
    _shim(dock)
    _minder(dock)
    dock.work_here()


def _everyone_else(dock: Dock) -> None:
    """Shim and minder, while the agent lives."""
    _minder(dock)
    _shim(dock)


def _engine(dock: Dock) -> None:
    """The training ends while no engine is there."""
    dock.daemon.stop(crash=True)
    until(lambda: (dock.fields("a") or {}).get("away"), "the minder misses the engine")
    _open_gate(dock)
    until(lambda: len(dock.spool("a")) == len(EXPECTED), "all of it is printed")
    dock.daemon.start()


def _open_gate(dock: Dock) -> None:
    (dock.run_dir("a") / "out" / "gate").touch()


def _watched(dock: Dock) -> bool:
    path = str(dock.run_dir("a") / "shim.0.json")
    return is_locked(path) and (record.read(path) or {}).get("phase") == "running"


def _printed(dock: Dock, share: float) -> bool:
    return len(dock.spool("a")) >= share * len(EXPECTED)


@pytest.mark.parametrize("kill", [_agent, _shim, _minder, _all, _everyone_else, _engine])
def test_no_kill_costs_a_byte_or_the_training(dock: Dock, kill: Callable[[Dock], None]) -> None:
    dock.dock({"a": dock.create("a", "python3", "-c", COUNT, image=PYTHON)})
    dock.work_here()
    for share in (0.05,) if kill is _engine else (0.05, 0.3, 0.6):
        until(partial(_printed, dock, share), f"{share} of it is there: {dock.log()}")
        kill(dock)
        until(partial(_watched, dock), f"a shim watches it: {dock.log()}")
    _open_gate(dock)
    dock.finish(dock.agents[-1])
    assert dock.last("a")["state"] == "SUCCEEDED", (dock.states("a"), dock.log())
    assert dock.spool("a") == EXPECTED
    assert dock.names("a").count("SUCCEEDED") == 1
    assert not dock.containers()
    assert not dock.marked()
    assert numbered(dock.states("a"))


@pytest.fixture
def plain(dock: Dock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dock]:
    """The same on a daemon without --live-restore, which ends its containers when it starts again."""
    argv = daemon.daemon_argv
    with monkeypatch.context() as patched:
        patched.setattr(daemon, "daemon_argv", lambda *a: [word for word in argv(*a) if word != "--live-restore"])
        dock.daemon.stop()
        dock.daemon.start()
        yield dock
        dock.close()
        dock.daemon.stop()
    dock.daemon.start()


def test_an_engine_that_ends_its_containers_is_named(plain: Dock) -> None:
    plain.dock(
        {"a": plain.create("a", "sh", "-c", FOREVER, flags=("--stop-timeout", "1")), "b": plain.create("b", "true")}
    )
    agent = plain.work_here()
    until(lambda: b"up" in plain.spool("a"), "a is up")
    until(lambda: plain.last("a")["state"] == "RUNNING", "its start was noted")
    plain.daemon.stop(crash=True)
    until(lambda: "does not answer" in str(plain.last("a")["reason"]), f"the agent says so: {plain.log()}")
    plain.daemon.start()
    plain.finish(agent)
    end = plain.last("a")
    assert end["state"] == "FAILED"
    assert "its engine restarted" in end["reason"]
    assert "without live-restore" in end["reason"]
    assert plain.last("b")["state"] == "SUCCEEDED"


def _reboot(dock: Dock, exit_code: int) -> None:
    """What a restart of the machine leaves: an ended container, a record of another boot, and nobody alive."""
    dock.dock(
        {
            "a": dock.create(
                "a", "sh", "-c", f"echo up; until [ -e /ekvi/out/gate ]; do sleep 0.02; done; exit {exit_code}"
            )
        }
    )
    agent = dock.work_here()
    until(lambda: b"up" in dock.spool("a"), "a is up")
    dock.kill_agent(agent)
    _shim(dock)
    _minder(dock)
    _open_gate(dock)
    until(lambda: not dock.daemon.run("ps", "-q", "--filter", f"name={dock.name('a')}").stdout, "it has ended")
    path = str(dock.run_dir("a") / "shim.0.json")
    fields = record.read(path)
    assert fields is not None
    Path(path).write_bytes(record.encode({**fields, "boot_id": "another"}))
    dock.work_to_end()


def test_a_restarted_server_fails_the_run_that_it_ended(dock: Dock) -> None:
    _reboot(dock, 255)
    assert dock.last("a")["state"] == "NODE_FAIL"
    assert "the server restarted while stage train ran; it exited with code 255" in dock.last("a")["reason"]
    assert not dock.containers()


def test_a_run_that_was_done_before_the_server_restarted_has_succeeded(dock: Dock) -> None:
    _reboot(dock, 0)
    assert (dock.last("a")["state"], dock.last("a")["exit_code"]) == ("SUCCEEDED", 0)


# --- whose files they are


@pytest.fixture
def other_user(dockerd: Dockerd) -> Iterator[Dock]:
    """The agent as a user who may speak with the engine and is not root."""
    with tempfile.TemporaryDirectory(prefix="ekvi-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # pytest's own folders are closed to others
        pyz = pack(folder / "agent.pyz")
        pyz.chmod(0o644)
        group = str(dockerd.socket.stat().st_gid)
        user = ["setpriv", "--reuid", "4711", "--regid", "4711", "--groups", group]
        desk = Dock(folder / "work", [*user, "/usr/bin/python3", "-I", "-S", str(pyz)])
        desk.daemon, desk.env = dockerd, dockerd.env
        desk.work.mkdir()
        try:
            yield desk
        finally:
            desk.close()


def _theirs(dock: Dock) -> None:
    for path in [dock.work, *dock.work.rglob("*")]:
        os.chown(path, 4711, 4711)


def test_files_that_the_containers_root_made_become_the_agents(other_user: Dock) -> None:
    makes = "umask 077; mkdir /ekvi/out/deep; echo x > /ekvi/out/deep/file"
    other_user.dock({"a": other_user.create("a", "sh", "-c", makes)})
    _theirs(other_user)
    other_user.work_to_end()
    assert other_user.last("a")["state"] == "SUCCEEDED", other_user.log()
    assert (other_user.run_dir("a") / "out" / "deep" / "file").stat().st_uid == 4711
    assert "notes" not in other_user.last("a")["data"]
    cleaned = other_user.call("clean", str(other_user.q))
    assert cleaned.returncode == 0, cleaned.stderr
    assert not other_user.q.exists()


def test_clean_gets_rid_of_roots_files_by_a_container(other_user: Dock) -> None:
    other_user.dock({"a": other_user.create("a", "true")})
    _theirs(other_user)
    other_user.work_to_end()
    late = other_user.run_dir("a") / "late"
    late.mkdir(mode=0o700)
    (late / "file").write_text("x")
    cleaned = other_user.call("clean", str(other_user.q))
    assert cleaned.returncode == 0, cleaned.stderr
    assert not other_user.q.exists()


def test_clean_says_what_it_cannot_remove(other_user: Dock) -> None:
    other_user.dock({"a": other_user.create("a", "true")})
    _theirs(other_user)
    other_user.work_to_end()
    late = other_user.run_dir("a") / "late"
    late.mkdir(mode=0o700)
    (late / "file").write_text("x")
    body = other_user.body()
    body["runs"][0]["env"] = {"DOCKER_HOST": "unix:///nowhere.sock"}
    other_user.put(body)
    refused = other_user.call("clean", str(other_user.q))
    assert refused.returncode == 1
    assert b"is not gone: " in refused.stderr
    assert str(late).encode() in refused.stderr
