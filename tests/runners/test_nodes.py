"""How the processes of two nodes meet over gloo: torchrun on each, as the launcher starts it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners import meeting
from tests.runners.support import TIMEOUT_S, Place, Result


class Node:
    """A machine of its own as far as folders go; with `name` it bears that host name, which nobody knows."""

    def __init__(self, folder: Path, rank: int, port: int, name: str | None = None) -> None:
        self.place = Place(folder / f"node{rank}", folder / f"cache{rank}")
        self.rank, self.port = rank, port
        self.prefix = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"] if name else []

    def start(self, body: dict[str, Any], *words: str, master: str = "127.0.0.1") -> subprocess.Popen[str]:
        """Its torchrun, with one process."""
        self.place.folder.mkdir(parents=True, exist_ok=True)
        path = self.place.folder / "config.json"
        path.write_text(json.dumps(body))
        meet = ["--nnodes", "2", "--node-rank", str(self.rank), "--nproc-per-node", "1"]
        meet += ["--master-addr", master, "--master-port", str(self.port), "--rdzv-id", "r1.train"]
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "torch.distributed.run", *meet, "-m", "runners",
             "--config", str(path), *words],
            cwd=self.place.folder, env=self.place.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def ended(nodes: list[subprocess.Popen[str]]) -> list[Result]:
    """What both said when they have ended."""
    try:
        said = [node.communicate(timeout=TIMEOUT_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    return [Result(node.returncode, out, err) for node, (out, err) in zip(nodes, said, strict=True)]


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        number: int = found.getsockname()[1]
        return number


@pytest.mark.train
@pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own needs root")
def test_gloo_meets_where_no_resolver_knows_the_machines_names(tmp_path: Path) -> None:
    at = port()
    nodes = [Node(tmp_path, rank, at, f"unknown-{rank}") for rank in (0, 1)]
    body = {"runner": {"name": "smoke"}}
    results = ended([node.start(body, "stage=train") for node in nodes])
    assert [r.rc for r in results] == [0, 0], results[0].err + results[1].err
    assert results[1].diagnostic("result")["data"]["fell"]
    assert results[0].wires("iteration") == []


def test_an_address_tells_its_interface() -> None:
    assert meeting.interface_of("127.0.0.1") == "lo"
    assert meeting.interface_of("127.0.1.1") == "lo"
    assert meeting.interface_of("192.0.2.1") is None
    assert meeting.route_to("127.0.0.1", 9) == ("127.0.0.1", "127.0.0.1")
