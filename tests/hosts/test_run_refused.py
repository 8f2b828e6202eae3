"""Bad servers as `run` meets them: one sentence each with its mend, and the good server goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Duel
from tests.hosts.dockerd import PYTHON, Dockerd
from tests.hosts.registry import private_registry
from tests.hosts.sshd import Sshd, account, sshd
from tests.hosts.test_doctor import small_disk

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]

# What `run` says of each server, and the mend that stands behind it.
EXPECTED = {
    "unreachable": ("192.0.2.8", "route|network|address"),
    "closed": ("refuses connections", "sshd|port"),
    "silent": ("192.0.2.9", "network|firewall|address|timeout"),
    "wronguser": ("nobody-here", "user|key"),
    "wrongkey": ("login|key", "key"),
    "changed": ("host key", "ssh-keygen"),
    "nopython": ("/nowhere/python3", r"servers\.nopython|python"),
    "noengine": ("no container engine", "Install one"),
    "noright": ("is not for this user", "group"),
    "away": ("does not answer", "Start|systemctl|daemon"),
    "noimage": ("the registry has no such image", "name and tag"),
    "nologin": ("the registry wants a login", "docker login"),
    "nospace": ("left for", "workdir"),
    "nomount": ("/no such/data, which is to be mounted, is not there", "mounts"),
    "nodevice": ("/dev/no-such-device", "devices"),
    "nodriver": ("no NVIDIA driver is loaded", "driver"),
}


@dataclasses.dataclass
class Refused:
    """What two launches said: one with a good server among the bad ones, one of the bad ones alone."""

    mixed: subprocess.CompletedProcess[str]
    alone: subprocess.CompletedProcess[str]
    states: dict[str, tuple[str, str]]
    groups_after_alone: int

    def sentence(self, said: str, server: str) -> str:
        """The one line about a server."""
        found = [line for line in said.splitlines() if re.search(rf"^(refused: |  )(server )?{server}: ", line)]
        assert len(found) == 1, f"{server}: {found}\n{said}"
        return found[0]


def _server(machine: Sshd, **more: Any) -> dict[str, Any]:
    ssh = {"config": str(machine.config), "connect_timeout_s": 5.0, **more.pop("ssh", {})}
    return {"address": machine.alias, "vendor": "cpu", "training": "cpu", "ssh": ssh, **more}


def _without_engines(folder: Path) -> Path:
    """A PATH that has everything but docker and podman."""
    folder.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"):
        for program in Path(place).iterdir():
            if not program.name.startswith(("docker", "podman")) and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def _no_right(stack: ExitStack, dockerd: Dockerd) -> Sshd:
    """A machine whose user may not open the engine's socket."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    folder.chmod(0o755)
    user = stack.enter_context(account())
    kept = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"} | {"HOME": user.pw_dir}
    words = ["docker", "context", "create", "tests", "--docker", f"host=unix://{dockerd.socket}"]
    subprocess.run(words, check=True, capture_output=True, env=kept)
    Path(user.pw_dir, ".docker", "config.json").write_text('{"currentContext": "tests"}')
    subprocess.run(["chown", "-R", user.pw_name, user.pw_dir], check=True)
    return stack.enter_context(sshd(folder / "sshd", user=user.pw_name))


def _bad_links(stack: ExitStack, machine: Sshd, folder: Path) -> dict[str, dict[str, Any]]:
    """Servers that nobody can log in to."""
    for words in (["ip", "route", "%s", "unreachable", "192.0.2.8/32"],
                  ["iptables", "-w", "10", "%s", "OUTPUT", "-d", "192.0.2.9", "-j", "DROP"]):  # fmt: skip
        on, off = ("replace", "del") if words[0] == "ip" else ("-I", "-D")
        subprocess.run([w if w != "%s" else on for w in words], check=True)
        stack.callback(subprocess.run, [w if w != "%s" else off for w in words], check=True)
    closed = stack.enter_context(socket.socket())
    closed.bind(("127.0.0.1", 0))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other")], check=True)
    (folder / "wrong").write_text(machine.config.read_text().replace(str(machine.identity), str(folder / "other")))
    changed = stack.enter_context(sshd(folder / "changed"))
    changed.rekey()
    return {
        "unreachable": _server(machine, address="192.0.2.8"),
        "closed": _server(machine, ssh={"port": closed.getsockname()[1]}),
        "silent": _server(machine, address="192.0.2.9", ssh={"connect_timeout_s": 1.0}),
        "wronguser": _server(machine, address=f"nobody-here@{machine.alias}"),
        "wrongkey": _server(machine, ssh={"config": str(folder / "wrong")}),
        "changed": _server(changed),
    }


def _bad_machines(stack: ExitStack, machine: Sshd, dockerd: Dockerd, folder: Path) -> dict[str, dict[str, Any]]:
    """Servers that a login works on, and a run does not."""
    path = _without_engines(folder / "path")
    bare = stack.enter_context(sshd(folder / "bare", lines=(f"SetEnv PATH={path}",)))
    away = stack.enter_context(sshd(folder / "away", lines=(f"SetEnv DOCKER_HOST=unix://{folder}/none.sock",)))
    disk = stack.enter_context(small_disk(folder / "small", "1m"))
    return {
        "nopython": _server(machine, python="/nowhere/python3"),
        "noengine": _server(bare),
        "noright": _server(_no_right(stack, dockerd)),
        "away": _server(away),
        "noimage": _server(machine),
        "nospace": _server(machine, workdir=f"{disk}/work"),
        "nomount": _server(machine, mounts={"/no such/data": "/data"}),
        "nodevice": _server(machine),
        "nodriver": _server(machine, vendor="nvidia"),
    }


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory, dockerd: Dockerd) -> Iterator[Refused]:
    folder = tmp_path_factory.mktemp("refused")
    with ExitStack() as stack:
        keys = folder / "docker"
        keys.mkdir()
        (folder / "registry").mkdir()
        registry = stack.enter_context(private_registry(folder / "registry", "a password"))
        login = ["docker", "--config", str(keys), "login", "-u", registry.user, "--password-stdin", registry.address]
        subprocess.run(login, input=b"a password", check=True, capture_output=True, env={**os.environ, **dockerd.env})
        lines = (f"SetEnv DOCKER_HOST=unix://{dockerd.socket} DOCKER_CONFIG={keys}",)
        machine = stack.enter_context(sshd(folder / "sshd", lines=lines))
        plain = stack.enter_context(
            sshd(folder / "plain", lines=(f"SetEnv DOCKER_HOST=unix://{dockerd.socket} DOCKER_CONFIG={folder}",))
        )
        servers = {
            "good": _server(machine, workdir=str(folder / "work")),
            **_bad_links(stack, machine, folder),
            **_bad_machines(stack, machine, dockerd, folder),
            "nologin": _server(plain),
        }
        yield _launches(Duel(folder, folder / "runs", folder / "work"), servers, registry.address)


def _launches(duel: Duel, servers: dict[str, Any], registry: str) -> Refused:
    groups = {"model": "tiny", "data": "synthetic", "training": "cpu", "launcher": "container"}
    profile = {
        "defaults": [{k: v} for k, v in groups.items()] + [{"theme": "nord"}, {"pricing": "none"}, "_self_"],
        "stage": "train",
        "repeats": 1,
        "runner": {"name": "command", "argv": ["true"]},
        "launcher": {"image": PYTHON, "hf_cache": None, "ulimits": {"memlock": None, "stack": None}},
        "servers": servers,
    }
    profiles = duel.home / "xdg-config" / "ekvi-cockpit" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "two.yaml").write_text(json.dumps(profile))
    duel.env = {"EKVI_RUNS_DIR": str(duel.runs), "HOME": str(duel.home)}
    duel.env |= {f"XDG_{n}_HOME": str(duel.home / f"xdg-{n.lower()}") for n in ("CONFIG", "DATA", "STATE", "CACHE")}
    own = [
        f"noimage:launcher.image={registry}/team/none:1",
        f"nologin:launcher.image={registry}/team/none:1",
        "away:launcher.engine=docker",
        "nodevice:launcher.devices=[/dev/no-such-device]",
    ]
    bad = ",".join(n for n in servers if n != "good")
    alone = duel.call("run", "--profile", "two", *own, "--servers", bad)
    count = len(list((duel.runs / "groups").glob("*.json")))
    mixed = duel.call("run", "--profile", "two", *own)
    metas = [duel.meta(r) for r in duel.group["runs"]]
    return Refused(mixed, alone, {m["server"]: (m["state"], m.get("reason") or "") for m in metas}, count)


@pytest.mark.parametrize("server", EXPECTED)
def test_what_is_wrong_with_a_server_is_one_sentence_with_its_mend(refused: Refused, server: str) -> None:
    why, mend = EXPECTED[server]
    for said in (refused.mixed.stderr, refused.alone.stderr):
        sentence = refused.sentence(said, server)
        assert re.search(why, sentence)
        assert re.search(mend, sentence.split(why if why in sentence else ": ", 1)[1]), sentence
    state, reason = refused.states[server]
    assert state == "CANCELLED"
    assert reason.startswith("not launched: ")


def test_the_good_server_goes_on_and_the_exit_code_tells_of_the_others(refused: Refused) -> None:
    assert refused.states["good"][0] == "SUCCEEDED", refused.mixed.stderr
    assert refused.mixed.returncode == 3
    assert "Traceback" not in refused.mixed.stderr


def test_where_nothing_can_start_nothing_is_written(refused: Refused) -> None:
    assert refused.alone.returncode == 3
    assert refused.groups_after_alone == 0
    assert "no server can start" in refused.alone.stderr
    assert "Traceback" not in refused.alone.stderr
