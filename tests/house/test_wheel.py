"""The wheel, installed elsewhere without the checkout, is a whole product."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Sequence
from email.parser import BytesParser
from pathlib import Path

import pytest

from cockpit import __version__
from cockpit.telemetry.pack import build_agent, build_code

LIMIT_S = 100
CHECKOUT = Path(__file__).resolve().parents[2]
DATA = ("profiles", "themes", "docker", "runners")

# Asked of the installed product: where its data is, what is in it, and whether the runners' source imports.
ASK = """
import json, sys
import cockpit, runners.schema
from cockpit.core.resources import data_dir
from cockpit.telemetry.pack import build_agent, build_code
def files(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
print(json.dumps({
    "cockpit": cockpit.__file__,
    "schema": runners.schema.__file__,
    "data": {name: files(data_dir(name)) for name in sys.argv[1:]},
    "packages": [build_agent().sha256, build_code().sha256],
}))
"""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def _do(argv: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    _do([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(CHECKOUT)], out)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel; the dependencies come from the tests' own environment.

    A path in a .pth file takes in that environment's packages but not its .pth files, so not the checkout.
    """
    root = tmp_path_factory.mktemp("elsewhere")
    venv.create(root / "venv", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(root / "venv/bin/python")]
    _do([*pip, "install", "-q", "--no-index", "--no-deps", "--no-compile", str(wheel)], root)
    (site,) = (root / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root


@pytest.fixture
def run(place: Path) -> Run:
    """Run a program of the fresh environment, away from the checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"PATH": f"{place}/venv/bin:{env['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}

    def do(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    return do


def _files(root: Path) -> list[str]:
    paths = (p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(p.relative_to(root).as_posix() for p in paths)


@pytest.mark.parametrize("argv", [["ekvi-cockpit", "--version"], ["python", "-m", "cockpit.cli", "--version"]])
def test_it_starts_and_says_its_version(run: Run, argv: Sequence[str]) -> None:
    done = run(argv)
    assert done.returncode == 0, done.stderr
    assert __version__ in done.stdout


def test_it_finds_its_profiles(run: Run) -> None:
    done = run(["ekvi-cockpit", "profiles", "list"])
    assert done.returncode == 0, done.stderr
    assert "duel-local" in done.stdout


def test_all_data_travels_in_it_and_the_runners_import(run: Run, place: Path) -> None:
    done = run(["python", "-c", ASK, *DATA])
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["cockpit"]).is_relative_to(place)
    assert Path(said["schema"]).is_relative_to(place)
    for name in DATA:
        assert said["data"][name] == _files(CHECKOUT / name), name


def test_it_packs_the_same_bytes_as_the_checkout(run: Run) -> None:
    done = run(["python", "-c", ASK])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packages"] == [build_agent().sha256, build_code().sha256]


def test_its_metadata_asks_for_no_training_stack_outside_the_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = BytesParser().parsebytes(archive.read(name))
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert any(line.startswith("textual") for line in base)
    assert [line for line in base if line.startswith(("torch", "megatron", "transformers", "tokenizers"))] == []


def test_nothing_compiled_and_no_tests_are_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [n for n in names if n.endswith(".pyc") or n.startswith("tests/")] == []
    assert "cockpit/py.typed" in names
