"""The packages for a server are made reproducibly and run."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.resources import data_dir
from cockpit.telemetry.pack import build_agent, build_code

LIMIT_S = 30


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The runners' source elsewhere: other folder, other times, other permissions, with litter in it."""
    target = tmp_path / "elsewhere" / "runners"
    shutil.copytree(data_dir("runners"), target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    (target / "agent" / "__pycache__").mkdir()
    (target / "agent" / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"litter")
    (target / ".swap").write_bytes(b"litter")
    (target / "stale.pyc").write_bytes(b"litter")
    return target


def test_two_builds_and_two_folders_give_equal_bytes(copy: Path) -> None:
    assert build_agent() == build_agent() == build_agent(copy)
    assert build_code() == build_code() == build_code(copy)


def test_the_hash_is_that_of_the_bytes() -> None:
    for package in (build_agent(), build_code()):
        assert package.sha256 == hashlib.sha256(package.data).hexdigest()


def test_any_change_of_the_source_changes_the_hash_of_its_package_alone(copy: Path) -> None:
    with (copy / "agent" / "main.py").open("a") as f:
        f.write("# changed\n")
    assert build_agent(copy).sha256 != build_agent().sha256
    assert build_code(copy).sha256 == build_code().sha256
    with (copy / "schema" / "base.py").open("a") as f:
        f.write("# changed\n")
    assert build_code(copy).sha256 != build_code().sha256


def _names(data: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def test_the_code_holds_the_runners_without_the_agent() -> None:
    names = _names(build_code().data)
    assert {"runners/__init__.py", "runners/schema/__init__.py", "runners/wire.py"} <= set(names)
    assert not [n for n in names if n.startswith("runners/agent/") or n.endswith(".pyc") or "__pycache__" in n]


def test_the_code_composes_the_seed_s_words_where_it_is_unpacked(tmp_path: Path) -> None:
    names = _names(build_code().data)
    assert "profiles/model/llama31_8b.yaml" in names
    groups = {n.split("/")[1] for n in names if n.startswith("profiles/")}
    assert groups == {"model", "data", "training", "runner"}
    code = tmp_path / "code"
    with zipfile.ZipFile(io.BytesIO(build_code().data)) as archive:
        archive.extractall(code)
    own = {"PYTHONPATH": str(code), "HOME": str(tmp_path), "EKVI_OUT": str(tmp_path / "out")}
    env = {k: v for k, v in os.environ.items() if k != "XDG_CONFIG_HOME"} | own
    probe = (
        "from runners import compose; c = compose.compose_run(['training=rocm', 'model=llama31_8b']); "
        "print(compose.__file__, c.training.backend, c.model.hidden)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.split() == [str(code / "runners" / "compose.py"), "rocm", "4096"]
    words = [sys.executable, "-m", "runners", "stage=wrap", "training=rocm", "model=llama31_8b"]
    subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=True)


def test_the_agent_is_a_file_that_runs(tmp_path: Path) -> None:
    package = build_agent()
    assert package.data.startswith(b"#!/usr/bin/env python3\n")
    pyz = tmp_path / "agent.pyz"
    pyz.write_bytes(package.data)
    done = subprocess.run(
        [sys.executable, "-I", str(pyz), "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.strip()


def test_nvidias_binding_travels_as_it_is_installed_and_is_found_without_site(tmp_path: Path) -> None:
    package = build_agent()
    with zipfile.ZipFile(io.BytesIO(package.data)) as archive:
        packed = archive.read("pynvml.py")
    assert packed == Path(str(distribution("nvidia-ml-py").locate_file("pynvml.py"))).read_bytes()
    assert b"Redistributions of source code must retain the above copyright" in packed[:2000]
    ast.parse(packed, feature_version=(3, 8))
    pyz = tmp_path / "agent.pyz"
    pyz.write_bytes(package.data)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import pynvml; print(pynvml.__file__)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-I", "-S", "-c", code, str(pyz)],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == f"{pyz}/pynvml.py"


@pytest.mark.parametrize(("what", "build"), [("agent", build_agent), ("code", build_code)])
def test_the_module_prints_the_same_bytes(what: str, build: object) -> None:
    assert callable(build)
    done = subprocess.run(
        [sys.executable, "-m", "cockpit.telemetry", what], capture_output=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout == build().data


def test_the_module_refuses_other_words() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cockpit.telemetry", "nonsense"], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"usage: ")


def test_a_broken_installation_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LaunchRefused, match=r"is not whole: .*agent/main\.py is missing\. Install it again"):
        build_agent(tmp_path)
    with pytest.raises(LaunchRefused, match=r"is not whole: .*__init__\.py is missing"):
        build_code(tmp_path)
