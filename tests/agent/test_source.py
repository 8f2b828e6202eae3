"""The agent's source runs on a server's own Python: 3.8 on, standard library only, from one file."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.support import COUNT, REPO, desk_at, pack, python

AGENT = REPO / "runners" / "agent"
SOURCES = sorted(AGENT.rglob("*.py"))
PACKED = {"pynvml"}  # what travels with the agent


def _interpreters() -> list[str]:
    """This Python, and the oldest supported ones that this machine has."""
    found = [sys.executable]
    for name in ("python3.8", "python3.9"):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", "pass"], capture_output=True, check=False).returncode == 0:
            found.append(path)
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(AGENT)))
def test_parses_as_python_3_8(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(AGENT)))
def test_imports_only_the_standard_library_and_itself(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name.partition(".")[0] in sys.stdlib_module_names | PACKED for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level >= 1 or (node.module or "").partition(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("interpreter", _interpreters())
def test_one_file_works_a_queue(interpreter: str, tmp_path: Path) -> None:
    pyz = pack(tmp_path / "agent.pyz")
    with desk_at(tmp_path / "work", [interpreter, "-I", "-S", str(pyz)]) as desk:
        desk.queue({"a": [python("data", "print('ready')"), python("train", COUNT, "100", "")]})
        told = json.loads(desk.call("start", str(desk.q)).stdout)
        assert told["started"] is True
        assert desk.wait_ended("a")["state"] == "SUCCEEDED", desk.log()
        assert desk.spool("a").count(b"\n") == 101
        version = desk.call("--version").stdout.decode()
        assert version.startswith("ekvi-agent ")
        assert "ekvi.queue/1" in version


def test_a_shim_loads_little() -> None:
    """A shim runs beside every stage: it takes neither typing nor subprocess nor argparse into memory."""
    code = "import sys; import runners.agent.shim; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=REPO, capture_output=True, check=True, timeout=20)
    loaded = set(done.stdout.decode().split())
    assert not loaded & {"typing", "subprocess", "argparse", "dataclasses", "logging", "zipfile", "threading"}
