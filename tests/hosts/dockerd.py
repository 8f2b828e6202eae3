"""A Docker daemon of the tests' own: nothing of the machine's engine, network or images is touched."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts import images
from tests.hosts.namespace import Namespace, own_folder, remove_cgroups, wait_for

BUSYBOX = "ekvi-test/busybox:1"
PYTHON = "ekvi-test/python:1"
# Stands in for NVIDIA's: with it on its PATH the daemon takes --gpus, and the container gets nothing.
_HOOK = "#!/bin/sh\ncat >/dev/null\n"


def executable(path: Path, text: str) -> None:
    """Write a small program."""
    path.write_text(text)
    path.chmod(0o755)


def daemon_argv(run: Path, data: Path, socket: Path, cgroups: str) -> list[str]:
    """The daemon without networks or firewall rules: containers use the machine's own network."""
    return [
        *("dockerd", "--group", "docker", "--host", f"unix://{socket}", "--pidfile", str(run / "docker.pid")),
        *("--data-root", str(data), "--exec-root", str(run / "docker"), "--storage-driver", "overlay2"),
        *("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none", "--live-restore"),
        *("--cgroup-parent", f"/{cgroups}", "--config-file", str(run / "daemon.json")),
    ]


class Dockerd:
    """A daemon with a socket and data of its own, in `namespace`; it may be stopped and started again."""

    def __init__(self, namespace: Namespace, run: Path, *, cgroups: str) -> None:
        self.namespace = namespace
        self.cgroups = cgroups
        self.socket = run / "docker.sock"
        self.data = namespace.folder / "docker"
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        executable(namespace.folder / "tools" / "nvidia-container-runtime-hook", _HOOK)

    @property
    def env(self) -> dict[str, str]:
        """What a client's environment needs to speak with it."""
        return {"DOCKER_HOST": f"unix://{self.socket}"}

    def client(self, *argv: str) -> list[str]:
        """The command line of a client; on a machine of its own it runs there."""
        return ["docker", *argv]

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        self.namespace.run("mkdir", "-p", str(self._run))
        config = json.dumps({"features": {"buildkit": False}})
        self.namespace.run("tee", str(self._run / "daemon.json"), stdin=config.encode())
        tools = f"{self.namespace.folder}/tools"
        path = f"PATH={tools}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        argv = daemon_argv(self._run, self.data, self.socket, self.cgroups)
        self._process = self.namespace.spawn(["env", path, *argv], self.log)
        wait_for(self.answers, 30, f"dockerd does not answer:\n{self.tail()}")

    @property
    def log(self) -> Path:
        """What the daemon says."""
        return self.namespace.folder / "dockerd.log"

    def tail(self) -> str:
        """The daemon's last words."""
        return self.log.read_text()[-2000:] if self.log.exists() else ""

    def answers(self) -> bool:
        """Whether the daemon answers."""
        if self._process is None or self._process.poll() is not None:
            return False
        return self.run("version", check=False).returncode == 0

    def run(
        self, *argv: str, check: bool = True, stdin: bytes | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """`docker ARGV...`; AssertionError with its words where it fails and `check` is set."""
        done = subprocess.run(
            self.client(*argv),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
            env=os.environ | self.env,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert not check or done.returncode == 0, f"docker {' '.join(argv)}: {err or out}"
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def load(self, image: images.Image) -> None:
        """Bring an image in, made on the spot."""
        with image.tar().open("rb") as tar:
            words = [w for change in image.changes for w in ("--change", change)]
            done = subprocess.run(
                self.client("import", *words, "-", image.tag),
                stdin=tar, capture_output=True, timeout=120, check=False, env=os.environ | self.env,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    def remove_containers(self) -> None:
        """Remove every container."""
        names = self.run("ps", "-aq").stdout.split()
        if names:
            self.run("rm", "-f", "-v", *names)

    def stop(self, *, crash: bool = False) -> None:
        """End the daemon and its containerd; running containers go on, as they do where live-restore is set."""
        self.namespace.kill("dockerd", sig=9 if crash else 15)
        if self._process is not None:
            self._process.wait(30)
        wait_for(lambda: not self.namespace.processes("dockerd", "containerd"), 10, "containerd lives on")


@contextmanager
def private_dockerd() -> Iterator[Dockerd]:
    """A daemon on this machine: its own socket and devices (NVIDIA's and AMD's as null devices), no own network."""
    with own_folder("d-") as folder:
        namespace = Namespace(folder, "both")
        daemon = Dockerd(namespace, folder / "run", cgroups=f"ekvi-test-{folder.name}")
        try:
            daemon.start()
            daemon.load(images.busybox(BUSYBOX))
            daemon.load(images.python(PYTHON))
            yield daemon
            daemon.remove_containers()
        finally:
            namespace.close()
            remove_cgroups(daemon.cgroups)
