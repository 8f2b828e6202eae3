"""A desk whose stages run in containers of a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runners.agent import record
from tests.agent.support import Desk, stage
from tests.hosts.dockerd import BUSYBOX, Dockerd

LINES = 50_000
# Prints at a pace that leaves time to kill something meanwhile; the last bytes come right before its end.
COUNT = f"""
import os, sys, time
for i in range({LINES}):
    sys.stdout.write(f"line {{i:06d}}\\n")
    if i % 100 == 0:
        sys.stdout.flush()
        time.sleep(0.002)
    while i == {LINES * 9 // 10} and not os.path.exists("/ekvi/out/gate"):
        time.sleep(0.005)
"""
EXPECTED = b"".join(b"line %06d\n" % i for i in range(LINES))
INTO_PIPE = 'exec 3<>/ekvi/pipe; exec "$@" >&3 2>&3 3>&-'
FOREVER = "echo up; while :; do sleep 0.05; done"


@contextmanager
def storage() -> Iterator[Path]:
    """A folder for podman, which refuses a path of more than 50 characters."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class Dock(Desk):
    """A desk whose stages run in containers of a daemon."""

    daemon: Dockerd  # where it is docker's
    engine: tuple[str, ...] = ("docker",)
    env: dict[str, str]  # what speaking with the engine needs

    def create(
        self, run: str, *argv: str, image: str = BUSYBOX, flags: tuple[str, ...] = (), **more: Any
    ) -> dict[str, Any]:
        """The stage `train` of a run, as a launcher writes it."""
        labels = {"ekvi.group": "g1", "ekvi.run": run, "ekvi.stage": "train", "ekvi.agent": str(self.q)}
        words = [*self.engine, "create", "--pull", "never", "--name", self.name(run)]
        words += ["--network", "host", "--log-driver", "none"]
        words += [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        words += ["-v", "${RUN_DIR}:/ekvi/run:ro", "-v", "${OUT_DIR}:/ekvi/out", "-v", "${RUN_DIR}/pipe.0:/ekvi/pipe"]
        words += ["--entrypoint", "/bin/sh", *flags, image, "-c", INTO_PIPE, "ekvi", *argv]
        return stage("train", *words, container={"engine": self.engine[0], "name": self.name(run)}, **more)

    def name(self, run: str) -> str:
        return f"ekvi-{self.work.parent.name}-{run}"

    def dock(self, runs: dict[str, dict[str, Any]], **more: Any) -> None:
        """Write the queue, one contained stage a run."""
        self.queue({run: [stage] for run, stage in runs.items()}, **more)
        for entry in (body := self.body())["runs"]:
            entry["env"] = self.env
        self.put(body)

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.q / "queue.json").read_text())
        return found

    def put(self, body: dict[str, Any]) -> None:
        (self.q / "queue.json").write_text(json.dumps(body))

    def containers(self) -> list[str]:
        return self.ask("ps", "-aq", "--filter", f"label=ekvi.agent={self.q}").split()

    def ask(self, *argv: str) -> str:
        done = subprocess.run(
            [*self.engine, *argv], env=os.environ | self.env, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def fields(self, run: str) -> dict[str, Any] | None:
        return record.read(str(self.run_dir(run) / "container.0.json"))

    def close(self) -> None:
        super().close()
        if names := self.containers():
            self.ask("rm", "-f", *names)
