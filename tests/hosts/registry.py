"""A real image registry with a login, on this machine."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.namespace import sh, wait_for

_CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {data}}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: tests, path: {htpasswd}}}}}
"""


@dataclass(frozen=True, slots=True)
class Registry:
    """Where it is (HOST:PORT), and who may use it."""

    address: str
    user: str
    password: str


@contextmanager
def private_registry(folder: Path, password: str) -> Iterator[Registry]:
    """A registry that keeps its images in `folder`."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    assert program, "there is no docker-registry: tests/hosts/setup.sh installs it"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    (folder / "htpasswd").write_text(sh("htpasswd", "-Bbn", "tester", password))
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(data=folder / "data", port=port, htpasswd=folder / "htpasswd"))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log, env=dict(os.environ))
    try:
        wait_for(lambda: _answers(port), 20, f"the registry does not answer: {(folder / 'registry.log').read_text()}")
        yield Registry(f"127.0.0.1:{port}", "tester", password)
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/v2/")
        return connection.getresponse().status == 401
    except OSError:
        return False
    finally:
        connection.close()
