"""A planted token travels as a file and is found nowhere else, from before the launch to after the end, nor after a
crash: each process of the machine, what the engine keeps of a container, and every file of both sides."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import Duel, eventually
from tests.hosts.dockerd import PYTHON, Dockerd
from tests.hosts.sshd import Sshd, sshd

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]

TOKEN = "hf_Planted" + "Token9876543210"  # in no file of the repository as it is looked for
WORDS = "plain words" + " of no known shape"  # of a secret that only its name in the profile tells
TRAINER = """
import hashlib, json, os, time
secret = open(os.environ["HF_TOKEN_PATH"], "rb").read()
print(hashlib.sha256(secret).hexdigest(), flush=True)
for step in (1, 2, 3):
    said = {"type": "iteration", "step": step, "total": 3, "loss": 1.0, "step_s": 0.1}
    print("@ekvi " + json.dumps(said), flush=True)
while not os.path.exists("/gate/open"):
    time.sleep(0.02)
"""
BREAKS = """
from cockpit.cli import script
from cockpit.engine import deliver, session
from cockpit.telemetry import deploy
async def broken(*args, **more):
    values = {name: deliver.secret(name).encode() for name in ("HF_TOKEN", "LICENCE")}
    raise RuntimeError(f"cannot go on with {values}")
"""
CRASH = {
    "command": BREAKS + "deploy.deploy = broken\nscript()",
    "screen": BREAKS + "session.LiveSession.run = broken\nscript()",
}


class Sampler:
    """Looks at every process of this machine, again and again; `found` says where the token stood."""

    def __init__(self, dockerd: Dockerd, value: str) -> None:
        self.found: set[str] = set()
        self.rounds = 0
        self.containers = 0
        self._dockerd = dockerd
        self._value = value.encode()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._processes), threading.Thread(target=self._inspect)]

    def __enter__(self) -> Sampler:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _processes(self) -> None:
        while not self._over.wait(0.01):
            for process in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        if self._value in (process / name).read_bytes():
                            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                            self.found.add(f"{name} of {words[:300]}")
            self.rounds += 1

    def _inspect(self) -> None:
        while not self._over.wait(0.1):
            ids = self._dockerd.run("ps", "-aq", check=False).stdout.split()
            if ids:
                said = self._dockerd.run("inspect", *ids, check=False).stdout
                self.containers += "ekvi.run" in said
                if self._value.decode() in said:
                    self.found.add("docker inspect")


def _holding(folder: Path, value: str, *but: Path) -> list[str]:
    """Files below a folder that hold the value."""
    files = [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p not in but]
    return [str(p) for p in files if value.encode() in p.read_bytes()]


@pytest.fixture
def planted(tmp_path: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Duel]:
    """A profile whose server has a secret; its value stands in the user's Hugging Face folder alone."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    home = tmp_path / "home"
    (home / "hf").mkdir(parents=True)
    (home / "gate").mkdir()
    (home / "hf" / "token").write_text(TOKEN + "\n")
    with sshd(tmp_path / "sshd", lines=(f"SetEnv DOCKER_HOST=unix://{dockerd.socket}",)) as machine:
        duel = Duel(home, home / "runs", tmp_path / "work")
        duel.env = {f"XDG_{n}_HOME": str(home / f"xdg-{n.lower()}") for n in ("CONFIG", "DATA", "STATE", "CACHE")}
        duel.env |= {"EKVI_RUNS_DIR": str(duel.runs), "HF_HOME": str(home / "hf"), "HOME": str(home)}
        _profile(duel, machine)
        yield duel
        for pid in duel.pids(""):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def _profile(duel: Duel, machine: Sshd) -> None:
    groups = {"model": "tiny", "data": "synthetic", "training": "cpu", "launcher": "container"}
    server = {
        "address": machine.alias, "vendor": "cpu", "training": "cpu", "workdir": str(duel.work),
        "ssh": {"config": str(machine.config), "keepalive_s": 1.0}, "secrets": ["HF_TOKEN"],
        "mounts": {str(duel.home / "gate"): "/gate"},
    }  # fmt: skip
    profile = {
        "defaults": [{k: v} for k, v in groups.items()] + [{"theme": "nord"}, {"pricing": "none"}, "_self_"],
        "stage": "train",
        "repeats": 1,
        "runner": {"name": "command", "argv": ["python3", "-c", TRAINER]},
        "launcher": {"image": PYTHON, "hf_cache": None, "ulimits": {"memlock": None, "stack": None}},
        "servers": {"left": server},
    }
    folder = duel.home / "xdg-config" / "ekvi-cockpit" / "profiles"
    folder.mkdir(parents=True)
    (folder / "toy.yaml").write_text(json.dumps(profile))


def test_a_planted_token_is_one_file_and_nowhere_else(planted: Duel, dockerd: Dockerd) -> None:
    source = planted.home / "hf" / "token"
    with Sampler(dockerd, TOKEN) as sampler:
        before = sampler.rounds
        dry = planted.call("run", "--profile", "toy", "--dry-run").stdout
        cockpit = planted.start("run", "--profile", "toy", "--output", "json", "--with", "log,gpu")
        (spool,) = eventually(lambda: [p for p in planted.work.rglob("spool.log") if p.stat().st_size > 64])
        (secret,) = planted.work.glob("groups/*/secrets/*")
        assert (secret.read_text(), secret.stat().st_mode & 0o777) == (TOKEN, 0o600)
        assert spool.read_text().startswith(hashlib.sha256(TOKEN.encode()).hexdigest()), "the program has it"
        seen = sampler.containers
        eventually(lambda: sampler.containers > seen)
        assert _holding(planted.work, TOKEN, secret) == []
        (planted.home / "gate" / "open").touch()
        assert cockpit.wait(60) == 0, (planted.home / "err.txt").read_text()
        said = [planted.call("compare", "last", "--output", form).stdout for form in ("text", "json", "md", "html")]
        said += [planted.call("show", "last", "--output", form).stdout for form in ("text", "json")]
        planted.call("export", "last", "--to", "bundle")
    assert sampler.rounds > before + 20
    assert sampler.found == set()
    assert TOKEN not in "".join([dry, *said])
    assert not secret.exists()
    assert _holding(planted.work, TOKEN) == []
    assert _holding(planted.home, TOKEN, source) == []


@pytest.mark.parametrize("face", CRASH)
def test_a_crash_tells_no_secret(planted: Duel, face: str) -> None:
    profile = planted.home / "xdg-config" / "ekvi-cockpit" / "profiles" / "toy.yaml"
    document = json.loads(profile.read_text())
    document["servers"]["left"]["secrets"] = ["HF_TOKEN", "LICENCE"]
    profile.write_text(json.dumps(document))
    (planted.home / "gate" / "open").touch()
    words = [sys.executable, "-c", CRASH[face], "run", "--profile", "toy", *(["--watch"] if face == "screen" else [])]
    done = subprocess.run(
        ["script", "-qec", shlex.join(words), "/dev/null"],
        env={**os.environ, **planted.env, "LICENCE": WORDS, "TERM": "xterm"},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 1, text
    assert f"the {face} broke off (RuntimeError: cannot go on with" in text
    assert "***" in text
    (report,) = (planted.home / "xdg-state" / "ekvi-cockpit").glob("crash-*.txt")
    assert "RuntimeError" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600
    for value in (TOKEN, WORDS):
        assert value not in text
        assert value not in report.read_text()
        assert _holding(planted.runs, value) == []
    if face == "screen":
        planted.call("attach", "last")
    assert _holding(planted.work, WORDS) == []
