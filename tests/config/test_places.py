"""Mounts, files, images, limits and flags: what is refused says which key, and what to write instead."""

from __future__ import annotations

import pytest
import yaml

from cockpit.config import load
from tests.config.helpers import refusal, write

BASE = """
servers:
  s: {address: gpu1, vendor: nvidia}
runner: {name: command, argv: [x]}
launcher: {kind: container}
"""


def _said(key: str, value: object) -> str:
    """The refusal of a profile whose `key` has this value."""
    profile = yaml.safe_load(BASE)
    head, _, name = key.rpartition(".")
    part = profile["servers"]["s"] if head == "servers.s" else profile["launcher"]
    part[name] = value
    write("odd.yaml", yaml.safe_dump(profile))
    error = refusal("odd")
    assert error.line is not None
    assert error.line > 1
    return str(error)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("servers.s.mounts", {"data": "/data"}, "'data' is not absolute"),
        ("servers.s.mounts", {"/a": "b"}, "'b' is not absolute"),
        ("servers.s.mounts", {"/a": "/"}, "no folder or file of its own"),
        ("servers.s.mounts", {"/a": "/b/../ekvi"}, "no folder or file of its own"),
        ("servers.s.mounts", {"/a": "/ekvi/out"}, "the cockpit's own things"),
        ("servers.s.mounts", {"/a": "//run/secrets/"}, "the cockpit's own things"),
        ("servers.s.mounts", {"/a\0": "/b"}, "no path can be given with"),
        ("servers.s.mounts", {"/a": "/x", "/b": "/x:ro"}, "would both be at '/x'"),
        ("servers.s.files", {"a": "../b"}, "no path below the run's folder"),
        ("servers.s.files", {"a": "out/b"}, "a name of the run's own folder"),
        ("servers.s.files", {"a": "config.json"}, "a name of the run's own folder"),
        ("servers.s.nodes", ["gpu1", "gpu1"], "nodes names one machine twice"),
        ("launcher.image", "-v/:/x", "no name of an image"),
        ("launcher.image", "a b", "no name of an image"),
        ("launcher.base_image", "--x", "no name of an image"),
        ("launcher.shm", "16 gigabytes", "no size"),
        ("launcher.memory", "-1", "no size"),
        ("launcher.user", "-u", "no user"),
        ("launcher.user", "a b", "no user"),
        ("launcher.network", "host --privileged", "no value for a flag"),
        ("launcher.devices", ["--privileged"], "no value for a flag"),
        ("launcher.ulimits", {"memlock": "lots"}, "memlock cannot be 'lots'"),
        ("launcher.ulimits", {"x=1 --privileged": 1}, "is no limit"),
        ("launcher.shell", "sh", "is not absolute"),
        ("launcher.hf_cache", "cache", "hf_cache 'cache' is not absolute"),
        ("launcher.workdir", "here", "workdir 'here' is not absolute"),
        ("launcher.extra", ["ubuntu"], "taken for the image"),
        ("launcher.extra", ["--rm"], "cannot hold --rm"),
        ("launcher.extra", ["--name=x"], "cannot hold --name"),
        ("launcher.extra", ["--user", "0"], "that is launcher.user"),
        ("launcher.extra", ["--label", "ekvi.run=x"], "a label ekvi.*"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(key: str, value: object, says: str) -> None:
    found = _said(key, value)
    assert says in found
    assert key.rpartition(".")[2] in found


PLANTED = "hf_" + "a" * 30


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("launcher.build_args", {"HF_TOKEN": "planted"}),
        ("launcher.build_args", {"INDEX": "https://me:planted@example.com/simple"}),
        ("launcher.extra", ["--env", "HF_TOKEN=planted"]),
        ("launcher.extra", ["-eMY_PASSWORD=planted"]),
        ("launcher.extra", ["--env=A_SECRET=planted"]),
        ("launcher.extra", ["--annotation", f"x={PLANTED}"]),
        ("servers.s.env", {"NOTE": PLANTED}),
    ],
)
def test_a_secret_is_refused_and_not_repeated(key: str, value: object) -> None:
    found = _said(key, value)
    assert "name it in secrets" in found
    assert "planted" not in found
    assert PLANTED not in found


def test_a_name_is_a_variable_or_a_secret() -> None:
    profile = yaml.safe_load(BASE)
    profile["servers"]["s"] |= {"env": {"WANDB_MODE": "offline"}, "secrets": ["WANDB_MODE"]}
    write("odd.yaml", yaml.safe_dump(profile))
    assert "WANDB_MODE is in env and in secrets" in str(refusal("odd"))


def test_several_nodes_take_one_run_at_a_time() -> None:
    write("odd.yaml", BASE.replace("address: gpu1", "nodes: [a, b], slots: 2"))
    assert "several nodes take one run at a time, and slots is 2" in str(refusal("odd"))


def test_what_is_usual_is_taken() -> None:
    write(
        "usual.yaml",
        """
servers:
  s:
    address: gpu1
    vendor: nvidia
    mounts: {~/data: /sets//a/, "/x, y:z": "/b:ro"}
    files: {./conf: /etc/conf}
launcher:
  kind: container
  image: registry.example.com:5000/team/train@sha256:0123
  shm: 64g
  memory: 68719476736
  user: 1000
  ulimits: {memlock: null, nofile: "65536:65536"}
  devices: [nvidia.com/gpu=all, "/dev/fuse:/dev/fuse:rwm"]
  extra: [--cpus, "8"]
""",
    )
    config = load("usual").points[0].configs["s"]
    assert config.servers["s"].mounts == {"~/data": "/sets/a", "/x, y:z": "/b:ro"}
    launcher = config.launcher.model_dump()
    assert (launcher["memory"], launcher["user"], launcher["extra"]) == ("68719476736", "1000", ("--cpus", "8"))
