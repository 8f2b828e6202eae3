"""Groups on servers behind a real sshd: they outlive the cockpit, and a link that breaks costs nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine import conftest
from tests.engine.conftest import TRAINER, Duel, psutil_gone
from tests.hosts.sshd import Sshd, sshd

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(240)]


BURSTS = """
import os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
for step in range(1, 601):
    while (step - 1) % 200 == 0 and not os.path.exists(here + "/gate." + str(step // 200)):
        time.sleep(0.01)
    time.sleep(0.002)
    print('@ekvi {"type":"iteration","step":%d,"total":600,"loss":1.0,"step_s":0.002,"tokens":8}' % step, flush=True)
    print("noise " * 50, flush=True)
while not os.path.exists(here + "/gate.3"):
    time.sleep(0.01)
"""

# A cockpit that soon says LOST, before its pauses are long; test_duel_services waits out the real time.
HASTY = """
from cockpit.cli import script
from cockpit.engine import reconnect
reconnect.LOST_AFTER_S = 2.0
script()
"""


def eventually(what: Callable[[], Any], seconds: float = 90) -> Any:
    """As in the engine's tests, with more patience: other tests may have the processors."""
    return conftest.eventually(what, seconds)


class Far(Duel):
    """A profile `toy` whose server `left`, and perhaps `right`, is behind a sshd of the test's own."""

    servers: dict[str, dict[str, Any]]
    more: dict[str, Any]
    started: list[subprocess.Popen[bytes]]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        self.started.append(super().start(*words))
        return self.started[-1]

    def write(
        self, *, steps: int = 20, pause: float = 0.002, repeats: int = 1, hold: bool = False, program: str = TRAINER
    ) -> None:
        (self.home / "trainer.py").write_text(program)
        argv = ["python3", str(self.home / "trainer.py"), str(steps), str(pause), *([str(self.gate)] if hold else [])]
        profile = {
            "defaults": [
                {"model": "tiny"}, {"data": "synthetic"}, {"training": "cpu"}, {"launcher": "process"},
                {"theme": "nord"}, {"pricing": "none"}, "_self_",
            ],
            "stage": "train",
            "repeats": repeats,
            "runner": {"name": "command", "argv": argv},
            "servers": self.servers,
            **self.more,
        }  # fmt: skip
        folder = self.home / "xdg-config" / "ekvi-cockpit" / "profiles"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "toy.yaml").write_text(json.dumps(profile))

    def steps(self, run: str) -> list[int]:
        return super().steps(run) if (self.runs / run / "events.jsonl").exists() else []

    def states(self, run: str) -> list[str]:
        events = [json.loads(line) for line in (self.runs / run / "events.jsonl").read_text().splitlines()]
        return [e["state"] for e in events if e["type"] == "state"]

    def said(self) -> str:
        return (self.home / "err.txt").read_text()

    def held(self) -> str:
        """The first run that waits at step 3 with all that it said so far mirrored."""

        def found() -> str | None:
            groups = list((self.runs / "groups").glob("*.json"))
            runs = self.group["runs"] if groups else []
            known = [r for r in runs if (self.runs / r / "events.jsonl").exists()]
            return next((r for r in known if len(self.steps(r)) >= 3), None)

        run: str = eventually(found)
        return run

    def spool(self, run: str) -> Path:
        return next(self.work.glob(f"groups/*/runs/{run}/spool.log"))


def _server(machine: Sshd, work: Path, **more: Any) -> dict[str, Any]:
    access = machine.access()
    ssh = {"config": access.config, "connect_timeout_s": 5.0, "keepalive_s": 1.0, "keepalive_count": 2}
    return {
        "address": access.address, "vendor": "cpu", "training": "cpu", "workdir": str(work), "stop_grace_s": 1.0,
        "ssh": ssh, **more,
    }  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sshd]:
    """A server."""
    with sshd(tmp_path / "sshd") as made:
        yield made


@pytest.fixture
def far(tmp_path: Path, machine: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    """The toy on one server; what it started and left is ended afterwards."""
    made = Far(tmp_path, tmp_path / "runs", tmp_path / "work")
    made.servers, made.more, made.started = {"left": _server(machine, made.work)}, {}, []
    monkeypatch.setenv("EKVI_RUNS_DIR", str(made.runs))
    made.write()
    yield made
    for cockpit in made.started:
        cockpit.kill()
        cockpit.wait(10)
    for pid in made.pids(""):
        with psutil_gone():
            process = psutil.Process(pid)
            if pid != os.getpid() and process.name() != "sshd":
                process.kill()


def test_a_group_runs_on_a_server_and_comes_home(far: Far) -> None:
    done = far.call("run", "--profile", "toy", "--repeats", "2", "--output", "json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], len(last["runs"])) == ("SUCCEEDED", 2)
    for run in last["runs"]:
        assert far.steps(run) == list(range(1, 21))
        assert (far.runs / run / "artifacts" / "result.txt").read_text() == run
        assert len(far.meta(run)["artifacts"]["result.txt"]["sha256"]) == 64
    assert list((far.work / "groups").iterdir()) == [], "what is home is taken off the server"


def test_a_cockpit_killed_in_the_first_minute_finds_all_after_the_last_run_ended(far: Far) -> None:
    far.write(hold=True, repeats=2)
    cockpit = far.start("run", "--profile", "toy")
    first = far.held()
    cockpit.send_signal(signal.SIGKILL)
    cockpit.wait(10)
    far.release()
    ends = far.work.glob
    eventually(lambda: sum("SUCCEEDED" in p.read_text() for p in ends("groups/*/runs/*/states.jsonl")) == 2)
    eventually(lambda: not far.pids("agent-"))
    spools = {p.parent.name: p.read_bytes() for p in ends("groups/*/runs/*/spool.log")}
    attached = far.call("attach", "last", "--output", "json")
    assert attached.returncode == 0, attached.stderr
    assert json.loads(attached.stdout.splitlines()[-1])["state"] == "SUCCEEDED"
    assert first in spools
    for run, spool in spools.items():
        assert (far.runs / run / "stdout.log").read_bytes() == spool
        assert far.steps(run) == list(range(1, 21))


@pytest.mark.soak  # test_duel_lost cuts a wire as often, and looks at every byte too
def test_a_link_that_is_cut_again_and_again_costs_no_byte_and_is_said_each_time(far: Far, machine: Sshd) -> None:
    far.write(program=BURSTS)
    cockpit = far.start("run", "--profile", "toy")
    (run,) = eventually(lambda: list((far.runs / "groups").glob("*.json")) and far.group["runs"])
    copy = far.home / "copy"
    for burst in range(3):
        (far.home / f"gate.{burst}").touch()
        eventually(lambda burst=burst: far.steps(run)[-1:] > [burst * 200])  # type: ignore[misc]
        if burst == 0:
            os.link(far.spool(run), copy)  # the queue's folder is taken off the server in the end
        eventually(machine.cut)
        eventually(lambda burst=burst: far.said().count(" is back after ") == burst + 1)  # type: ignore[misc]
        eventually(lambda burst=burst: far.steps(run)[-1] == burst * 200 + 200)  # type: ignore[misc]
    (far.home / "gate.3").touch()
    assert cockpit.wait(120) == 0, far.said()
    assert far.said().count(" is away: ") == 3
    assert copy.read_bytes() == (far.runs / run / "stdout.log").read_bytes()
    assert far.steps(run) == list(range(1, 601))
    assert "LOST" not in far.states(run), "a link that was away for a moment is no lost server"


def test_a_server_that_stops_and_starts_again_is_lost_and_then_tells_the_truth(
    far: Far, machine: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.write(hold=True, repeats=2)
    far.program = ("-c", HASTY)
    cockpit = far.start("run", "--profile", "toy")
    run = far.held()
    machine.stop()
    eventually(lambda: "LOST" in far.states(run))
    assert cockpit.poll() is None, "it goes on trying"
    eventually(lambda: far.meta(run)["state"] == "LOST")  # written after the journal
    machine.start()
    eventually(lambda: far.states(run)[-1] == "RUNNING")
    eventually(lambda: far.meta(run)["state"] == "RUNNING")
    far.release()
    assert cockpit.wait(120) == 0, far.said()
    for each in far.group["runs"]:
        assert far.states(each)[-1] == "SUCCEEDED"
        assert far.steps(each) == list(range(1, 21))
    assert "Traceback" not in far.said()


def test_a_stop_reaches_a_server_that_was_away(far: Far, machine: Sshd) -> None:
    far.write(hold=True)
    cockpit = far.start("run", "--profile", "toy")
    run = far.held()
    machine.stop()
    eventually(lambda: " is away: " in far.said())
    cockpit.send_signal(signal.SIGINT)
    eventually(lambda: "reaches it when it is back" in far.said())
    machine.start()
    assert cockpit.wait(120) == 130, far.said()
    assert far.states(run)[-1] == "CANCELLED"
    assert not far.pids("trainer.py")


def test_attach_to_a_server_that_is_away_waits_for_it(far: Far, machine: Sshd) -> None:
    far.write(hold=True)
    assert far.call("run", "--profile", "toy", "--detach").returncode == 0
    machine.stop()
    away = far.call("fetch", "last")
    assert away.returncode == 3
    assert "Traceback" not in away.stderr
    cockpit = far.start("attach", "last")
    eventually(lambda: " is away: " in far.said())
    machine.start()
    far.release()
    assert cockpit.wait(120) == 0, far.said()
    assert far.steps(far.group["runs"][0]) == list(range(1, 21))


def test_one_server_that_cannot_be_reached_keeps_no_other_from_starting(far: Far, tmp_path: Path) -> None:
    with sshd(tmp_path / "other") as other:
        far.servers["right"] = _server(other, tmp_path / "work2")
    far.write()
    done = far.call("run", "--profile", "toy", "--output", "json")
    assert done.returncode == 3, done.stderr
    refused = [line for line in done.stderr.splitlines() if line.startswith("refused: server right: ")]
    assert len(refused) == 1
    states = {far.meta(r)["server"]: far.meta(r) for r in far.group["runs"]}
    assert states["left"]["state"] == "SUCCEEDED"
    assert (states["right"]["state"], states["right"]["reason"][:13]) == ("CANCELLED", "not launched:")
    again = far.call("attach", "last")
    assert again.returncode == 3, again.stderr
    far.more["require_all"] = True
    far.write()
    before = len(list((far.runs / "groups").glob("*.json")))
    all_ = far.call("run", "--profile", "toy")
    assert all_.returncode == 3
    assert len(list((far.runs / "groups").glob("*.json"))) == before, "nothing is started"


def test_where_nothing_can_start_nothing_is_made(far: Far, machine: Sshd) -> None:
    machine.stop()
    done = far.call("run", "--profile", "toy")
    assert done.returncode == 3
    assert not list((far.runs / "groups").glob("*.json"))
    assert "Traceback" not in done.stderr


def test_a_changed_host_key_is_told_and_never_tried_again_while_others_go_on(
    far: Far, machine: Sshd, tmp_path: Path
) -> None:
    with sshd(tmp_path / "other") as other:
        far.servers["right"] = _server(other, tmp_path / "work2")
        far.write(hold=True)
        assert far.call("run", "--profile", "toy", "--detach").returncode == 0
        other.rekey()
        cockpit = far.start("attach", "last")
        eventually(lambda: "error: " in far.said())
        far.release()
        assert cockpit.wait(120) == 3, far.said()
        states = {far.meta(r)["server"]: far.meta(r)["state"] for r in far.group["runs"]}
        assert states == {"left": "SUCCEEDED", "right": "LOST"}
        assert far.said().count("error: ") == 1
        other.trust()
        again = far.call("attach", "last")
        assert again.returncode == 0, again.stderr
        assert {far.meta(r)["state"] for r in far.group["runs"]} == {"SUCCEEDED"}


def test_what_the_patterns_leave_out_stays_on_the_server_until_it_is_asked_for(far: Far) -> None:
    far.more["fetch"] = ["*.json"]
    far.write()
    done = far.call("run", "--profile", "toy")
    assert done.returncode == 0, done.stderr
    (run,) = far.group["runs"]
    assert not (far.runs / run / "artifacts" / "result.txt").exists()
    assert done.stderr.count("Left on ") == 1
    assert f"ekvi-cockpit fetch {far.group['id']} --pattern" in done.stderr
    more = far.call("fetch", "last", "--pattern", "*.txt")
    assert more.returncode == 0, more.stderr
    assert (far.runs / run / "artifacts" / "result.txt").read_text() == run
    whole = far.call("fetch", "last", "--pattern", "**")
    assert whole.returncode == 0, whole.stderr
    assert list((far.work / "groups").iterdir()) == []


def test_a_dry_run_names_the_server_and_starts_nothing(far: Far) -> None:
    done = far.call("run", "--profile", "toy", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "ssh" in done.stdout
    assert not far.work.exists()
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0


TOKEN = "hf_Planted" + "Token0123456789"  # in no file of the repository as it is looked for


def _holders(value: str) -> list[str]:
    """Processes whose environment or words hold the value."""
    found = []
    for process in psutil.process_iter(["pid"]):
        for name in ("environ", "cmdline"):
            with psutil_gone(), contextlib.suppress(OSError):
                if value.encode() in Path(f"/proc/{process.pid}/{name}").read_bytes():
                    found.append(f"{process.pid} {name}: {Path(f'/proc/{process.pid}/cmdline').read_text()}")
    return found


def test_a_secret_is_a_file_on_the_server_and_nowhere_else(far: Far) -> None:
    far.servers["left"]["secrets"] = ["HF_TOKEN"]
    (far.home / "here.txt").write_text("from the laptop")
    far.servers["left"]["files"] = {str(far.home / "here.txt"): "there.txt"}
    far.write(hold=True)
    missing = far.call("run", "--profile", "toy")
    assert missing.returncode == 3
    assert "HF_TOKEN" in missing.stderr
    hf = far.home / "hf"
    hf.mkdir()
    (hf / "token").write_text(TOKEN + "\n")
    far.env["HF_HOME"] = str(hf)  # not in the environment: what the test's own cockpit has there is no leak
    assert TOKEN not in far.call("run", "--profile", "toy", "--dry-run").stdout
    cockpit = far.start("run", "--profile", "toy", "--output", "json", "--with", "log,gpu")
    far.held()
    (secret,) = far.work.glob("groups/*/secrets/*")
    assert (secret.name, secret.read_text(), secret.stat().st_mode & 0o777) == ("HF_TOKEN", TOKEN, 0o600)
    assert not _holders(TOKEN)
    assert [p.read_text() for p in far.work.glob("files/*/here.txt")] == ["from the laptop"]
    secret_path = secret.parent
    on_server = [p for p in far.work.rglob("*") if p.is_file() and p != secret]
    assert not [p for p in on_server if TOKEN.encode() in p.read_bytes()]
    far.release()
    assert cockpit.wait(120) == 0, far.said()
    assert not secret_path.exists()
    everything = [p for p in far.home.rglob("*") if p.is_file() and p != hf / "token"]
    assert [str(p) for p in everything if TOKEN.encode() in p.read_bytes()] == []


def test_a_local_file_that_is_missing_is_named_by_its_key(far: Far) -> None:
    far.servers["left"]["files"] = {"nowhere.txt": "there.txt"}
    far.write()
    done = far.call("run", "--profile", "toy")
    assert done.returncode in (2, 3)
    assert "servers.left.files: nowhere.txt is not here" in done.stderr


def test_a_bound_on_output_is_said_and_the_run_goes_on(far: Far) -> None:
    far.more["limits"] = {"log_by": 2000}
    far.write(steps=200)
    done = far.call("run", "--profile", "toy")
    assert done.returncode == 0, done.stderr
    (run,) = far.group["runs"]
    assert (far.runs / run / "stdout.log").stat().st_size == 2000
    assert done.stderr.count("of output: no more of it is taken") == 1
    events = [json.loads(line) for line in (far.runs / run / "events.jsonl").read_text().splitlines()]
    assert [e["code"] for e in events if e["type"] == "diagnostic" and e["code"] == "log_limit"]
    assert far.states(run)[-1] == "SUCCEEDED"
