"""Runs `python -m runners` as a server would, and reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import wire

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 110


@dataclass(frozen=True)
class Result:
    """How a runner ended and what it said."""

    rc: int
    out: str
    err: str

    def wires(self, kind: str) -> list[dict[str, Any]]:
        """The wire lines of one type, in order."""
        parsed = (wire.parse(line.encode()) for line in self.out.splitlines())
        return [found for found in parsed if found is not None and found["type"] == kind]

    def diagnostic(self, code: str) -> dict[str, Any]:
        """The one diagnostic with this code."""
        (found,) = [line for line in self.wires("diagnostic") if line["code"] == code]
        return found

    @property
    def stages(self) -> list[tuple[str, str]]:
        """Stage and status of all stage lines."""
        return [(line["stage"], line["status"]) for line in self.wires("stage")]


@dataclass(frozen=True)
class Place:
    """The folders of a run."""

    folder: Path
    cache: Path

    @property
    def out(self) -> Path:
        """The run's own folder."""
        return self.folder / "out"

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a runner here; torchrun's variables come only from `more`."""
        hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        env |= {"EKVI_OUT": str(self.out), "EKVI_CACHE": str(self.cache), "OMP_NUM_THREADS": "1"}
        return env | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "EKVI_RUN": "r1"} | more

    def command(self, config: dict[str, Any], *words: str, processes: int = 1) -> list[str]:
        """The command line that runs `config`, under torchrun where it takes several processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        module = ["-m", "runners", "--config", str(path), *words]
        if processes == 1:
            return [sys.executable, *module]
        torchrun = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(processes)]
        return [sys.executable, "-m", "torch.distributed.run", *torchrun, *module]

    def run(self, config: dict[str, Any], *words: str, processes: int = 1, **env: str) -> Result:
        """Run to the end."""
        done = subprocess.run(
            self.command(config, *words, processes=processes),
            cwd=self.folder,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)
