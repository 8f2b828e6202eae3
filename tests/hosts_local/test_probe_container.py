"""What a container engine says of itself and of an image; whatever a server says instead is no crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import ENGINES, ContainerFacts
from cockpit.hosts import LocalHost
from cockpit.hosts.probe import container_facts
from cockpit.hosts.probe_container import parse_container_facts


def _said(engine: str, info: Any, image: Any = None, **more: str) -> bytes:
    parts = {"uid": "1000", "gid": "1001", "home": "/home/ann", **more, "engine": engine, "info": json.dumps(info)}
    if image is not None:
        parts["image"] = json.dumps(image)
    return "".join(f"\n@@ {name}\n{body}\n" for name, body in parts.items()).encode()


def test_docker_and_an_image() -> None:
    info = {"ServerVersion": "28.1", "SecurityOptions": ["name=seccomp", "name=rootless"], "Runtimes": {"runc": {}}}
    image = {
        "Id": "sha256:ab", "RepoDigests": ["example/x@sha256:cd"], "Config": {"Entrypoint": ["/entry", "a b"]}
    }  # fmt: skip
    output = _said("docker", info, image, infiniband="yes", groups="109\n44\n44\n0")
    assert parse_container_facts(output, "x", ENGINES, vendor="amd") == ContainerFacts(
        engine="docker", version="28.1", rootless=True, groups=(44, 109), infiniband=True,
        entrypoint=("/entry", "a b"),
        image_id="sha256:ab", digest="sha256:cd", home="/home/ann", uid=1000, gid=1001,
    )  # fmt: skip


def test_podman_says_it_in_other_places() -> None:
    info = {"host": {"security": {"rootless": True}}, "version": {"Version": "5.2"}}
    image = {"Id": "ab", "Digest": "sha256:cd", "Config": {"Entrypoint": "/entry"}}
    found = parse_container_facts(_said("podman", info, image), "x", ENGINES, vendor="nvidia")
    assert (found.version, found.rootless, found.cdi, found.entrypoint) == ("5.2", True, True, ("/entry",))
    assert (found.image_id, found.digest) == ("ab", "sha256:cd")


@pytest.mark.parametrize(
    ("more", "info", "cdi"),
    [
        ({"cdi": "/etc/cdi/nvidia.yaml"}, {"CDISpecDirs": ["/etc/cdi"]}, True),
        ({"cdi": "/etc/cdi/nvidia.yaml", "hook": "/usr/bin/hook"}, {"CDISpecDirs": ["/etc/cdi"]}, False),
        ({"cdi": "/etc/cdi/nvidia.yaml"}, {"CDISpecDirs": ["/etc/cdi"], "Runtimes": {"nvidia": {}}}, False),
        ({"cdi": "/etc/cdi/nvidia.yaml"}, {"CDISpecDirs": None}, False),
        ({}, {"CDISpecDirs": ["/etc/cdi"]}, False),
    ],
)
def test_docker_takes_cdi_where_it_has_no_way_of_its_own(more: dict[str, str], info: Any, cdi: bool) -> None:
    assert parse_container_facts(_said("docker", info, **more), "x", ENGINES, vendor="nvidia").cdi is cdi
    assert parse_container_facts(_said("docker", info, **more), "x", ENGINES, vendor="cpu").cdi is False


@pytest.mark.parametrize(
    ("output", "wanted", "says", "mend"),
    [
        ("@@ absent docker\n@@ absent podman\n", ENGINES, "neither docker nor podman is there", "Install one"),
        ("@@ absent podman\n", ("podman",), "podman is not there", "Install one"),
        (
            '@@ refused docker\n{"ID":""}\ndial unix /s: permission denied\n@@ absent podman\n',
            ENGINES, "docker on x is not for this user: dial unix", "Add the user to the group",
        ),
        ("@@ refused docker\nCannot. Is it there?\n", ("docker",), "does not answer: Cannot", "`docker info`"),
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_used_is_one_sentence(
    output: str, wanted: tuple[str, ...], says: str, mend: str
) -> None:
    with pytest.raises(LaunchRefused) as caught:
        parse_container_facts(output.encode(), "x", wanted, vendor="cpu")
    assert says in caught.value.message
    assert mend in (caught.value.hint or "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["Config", "Entrypoint", "RepoDigests", "Id", "host", "security", "Runtimes", "version",
                         "SecurityOptions", "Digest"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON, JSON, st.text(max_size=10))
def test_nothing_that_a_server_says_is_a_crash(info: Any, image: Any, noise: str) -> None:
    found = parse_container_facts(
        _said("docker", info, image, groups=noise, uid=noise, home=noise), "x", ENGINES, vendor="nvidia"
    )
    assert all(isinstance(word, str) for word in found.entrypoint)
    assert found.home.startswith("/")


async def test_podman_under_dockers_name_is_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "docker"
    tool.write_text('#!/bin/sh\ncase $1 in --version) echo podman version 5;; info) echo "{}";; *) exit 1;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = await container_facts(LocalHost(), "docker", "example/x", vendor="cpu")
    assert (found.engine, found.image_id) == ("podman", None)
