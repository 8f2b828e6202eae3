"""What stands in the way of a run, on a real sshd and a real Docker daemon: one sentence each, with its mend."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cockpit.core.records import Access, RunPlan, ServerSpec, StagePlan
from cockpit.engine.checks import examine
from cockpit.engine.findings import Examined, Finding
from cockpit.hosts import connect
from tests.engine import conftest
from tests.hosts.dockerd import PYTHON, Dockerd
from tests.hosts.sshd import Sshd, account, sshd

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd; its user is root, its Docker client speaks with nobody."""
    with sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def run(launcher: str = "container", **launch: Any) -> RunPlan:
    return RunPlan(
        run="g.a.r1", group="g", server="a", repeat=0, sweep={}, launcher=launcher,
        stages=(StagePlan(stage="train", argv=("true",)),), config={"runner": {"name": "command"}}, launch=launch,
    )  # fmt: skip


def server(machine: Sshd | None, **changes: Any) -> ServerSpec:
    access = machine.access() if machine is not None else Access()
    values: dict[str, Any] = {"name": "a", "address": access.address, "access": access}
    return ServerSpec(**(values | changes))


async def ask(spec: ServerSpec, *runs: RunPlan, full: bool = False, peers: tuple[ServerSpec, ...] = ()) -> Examined:
    hosts = [connect(s.access) for s in (spec, *peers)]
    try:
        return await examine(hosts[0], spec, runs, peers=hosts[1:], full=full, profile="duel")
    finally:
        for host in hosts:
            await host.close()


def failure(examined: Examined) -> Finding:
    """The one failure there is: a sentence, and what to do."""
    failed = [f for f in examined.findings if f.level == "fail"]
    assert len(failed) == 1, examined.findings
    assert failed[0].mend
    assert "\n" not in failed[0].text
    return failed[0]


# --- on the way there
async def test_a_healthy_server_is_told_as_such(machine: Sshd, tmp_path: Path) -> None:
    found = await ask(server(machine, workdir=str(tmp_path / "work")), run("process"), full=True)
    assert found.fit, found.findings
    checks = {f.check for f in found.findings}
    assert {"login", "python", "workdir", "memory", "clock", "latency", "agents"} <= checks
    clock = next(f for f in found.findings if f.check == "clock")
    assert clock.level == "ok"
    assert "±" in clock.text
    assert not (tmp_path / "work").exists(), "a look leaves nothing behind"


async def test_an_unknown_name(machine: Sshd) -> None:
    access = replace(machine.access(), address="no-such-host.invalid")
    found = failure(await ask(ServerSpec(name="a", address=access.address, access=access), full=True))
    assert found.check == "login"
    assert "no-such-host.invalid" in found.text


async def test_a_closed_port(machine: Sshd) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        access = machine.access(port=closed.getsockname()[1])
        found = failure(await ask(server(machine, access=access)))
    assert "refuses connections" in found.text


async def test_a_port_that_answers_nothing(machine: Sshd) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        access = machine.access(port=mute.getsockname()[1], connect_timeout_s=1.0)
        found = failure(await ask(server(machine, access=access)))
    assert found.check == "login"


async def test_packets_that_vanish(machine: Sshd) -> None:
    access = replace(machine.access(connect_timeout_s=1.0), address="192.0.2.9")
    rule = ("OUTPUT", "-d", "192.0.2.9", "-j", "DROP")
    subprocess.run(["iptables", "-w", "10", "-I", *rule], check=True)
    try:
        found = failure(await ask(ServerSpec(name="a", address=access.address, access=access)))
    finally:
        subprocess.run(["iptables", "-w", "10", "-D", *rule], check=True)
    assert "192.0.2.9" in found.text


async def test_a_wrong_user(machine: Sshd) -> None:
    access = replace(machine.access(), address=f"nobody-here@{machine.alias}")
    found = failure(await ask(ServerSpec(name="a", address=access.address, access=access)))
    assert "nobody-here" in f"{found.text} {found.mend}"


async def test_a_wrong_key(machine: Sshd, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    config = tmp_path / "config"
    config.write_text(machine.config.read_text().replace(str(machine.identity), str(tmp_path / "other")))
    found = failure(await ask(server(machine, access=machine.access(config=str(config)))))
    assert found.check == "login"


async def test_a_changed_host_key(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as one:
        one.rekey()
        found = failure(await ask(server(one)))
    assert "SHA256:" in f"{found.text} {found.mend}"


# --- the machine
async def test_no_python(machine: Sshd) -> None:
    found = failure(await ask(server(machine, python="/nowhere/python3"), run("process")))
    assert found.check == "python"
    assert "/nowhere/python3" in found.text


async def test_missing_packages(tmp_path: Path, machine: Sshd) -> None:
    bare = tmp_path / "bare"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    plan = replace(run("process"), config={"runner": {"name": "smoke"}})
    found = failure(await ask(server(machine, python=f"{bare}/bin/python"), plan))
    assert "the smoke runner needs torch, pydantic" in found.text


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("full_up", [False, True])
async def test_no_space(machine: Sshd, tmp_path: Path, full_up: bool) -> None:
    with small_disk(tmp_path / "small", "1m") as disk:
        if full_up:
            subprocess.run(["dd", "if=/dev/zero", f"of={disk}/fill", "bs=64k"], capture_output=True, check=False)
        found = failure(await ask(server(machine, workdir=f"{disk}/work"), run("process")))
    assert found.check == "workdir"
    assert "left for" in found.text


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may look into."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_no_right_to_write(open_folder: Path) -> None:
    with account() as user, sshd(open_folder / "sshd", user=user.pw_name) as one:
        found = failure(await ask(server(one, workdir="/opt/ekvi-work"), run("process")))
    assert found.text == f"{user.pw_name} cannot write in /opt: Permission denied."


# --- container engines
@pytest.fixture
def docker(dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Dockerd:
    """This machine with the tests' own daemon."""
    for name, value in dockerd.env.items():
        monkeypatch.setenv(name, value)
    return dockerd


async def test_no_container_engine(machine: Sshd) -> None:
    found = failure(await ask(server(machine), run(engine="podman-of-another-name")))
    assert "no container engine" in found.text


async def test_no_right_to_the_engine(dockerd: Dockerd, open_folder: Path) -> None:
    with account() as user, sshd(open_folder / "sshd", user=user.pw_name) as one:
        home = Path(user.pw_dir)
        (home / ".docker").mkdir()
        (home / ".docker" / "config.json").write_text('{"currentContext": "tests"}')
        words = ["docker", "context", "create", "tests", "--docker", f"host=unix://{dockerd.socket}"]
        env = {**os.environ, "HOME": str(home)}
        subprocess.run(
            words, check=True, capture_output=True, env={k: v for k, v in env.items() if k != "DOCKER_HOST"}
        )
        subprocess.run(["chown", "-R", user.pw_name, str(home)], check=True)
        found = failure(await ask(server(one), run(engine="docker", image=PYTHON)))
    assert found.check == "engine"
    assert "is not for this user" in found.text
    assert "group" in str(found.mend)


async def test_a_daemon_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = failure(await ask(server(None), run(engine="docker", image=PYTHON)))
    assert "does not answer" in found.text


async def test_an_image_that_is_there(docker: Dockerd) -> None:
    found = await ask(server(None), run(engine="docker", image=PYTHON), full=True)
    assert found.fit, found.findings
    assert found.container is not None
    assert found.container.image_id is not None
    told = {f.check: f.text for f in found.findings}
    assert told["engine"].startswith("docker ")
    assert told["image"].startswith(PYTHON)


async def test_an_image_that_may_not_be_pulled(docker: Dockerd) -> None:
    found = failure(await ask(server(None), run(engine="docker", image="nowhere/none:1", pull="never")))
    assert "launcher.pull is never" in found.text


async def test_an_image_that_was_not_built(docker: Dockerd) -> None:
    found = failure(await ask(server(None), run(engine="docker", image=None)))
    assert "has not been built" in found.text
    assert "`ekvi-cockpit build --profile duel`" in str(found.mend)


async def test_an_image_that_is_to_be_sent_and_is_not_here(docker: Dockerd) -> None:
    found = failure(await ask(server(None), run(engine="docker", image="none/none:1", send_from="local")))
    assert "to be sent from this machine" in found.text


async def test_an_image_to_be_pulled_is_no_failure_before_it_was_tried(docker: Dockerd) -> None:
    found = await ask(server(None), run(engine="docker", image="localhost:9/none:1"))
    assert found.fit, found.findings


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A real registry with one login, anna."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    subprocess.run(["htpasswd", "-Bbc", str(folder / "htpasswd"), "anna", "pass"], check=True, capture_output=True)
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
        f"auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}\n"
    )
    program = shutil.which("docker-registry")
    assert program
    process = subprocess.Popen(
        [program, "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(400):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            process.poll()
        yield f"localhost:{port}"
    finally:
        process.kill()
        process.wait(10)


async def test_registries_and_their_logins(docker: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with registry(tmp_path / "registry") as place:
        plan = run(engine="docker", image=f"{place}/team/none:1")
        no_login = failure(await ask(server(None), plan, full=True))
        assert "login" in f"{no_login.text} {no_login.mend}"
        docker.run("login", "-u", "anna", "-p", "pass", place)
        unknown = failure(await ask(server(None), plan, full=True))
        assert f"{place} has no image {place}/team/none:1" in unknown.text
        mine = await ask(server(None), replace(plan, launch={**plan.launch, "registry_login": "mine"}), full=True)
        assert mine.fit
        told = str([f.text for f in mine.findings])
        assert "this user's login" in told
        assert "pass" not in told.replace("passes", "")


async def test_a_registry_that_cannot_be_reached(docker: Dockerd) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        image = f"localhost:{closed.getsockname()[1]}/none:1"
        found = failure(await ask(server(None), run(engine="docker", image=image), full=True))
    assert "cannot be reached" in found.text


async def test_a_missing_mount(docker: Dockerd) -> None:
    spec = server(None, mounts={"/no such/data": "/data", "/etc": "/x"})
    found = failure(await ask(spec, run(engine="docker", image=PYTHON)))
    assert found.text.startswith("/no such/data, which is to be mounted, is not there")


# A pull whose login is a file on the server, of an engine that never ends.
_PULLING = """
import asyncio, sys
from cockpit.engine.imagecommand import command
from cockpit.hosts import LocalHost
engine, work = sys.argv[1:]
asyncio.run(command(LocalHost(), [engine, "pull", "x"], say=print, timeout=60, workdir=work, login=b"a login"))
"""


async def test_a_login_that_a_killed_pull_left_is_removed_and_no_other(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\nwhile :; do sleep 0.1; done\n")
    engine.chmod(0o755)
    work = tmp_path / "work"
    pulls = [subprocess.Popen([sys.executable, "-c", _PULLING, str(engine), str(work)]) for _ in range(2)]
    try:
        files = conftest.eventually(lambda: len(f := list(work.glob("transfer/login-*/config.json"))) == 2 and f)
        left, used = files
        assert left.stat().st_mode & 0o777 == 0o600
        for pull in pulls:
            pull.kill()
        _kill(str(left.parent))
        now = time.time()
        for file in files:
            os.utime(file.parent, (now - 300, now - 300))
        fresh = work / "transfer" / "login-fresh"
        fresh.mkdir()
        found = await ask(server(None, workdir=str(work)), full=True)
        assert [f.text for f in found.findings if f.check == "logins"] == [
            f"removed a registry login that a killed pull had left in {work}/transfer"
        ]
        assert (left.parent.exists(), used.exists(), fresh.exists()) == (False, True, True)
    finally:
        _kill(str(work))
        for pull in pulls:
            pull.kill()
            pull.wait(10)


def _kill(words: str) -> None:
    """kill -9 of what has `words` in its words, in one round after another until none is left."""
    end = time.monotonic() + 10
    while pids := [p.pid for p in psutil.process_iter(["cmdline"]) if words in " ".join(p.info["cmdline"] or ())]:
        assert time.monotonic() < end
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# --- secrets, devices, nodes
async def test_a_secret_that_nobody_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MY_KEY", raising=False)
    found = failure(await ask(server(None, secrets=("MY_KEY",)), run("process")))
    assert found.text == "MY_KEY has no value here."
    monkeypatch.setenv("MY_KEY", "s3cret-value")
    fit = await ask(server(None, secrets=("MY_KEY",)), run("process"))
    assert fit.fit
    assert "s3cret-value" not in str(fit)


async def test_an_absent_device() -> None:
    found = failure(await ask(server(None, vendor="nvidia"), run("process")))
    assert "no NVIDIA driver is loaded" in found.text


async def test_nodes_that_do_not_reach_each_other(machine: Sshd) -> None:
    subprocess.run(["ip", "route", "replace", "unreachable", "192.0.2.8/32"], check=True)
    try:
        spec = server(machine, nodes=("one", "two"), master_addr="192.0.2.8", master_port=_free_pair())
        examined = await ask(spec, run("process"), peers=(spec,))
    finally:
        subprocess.run(["ip", "route", "del", "unreachable", "192.0.2.8/32"], check=True)
    (found,) = [f for f in examined.findings if f.check == "ports"]
    assert found.level == "fail"
    assert "does not reach 192.0.2.8 port" in found.text
    assert "master_addr" in str(found.mend)


async def test_nodes_that_reach_each_other(machine: Sshd) -> None:
    spec = server(machine, nodes=("one", "two"), master_addr="127.0.0.1", master_port=_free_pair())
    found = await ask(spec, run("process"), peers=(spec,))
    assert any("2 nodes meet at 127.0.0.1" in f.text for f in found.findings)


async def test_nodes_whose_work_folder_is_shared_are_told_why_and_what_to_set(machine: Sshd, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    work = str(tmp_path / "shared" / "work")
    spec = server(machine, nodes=("one", "two"), master_addr="127.0.0.1", master_port=_free_pair(), workdir=work)
    found = failure(await ask(spec, run("process"), peers=(spec,)))
    assert f"share the work folder {work}, and each node's agent needs one of its own" in found.text
    assert str(found.mend).startswith("Leave servers.a.workdir out")
    assert list((tmp_path / "shared").iterdir()) == [], "a look leaves nothing behind"


def _free_pair() -> int:
    while True:
        with socket.socket() as s, socket.socket() as t:
            s.bind(("", 0))
            port = int(s.getsockname()[1])
            try:
                t.bind(("", port + 1))
            except (OSError, OverflowError):
                continue
            return port
