"""Where EKVI_NO_SKIPS is set no skip passes unseen, also where workers share the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "conftest.py": "from tests.conftest import *\n",
    "test_fine.py": "def test_fine():\n    pass\n",
    "test_one.py": "import pytest\ndef test_one():\n    pytest.skip('one is missing')\n",
    "test_whole.py": "import pytest\npytest.skip('all is missing', allow_module_level=True)\n",
    "test_listed.py": "import pytest\ndef test_listed():\n    pytest.skip('needs a GPU')\n",
}


def session(folder: Path, workers: str, *files: str) -> subprocess.CompletedProcess[str]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-n", workers, "--dist", "loadfile", "--rootdir", str(folder)]
    return subprocess.run(
        [sys.executable, *words, *(str(folder / f) for f in files)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "EKVI_NO_SKIPS": "1", "PYTHONPATH": str(ROOT)}, cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_skip_that_is_not_on_the_list_fails_the_session(tmp_path: Path, workers: str) -> None:
    done = session(tmp_path, workers, "test_fine.py", "test_one.py", "test_whole.py", "test_listed.py")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    said = done.stdout.partition("skips that are not on the list:")[2]
    assert "one is missing" in said
    assert "all is missing" in said
    assert "needs a GPU" not in said


def test_a_skip_on_the_list_passes(tmp_path: Path) -> None:
    done = session(tmp_path, "0", "test_fine.py", "test_listed.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
