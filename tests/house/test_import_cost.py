"""Starting the command line loads nothing that takes time."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_S = 30
HEAVY = {"textual", "asyncssh", "hydra", "omegaconf", "pydantic", "numpy", "scipy", "torch", "rich", "yaml"}


@pytest.mark.parametrize(
    "body",
    [
        "import cockpit.cli",
        "from cockpit.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass",
    ],
)
def test_the_command_line_starts_light(body: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", body], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    # "import time:  self | cumulative |   name", also of modules that were loaded and thrown away again
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "cockpit.cli" in names
    assert {name.partition(".")[0] for name in names} & HEAVY == set()
