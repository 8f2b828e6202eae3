"""The words that the launcher renders, as real docker and podman take them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import ContainerFacts
from cockpit.hosts.probe import container_facts
from cockpit.launch import interactive
from cockpit.launch.container.mounts import Mount, csv
from tests.hosts.dockerd import BUSYBOX, PYTHON, Dockerd
from tests.hosts.docks import storage
from tests.hosts.engines import Engine
from tests.hosts.images import busybox
from tests.launch.made import COMMAND, argv_of, run, server

pytestmark = pytest.mark.hosts
LIMIT_S = 60.0
NAMES = ("a b", "a,b", "a:b", 'a"b', "a\nb", "a=b", " lead", "trail ", "$(id)", "ro,readonly", "é;'")
Do = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def podman() -> Iterator[Do]:
    """Podman with storage of its own, set up for a machine inside another one."""
    with storage() as folder:
        settings = {"CONTAINERS_CONF": str(folder / "containers.conf")}
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        where = ["podman", "--root", str(folder / "root"), "--runroot", str(folder / "run")]

        def do(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
            env = os.environ | settings
            done = subprocess.run(
                [*where, *argv], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
            return done

        do("import", str(busybox(BUSYBOX).tar()), BUSYBOX)
        yield do
        do("rm", "--all", "--force", check=False)
        do("rmi", "--all", "--force", check=False)


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Do:
    """Each engine in turn: `engine(*argv)`."""
    if request.param == "docker":
        daemon: Dockerd = request.getfixturevalue("dockerd")
        return daemon.run
    found: Do = request.getfixturevalue("podman")
    return found


def test_a_mount_reaches_its_place_whatever_its_path(engine: Do, tmp_path: Path) -> None:
    mounts = []
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
        mounts += ["--mount", csv(Mount(f"{tmp_path}/{name}", f"/in/{name}", readonly=True))]
    show = 'for p; do cat "/in/$p/f"; touch "/in/$p/g" 2>/dev/null && echo written; printf "|"; done'
    done = engine("run", "--rm", "--network", "host", *mounts, BUSYBOX, "sh", "-c", show, "sh", *NAMES)
    assert done.stdout == "".join(f"{name}|" for name in NAMES)


def test_every_variable_reaches_the_program(engine: Do) -> None:
    values = ["", "a\nb", "$(id) `id` 'q' \"d\"", "a=b", "-x", "é"]
    flags = [w for i, value in enumerate(values) for w in ("--env", f"V{i}={value}")]
    show = "for i in 0 1 2 3 4 5; do eval printf '%s\\|' \\\"\\$V$i\\\"; done"
    done = engine("run", "--rm", "--network", "host", *flags, BUSYBOX, "sh", "-c", show)
    assert done.stdout == "".join(f"{value}|" for value in values)


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu"])
def test_docker_takes_the_words_of_create(dockerd: Dockerd, tmp_path: Path, vendor: str) -> None:
    places = {"RUN_DIR": "r,un", "OUT_DIR": "o:ut", "CACHE_DIR": "ca che", "WORK_DIR": "w"}
    for name in places.values():
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "r,un" / "pipe.0")
    # A smaller --shm-size shows that the flag is taken; limits may not be raised inside another machine.
    made = run(
        COMMAND, image=PYTHON, hf_cache=None, ipc="private", shm="5m", ulimits={"memlock": None, "stack": None}
    )
    here = server(replace(ContainerFacts(), groups=(44,)), vendor=vendor, gpus=None if vendor == "cpu" else (1,))
    words = argv_of(made, here)
    for name, folder in places.items():
        words = [w.replace(f"${{{name}}}", f"{tmp_path}/{folder}") for w in words]
    try:
        dockerd.run(*words[1:])
        said = dockerd.run(
            "inspect", "--format", "{{.HostConfig.ShmSize}} {{.Config.StopSignal}} {{.HostConfig.Init}} "
            "{{json .HostConfig.DeviceRequests}} {{json .HostConfig.GroupAdd}}", "ekvi-g.s.r1-train",
        ).stdout  # fmt: skip
        assert said.startswith("5242880 TERM true")
        assert ('"DeviceIDs":["1"]' in said) == (vendor == "nvidia")
        assert ('["44"]' in said) == (vendor == "amd")
    finally:
        dockerd.run("rm", "-f", "ekvi-g.s.r1-train", check=False)


def test_a_shell_has_the_devices_and_the_variables_of_a_training(dockerd: Dockerd, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    here = server(replace(ContainerFacts(), groups=(44,)), vendor="amd", env={"NOTE": "a b"})
    launch = {"image": BUSYBOX, "ulimits": {"memlock": None, "stack": None}, "hf_cache": None}
    show = ["sh", "-c", 'ls -d /dev/kfd /ekvi/cache; echo "$NOTE"']
    words = interactive(here, launch, workdir=str(tmp_path), command=show, terminal=False)
    assert dockerd.run(*words[1:]).stdout == "/dev/kfd\n/ekvi/cache\na b\n"


async def test_the_engine_and_the_image_are_told_in_one_trip(dockerd: Dockerd, tmp_path: Path) -> None:
    dockerd.run(
        "build", "-t", "ekvi-test/entry:1", "-", stdin=b'FROM ekvi-test/busybox:1\nENTRYPOINT ["/bin/x", "a b"]\n'
    )
    host = Engine("there", dockerd, tmp_path)
    found = await container_facts(host, "auto", "ekvi-test/entry:1", vendor="nvidia")
    assert (found.engine, found.entrypoint, found.rootless, found.cdi) == ("docker", ("/bin/x", "a b"), False, False)
    assert found.image_id is not None
    assert found.image_id.startswith("sha256:")
    assert found.version
    absent = await container_facts(host, "docker", "ekvi-test/absent:1", vendor="cpu")
    assert (absent.image_id, absent.entrypoint, absent.version) == (None, (), found.version)


async def test_an_engine_that_does_not_run_is_named_with_its_mend(dockerd: Dockerd, tmp_path: Path) -> None:
    host = Engine("there", dockerd, tmp_path)
    host._env = ["env", f"DOCKER_HOST=unix://{tmp_path}/nothing.sock"]
    with pytest.raises(LaunchRefused, match=r"^docker on there does not answer: Cannot connect to the Docker daemon"):
        await container_facts(host, "docker", BUSYBOX, vendor="cpu")
