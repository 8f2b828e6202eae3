"""Names, recipes, logins and refusals of images, as far as they need no engine."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import tarfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.errors import LaunchRefused
from cockpit.core.imagename import context_files, image_tag, recipe
from cockpit.core.records import GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.core.resources import data_dir
from cockpit.engine.building import dry_run
from cockpit.engine.imagecommand import Lines, refusal, registry_of
from cockpit.engine.images import build_argv, context
from cockpit.engine.registry import login_for
from cockpit.hosts.base import Completed
from cockpit.hosts.local import LocalHost

DOCKER = data_dir("docker")
ROOT = Path(__file__).resolve().parents[2]


def test_a_named_image_is_taken_as_it_is_and_a_made_one_is_named_by_its_recipe() -> None:
    assert image_tag({"image": "a/b:1"}, "nvidia") == "a/b:1"
    assert re.fullmatch(r"ekvi-cockpit/rocm:[0-9a-f]{16}", image_tag({"image": None}, "amd"))
    assert image_tag({}, "nvidia") == image_tag({}, "cuda")


def test_all_that_goes_into_an_image_changes_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "docker"
    shutil.copytree(DOCKER, folder)
    names = {recipe({}, "cpu", folder=folder), recipe({}, "amd", folder=folder)}
    names |= {
        recipe({"base_image": "x"}, "cpu", folder=folder),
        recipe({"build_args": {"A": "1"}}, "cpu", folder=folder),
    }
    for changed in ("requirements.txt", "cpu/Dockerfile", "image.py"):
        copy = tmp_path / changed.replace("/", "-")
        shutil.copytree(folder, copy)
        with (copy / changed).open("a") as file:
            file.write("# more\n")
        names.add(recipe({}, "cpu", folder=copy))
    assert len(names) == 7
    assert recipe({}, "cpu") == recipe({}, "cpu", folder=folder)


@pytest.mark.parametrize("kind", ["cuda", "rocm", "cpu"])
def test_the_context_is_the_same_bytes_every_time_and_holds_what_the_dockerfile_reads(kind: str) -> None:
    assert context(kind) == context(kind)
    with tarfile.open(fileobj=io.BytesIO(context(kind))) as tar:
        names = tar.getnames()
    assert {f"{kind}/Dockerfile", f"{kind}/requirements.txt", "requirements.txt", "image.py"} <= set(names)
    assert not [n for n in names if n.startswith(("runners", "cockpit"))]


@pytest.mark.parametrize("kind", ["cuda", "rocm", "cpu"])
def test_a_dockerfile_pins_its_base_and_keeps_no_index(kind: str) -> None:
    text = (DOCKER / kind / "Dockerfile").read_text()
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert base is not None
    assert re.search(r":[^:]*\d", base[1])
    assert not base[1].endswith((":latest", "-latest"))
    last = text.rpartition("FROM ${BASE_IMAGE}")[2]
    assert "PIP_" not in last
    assert last.rstrip().splitlines()[-1].startswith("RUN ${PYTHON} /opt/ekvi/image.py check")


def test_images_get_what_the_extras_train_and_data_ask_for_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    extra = {_name(r): r for r in [*extras["train"], *extras["data"]]}
    both = extra | {_name(r): r for r in project["dependencies"]}
    lines = (DOCKER / "requirements.txt").read_text().splitlines()
    asked = {_name(line): line for line in lines if not line.startswith("#")}
    assert extra.keys() - asked.keys() == {"torch"}
    for name, line in asked.items():
        assert line == both[name] or name == "megatron-core"
    pinned = asked["megatron-core"].partition("==")[2]
    assert pinned.startswith(both["megatron-core"].partition(">=")[2].partition(",")[0])
    for kind in ("cuda", "rocm", "cpu"):
        assert f'ekvi-cockpit.megatron-core="{pinned}"' in (DOCKER / kind / "Dockerfile").read_text()
    assert (DOCKER / "cpu" / "torch.txt").read_text().splitlines()[-1] == extra["torch"]


def _name(requirement: str) -> str:
    return re.split(r"[<>=]", requirement)[0].lower()


def test_build_arguments_are_named_in_the_argv_and_not_valued() -> None:
    launch = {
        "base_image": "base:1",
        "build_args": {"PIP_INDEX_URL": "https://u:secret@host/simple"},
        "network": "host",
    }
    argv = build_argv(launch, "amd", "ekvi-cockpit/rocm:1")
    assert argv == [
        *("build", "--force-rm", "--file", "rocm/Dockerfile", "--network", "host", "--tag", "ekvi-cockpit/rocm:1"),
        *("--label", "org.opencontainers.image.version=1"),
        *("--build-arg", "PIP_INDEX_URL", "--build-arg", "BASE_IMAGE", "-"),
    ]


def test_the_dry_run_values_arguments_but_for_logins() -> None:
    launch = {"base_image": "base:1", "build_args": {"A": "b c", "PIP_INDEX_URL": "https://u:secret@host/simple"}}
    stage = StagePlan(stage="train")
    run = RunPlan(
        run="r",
        group="g",
        server="s",
        repeat=0,
        sweep={},
        launcher="container",
        stages=(stage,),
        config={},
        launch=launch,
    )
    queue = QueuePlan(key="k", address="local", workdir=None, slot="default", slots=1, cooldown_s=0.0, runs=(run,))
    servers = {"s": ServerSpec(name="s", vendor="amd")}
    text = dry_run(GroupPlan(group="g", profile="p", overrides=(), servers=servers, queues=(queue,)))
    assert "secret" not in text
    assert "--build-arg PIP_INDEX_URL " in text
    assert "'A=b c'" in text
    assert "BASE_IMAGE=base:1" in text


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("busybox", "docker.io"),
        ("rocm/pytorch:1", "docker.io"),
        ("host.example/a/b:1", "host.example"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000"),
        ("localhost/a", "localhost"),
    ],
)
def test_the_registry_of_a_name(image: str, registry: str) -> None:
    assert registry_of(image) == registry


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Error response from daemon: manifest for a:7 not found: manifest unknown: manifest unknown",
            "no such image",
        ),
        (
            "pull access denied for a, repository does not exist or may require 'docker login'",
            "or none for this login",
        ),
        ("Get http://h/v2/: unauthorized: incorrect username or password", "refuses the login"),
        ("Get http://h/v2/a/manifests/1: no basic auth credentials", "wants a login"),
        ("Get https://h/v2/: dial tcp: lookup h: no such host", "cannot be reached"),
        ("write /var/lib/docker/tmp/x: no space left on device", "disk is full"),
        ("Got permission denied while trying to connect to the Docker daemon socket at unix:///x", "may not use"),
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "does not run"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "architecture"),
        ("toomanyrequests: You have reached your pull rate limit", "takes no more pulls"),
        ("Error: 127.0.0.1/a: invalid reference format", "no name of an image"),
        ("x509: certificate signed by unknown authority", "does not trust"),
        ("something that nobody knows\x1b[2J", "something that nobody knows"),
    ],
)
def test_what_engines_say_becomes_one_sentence_with_its_mend(said: str, words: str) -> None:
    error = refusal("left", "docker", "h/a:1", Completed(1, b"", said.encode()), doing="pull")
    assert error.message.startswith("left: cannot pull the image h/a:1: ")
    assert words in error.message
    assert "\x1b" not in str(error)
    assert error.hint or "nobody knows" in said


def test_no_engine_at_all_is_said() -> None:
    assert "there is no podman" in refusal("left", "podman", "a", Completed(127, b"", b"podman: not found")).message


@given(st.binary(max_size=300), st.integers(1, 50))
def test_lines_are_whole_bounded_and_harmless_whatever_the_blocks(data: bytes, step: int) -> None:
    cut: list[str] = []
    whole: list[str] = []
    for found, size in ((cut, step), (whole, len(data) + 1)):
        lines = Lines(found.append)
        for at in range(0, len(data), size):
            lines(data[at : at + size])
        lines.end()
    assert cut == whole
    assert not any(c in line for line in whole for c in "\x1b\n\r\x9b")


def test_an_endless_line_takes_no_memory_and_is_told_cut() -> None:
    found: list[str] = []
    lines = Lines(found.append)
    for _ in range(1000):
        lines(b"x" * 4096)
    assert len(lines._rest) <= 4096
    lines(b"\nnext\n")
    assert found[-1] == "next"
    assert len(found[0]) <= 4096


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config.json"


async def test_only_the_login_of_the_images_registry_travels(logins: Path) -> None:
    auths = {n: {"auth": base64.b64encode(n.encode()).decode(), "email": "x"} for n in ("one.example", "two.example")}
    logins.write_text(json.dumps({"auths": auths, "HttpHeaders": {"X": "y"}}))
    found = await login_for("two.example/a/b:1", LocalHost())
    assert found is not None
    assert json.loads(found) == {"auths": {"two.example": {"auth": auths["two.example"]["auth"]}}}
    assert await login_for("three.example/a", LocalHost()) is None


async def test_the_hubs_login_has_a_name_of_its_own(logins: Path) -> None:
    logins.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"identitytoken": "t"}}}))
    found = await login_for("rocm/pytorch:1", LocalHost())
    assert found is not None
    assert json.loads(found)["auths"] == {"https://index.docker.io/v1/": {"identitytoken": "t"}}


async def test_a_file_of_logins_that_is_none_is_named(logins: Path) -> None:
    logins.write_text("{")
    with pytest.raises(LaunchRefused, match="is not JSON"):
        await login_for("a/b", LocalHost())


async def test_no_logins_at_all_is_no_error(logins: Path) -> None:
    assert not logins.exists()
    assert await login_for("a/b", LocalHost()) is None


def test_files_that_are_no_part_of_a_recipe_do_not_travel() -> None:
    assert "README.md" not in [name for name, _ in context_files("cpu", DOCKER)]
