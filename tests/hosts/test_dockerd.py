"""The tests' own Docker daemon does what real ones do."""

from __future__ import annotations

import pytest

from tests.hosts.dockerd import BUSYBOX, PYTHON, Dockerd

pytestmark = pytest.mark.hosts


def test_a_container_runs_and_its_exit_code_is_told(dockerd: Dockerd) -> None:
    done = dockerd.run("run", "--rm", "--network", "host", BUSYBOX, "sh", "-c", "echo words; exit 42", check=False)
    assert (done.returncode, done.stdout) == (42, "words\n")


def test_python_runs_in_its_image_as_any_user(dockerd: Dockerd) -> None:
    code = "import ssl, sqlite3, ctypes, json; print(json.dumps([1]))"
    done = dockerd.run("run", "--rm", "--network", "host", "--user", "1234:1234", PYTHON, "python3", "-c", code)
    assert done.stdout == "[1]\n"


def test_nvidia_flags_are_taken(dockerd: Dockerd) -> None:
    done = dockerd.run("run", "--rm", "--network", "host", "--gpus", "all", BUSYBOX, "env")
    assert "HOSTNAME" in done.stdout


def test_amd_flags_are_taken(dockerd: Dockerd) -> None:
    flags = (
        "--device",
        "/dev/kfd",
        "--device",
        "/dev/dri",
        "--group-add",
        "video",
        "--security-opt",
        "seccomp=unconfined",
    )
    done = dockerd.run("run", "--rm", "--network", "host", *flags, BUSYBOX, "ls", "/dev/kfd", "/dev/dri")
    assert "renderD128" in done.stdout
