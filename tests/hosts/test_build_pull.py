"""Images come to a server from a registry, with this user's login or the server's own, or from another machine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import ServerSpec
from cockpit.engine.images import Place, ensure_image
from tests.hosts.dockerd import BUSYBOX, Dockerd, private_dockerd
from tests.hosts.engines import Engine, watching_argvs
from tests.hosts.registry import Registry, private_registry

pytestmark = pytest.mark.hosts

PASSWORD = "sesame-pull-9184"
SERVER = ServerSpec(name="left", vendor="cpu")


@pytest.fixture(scope="module")
def other() -> Iterator[Dockerd]:
    """A second daemon, which has other images."""
    with private_dockerd() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def registry(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that has PRIVATE:1."""
    folder = tmp_path_factory.mktemp("registry")
    with private_registry(folder, PASSWORD) as found:
        name = f"{found.address}/team/thing:1"
        login = folder / "login"
        login.mkdir()
        (login / "config.json").write_text(json.dumps(auths(found)))
        dockerd.run("tag", BUSYBOX, name)
        dockerd.run("--config", str(login), "push", name)
        dockerd.run("rmi", name)
        yield found


def auths(registry: Registry, password: str = PASSWORD) -> dict[str, object]:
    entry = base64.b64encode(f"{registry.user}:{password}".encode()).decode()
    return {"auths": {registry.address: {"auth": entry}}}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's folder of docker's settings, empty."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


@pytest.fixture
def host(dockerd: Dockerd, tmp_path: Path) -> Engine:
    return Engine("left", dockerd, tmp_path / "work")


def launch(image: str, **more: str) -> dict[str, object]:
    return {"kind": "container", "engine": "docker", "image": image, "pull": "missing", "send_from": None, **more}


def ensure(
    host: Engine, settings: dict[str, object], *, local: Engine | None = None, source: Engine | None = None
) -> list[str]:
    lines: list[str] = []
    asyncio.run(ensure_image(Place(host, SERVER, settings, lines.append, local or host), source=source))
    return lines


def has(daemon: Dockerd, image: str) -> bool:
    return daemon.run("image", "inspect", image, check=False).returncode == 0


def left_over(host_work: Path) -> list[Path]:
    return [p for p in host_work.rglob("*") if p.is_file()]


def test_this_users_login_pulls_and_stays_nowhere(
    host: Engine, dockerd: Dockerd, registry: Registry, mine: Path, tmp_path: Path
) -> None:
    (mine / "config.json").write_text(json.dumps(auths(registry)))
    image = f"{registry.address}/team/thing:1"
    token = base64.b64encode(f"{registry.user}:{PASSWORD}".encode()).decode()
    with watching_argvs(token) as encoded, watching_argvs(PASSWORD) as plain:
        lines = ensure(host, launch(image, registry_login="mine", pull="always"))
    assert has(dockerd, image)
    assert not encoded
    assert not plain
    assert PASSWORD not in "\n".join(lines)
    assert token not in "\n".join(lines)
    assert not left_over(tmp_path / "work")
    dockerd.run("rmi", image)


def test_a_credential_helper_is_asked_for_the_login(
    host: Engine, dockerd: Dockerd, registry: Registry, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"ServerURL": registry.address, "Username": registry.user, "Secret": PASSWORD})
    helper = tmp_path / "bin" / "docker-credential-ring"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\n[ \"$1\" = get ] && read -r name\ncat <<'E'\n{answer}\nE\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    (mine / "config.json").write_text(json.dumps({"credHelpers": {registry.address: "ring"}}))
    image = f"{registry.address}/team/thing:1"
    ensure(host, launch(image, registry_login="mine"))
    assert has(dockerd, image)
    dockerd.run("rmi", image)


def test_a_missing_helper_is_named_before_anything_is_pulled(host: Engine, registry: Registry, mine: Path) -> None:
    (mine / "config.json").write_text(json.dumps({"credHelpers": {registry.address: "gone"}}))
    with pytest.raises(LaunchRefused, match=r"docker-credential-gone, .* is not installed here"):
        ensure(host, launch(f"{registry.address}/team/thing:1", registry_login="mine"))


@pytest.mark.parametrize(
    ("password", "image", "words"),
    [
        (None, "team/thing:1", "the registry wants a login"),
        ("wrong", "team/thing:1", "the registry refuses this user's login"),
        (PASSWORD, "team/thing:7", "the registry has no such image"),
        (PASSWORD, "nobody/nothing:1", "the registry has no such image"),
    ],
)
def test_what_a_registry_refuses_is_told_apart(
    host: Engine, registry: Registry, mine: Path, tmp_path: Path, password: str | None, image: str, words: str
) -> None:
    if password is not None:
        (mine / "config.json").write_text(json.dumps(auths(registry, password)))
    with pytest.raises(LaunchRefused) as refused:
        ensure(host, launch(f"{registry.address}/{image}", registry_login="mine"))
    assert words in str(refused.value)
    assert refused.value.hint
    assert not left_over(tmp_path / "work")


def test_a_registry_that_is_not_there_is_one_sentence(host: Engine) -> None:
    with pytest.raises(LaunchRefused, match="cannot be reached from there"):
        ensure(host, launch("127.0.0.1:9/team/thing:1"))


def test_never_pulling_refuses_what_is_missing_and_takes_what_is_there(host: Engine) -> None:
    ensure(host, launch(BUSYBOX, pull="never"))
    with pytest.raises(LaunchRefused, match=r"launcher\.pull is never"):
        ensure(host, launch("nobody/nothing:1", pull="never"))


def test_an_image_is_sent_from_another_machine_and_sent_once(
    host: Engine, dockerd: Dockerd, other: Dockerd, tmp_path: Path
) -> None:
    source = Engine("right", other, tmp_path / "right")
    local = Engine("here", other, tmp_path / "here")
    image = "ekvi-test/sent:1"
    other.run("build", "--tag", image, "-", stdin=f"FROM {BUSYBOX}\nLABEL sent=yes\n".encode())
    lines = ensure(host, launch(image, send_from="right"), local=local, source=source)
    theirs, ours = (d.run("image", "inspect", "--format", "{{.Id}}", image).stdout for d in (other, dockerd))
    assert theirs == ours
    assert any("sent" in line and "of" in line for line in lines)
    assert not left_over(tmp_path)
    assert ensure(host, launch(image, send_from="right"), local=local, source=source) == []
    dockerd.run("rmi", image)
    ensure(host, launch(image, send_from="local"), local=local)
    assert has(dockerd, image)
    assert not left_over(tmp_path)
    dockerd.run("tag", BUSYBOX, image)  # another image of that name is not the one that was meant
    assert ensure(host, launch(image, send_from="local"), local=local)
    assert dockerd.run("image", "inspect", "--format", "{{.Id}}", image).stdout == theirs


def test_what_the_source_does_not_have_cannot_be_sent(host: Engine, other: Dockerd, tmp_path: Path) -> None:
    source = Engine("right", other, tmp_path / "right")
    with pytest.raises(LaunchRefused, match="sent from right, which does not have it"):
        ensure(host, launch("nobody/nothing:1", send_from="right"), source=source)
