"""Several nodes without a scheduler: real agents, real sockets, each node with a work folder of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.agent.base import is_locked
from runners.agent.peerline import proof
from tests.agent.support import Desk, numbered, python, until

NAMES = ["a", "b"]
TOKEN = "5eed" * 8
SILENCE_S = 2.0

# Notes when it began, prints a word, and waits for its gate; fails where its own name is told to.
WORK = """
import os, sys, time
gates, name = sys.argv[1], os.environ["NODE"]
stage = os.environ["EKVI_STAGE"]
open(f"{gates}/began.{os.environ['EKVI_RUN']}.{stage}.{name}", "w").close()
print("hello from", name, flush=True)
while not os.path.exists(f"{gates}/go.{stage}") and not os.path.exists(f"{gates}/go.{stage}.{name}"):
    time.sleep(0.01)
sys.exit(int(os.environ.get(f"FAIL_{name}", "0")))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


class Nodes:
    """Two desks that are the nodes of one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.port = free_port()
        self.desks = [Desk(folder / name) for name in NAMES]

    def queue(
        self, runs: list[str], stages: tuple[str, ...] = ("train",), *, token: str | None = None, **more: Any
    ) -> Nodes:
        """The same queue for both; `token` is what b has for one."""
        env = more.pop("env", {})
        for rank, desk in enumerate(self.desks):
            each = [
                python(stage, WORK, str(self.gates), env={"NODE": NAMES[rank], **env}, stop_grace_s=0.5, **more)
                for stage in stages
            ]
            peers = {
                "rank": rank, "names": NAMES, "address": "127.0.0.1", "port": self.port,
                "token": token if token and rank else TOKEN, "silence_s": SILENCE_S,
            }  # fmt: skip
            desk.queue(dict.fromkeys(runs, each), peers=peers)
        return self

    def open(self, name: str) -> None:
        (self.gates / name).touch()

    def began(self, run: str = "r1", stage: str = "train") -> set[str]:
        """Which nodes began a stage."""
        return {name for name in NAMES if (self.gates / f"began.{run}.{stage}.{name}").exists()}

    def both_began(self, run: str = "r1", stage: str = "train") -> None:
        until(lambda: self.began(run, stage) == set(NAMES), f"both begin {stage} of {run}: {self.logs()}")

    def logs(self) -> str:
        return "".join(desk.log() for desk in self.desks)

    def child(self, rank: int, run: str = "r1") -> psutil.Process:
        """A node's training process."""
        record = until(lambda: self.desks[rank].record(run), "there is a record") or {}
        return psutil.Process(record["child_pid"])

    def reason(self, rank: int, run: str = "r1") -> str:
        return self.desks[rank].last(run)["reason"] or ""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        for desk in made.desks:
            desk.close()


def test_a_stage_begins_when_both_are_ready_and_a_run_ends_when_both_have(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1", "r2"], ("data", "train")).desks
    leader = a.work_here()
    until(lambda: a.states("r1") and a.last("r1")["reason"] == "waits for node b", f"it waits: {nodes.logs()}")
    assert a.names("r1") == ["PENDING"]
    follower = b.work_here()
    nodes.both_began("r1", "data")
    nodes.open("go.data.a")
    until(lambda: (a.record("r1") or {}).get("ended"), "a ends its data")
    assert nodes.began("r1", "train") == set()  # b is still at its data
    nodes.open("go.data")
    nodes.both_began("r1", "train")
    nodes.open("go.train.a")
    until(lambda: (a.record("r1", 1) or {}).get("ended"), "a ends its training")
    assert a.last("r1")["state"] == "RUNNING"
    nodes.open("go.train")
    a.finish(leader)
    b.finish(follower)
    for desk in (a, b):
        for run in ("r1", "r2"):
            assert (desk.last(run)["state"], desk.last(run)["exit_code"]) == ("SUCCEEDED", 0)
            assert numbered(desk.states(run))
    assert TOKEN not in nodes.logs()


def test_one_nodes_failure_ends_the_other_and_is_named(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1", "r2"], env={"FAIL_b": "3"}).desks
    agents = [desk.work_here() for desk in (a, b)]
    nodes.both_began()
    nodes.open("go.train.b")
    end = a.wait_ended("r1")
    assert (end["state"], end["exit_code"], end["stage"]) == ("FAILED", 3, "train")
    assert end["reason"] == "node b: stage train exited with code 3"
    assert end["data"]["tail"] == ["hello from b"]
    assert b.wait_ended("r1")["reason"] == "stage train exited with code 3"
    nodes.both_began("r2")
    nodes.open("go.train")
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
    assert a.last("r2")["state"] == "FAILED"


def test_a_leaders_own_failure_is_named_too(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"], env={"FAIL_a": "4"}).desks
    agents = [desk.work_here() for desk in (a, b)]
    nodes.both_began()
    nodes.open("go.train.a")
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
    assert nodes.reason(0) == nodes.reason(1) == "node a: stage train exited with code 4"
    assert a.last("r1")["exit_code"] == 4


def test_a_training_killed_with_9_names_its_node(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"]).desks
    agents = [desk.work_here() for desk in (a, b)]
    nodes.both_began()
    nodes.child(1).kill()
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
    assert a.last("r1")["state"] == "FAILED"
    assert a.last("r1")["signal"] == 9
    assert nodes.reason(0).startswith("node b: stage train was ended by signal 9")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_agent_killed_with_9_is_survived(nodes: Nodes, rank: int) -> None:
    nodes.queue(["r1"], ("data", "train"))
    agents = [desk.work_here() for desk in nodes.desks]
    nodes.both_began("r1", "data")
    nodes.desks[rank].kill_agent(agents[rank])
    nodes.open("go.data.a")
    nodes.open("go.data.b")
    agents[rank] = nodes.desks[rank].work_here()
    nodes.both_began("r1", "train")
    nodes.desks[rank].kill_agent(agents[rank])
    nodes.open("go.train")
    until(lambda: (nodes.desks[rank].record("r1", 1) or {}).get("ended"), "it ends without its agent")
    agents[rank] = nodes.desks[rank].work_here()
    for desk, agent in zip(nodes.desks, agents, strict=True):
        desk.finish(agent)
        assert desk.last("r1")["state"] == "SUCCEEDED", nodes.logs()
        assert numbered(desk.states("r1"))


def test_a_node_that_is_not_heard_fails_the_run_and_is_named(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"]).desks
    leader, follower = a.work_here(), b.work_here()
    nodes.both_began()
    b.kill_agent(follower)
    a.finish(leader)
    assert (a.last("r1")["state"], nodes.reason(0)) == ("NODE_FAIL", "node b: was not heard for 2 s")
    b.work_to_end()  # its training lived under its shim; nobody leads it any more
    assert (b.last("r1")["state"], nodes.reason(1)) == ("NODE_FAIL", "node a: was not heard for 2 s")


def test_the_user_stops_a_run_that_waits_for_a_node(nodes: Nodes) -> None:
    a, _ = nodes.queue(["r1", "r2"]).desks
    agent = a.work_here()
    until(lambda: a.states("r1") and a.last("r1")["reason"] == "waits for node b", "it waits")
    assert a.call("stop", str(a.q)).returncode == 0
    a.finish(agent)
    assert [(a.last(r)["state"], a.last(r)["reason"]) for r in ("r1", "r2")] == [
        ("CANCELLED", "stopped by the user")
    ] * 2


def test_the_user_stops_both_nodes_through_the_first(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1", "r2"]).desks
    agents = [desk.work_here() for desk in (a, b)]
    nodes.both_began()
    assert a.call("stop", str(a.q)).returncode == 0
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
        assert [desk.last(r)["state"] for r in ("r1", "r2")] == ["CANCELLED"] * 2
    assert nodes.reason(0) == nodes.reason(1) == "stopped by the user"


def test_a_wrong_token_is_never_let_in(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"], token="0123" * 8).desks
    agents = [desk.work_here() for desk in (a, b)]
    until(lambda: b.states("r1") and "not as node a" in b.last("r1")["reason"], f"b is told: {b.log()}")
    assert nodes.began() == set()
    assert a.last("r1")["reason"] == "waits for node b"
    for agent in agents:
        agent.terminate()
        agent.wait(10)
    assert b.last("r1")["state"] == "CANCELLED"


def _hello(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        part = sock.recv(4096)
        assert part
        data += part
    found: dict[str, Any] = json.loads(data)
    return found


def _closed(sock: socket.socket) -> bool:
    """Whether the other side hung up; what it still says is passed over."""
    sock.settimeout(10)
    with contextlib.suppress(ConnectionError):
        while sock.recv(4096):
            pass
    return True


def _dial(port: int) -> socket.socket:
    """A connection to the leader, once it listens."""

    def dial() -> list[socket.socket]:
        with contextlib.suppress(OSError):
            return [socket.create_connection(("127.0.0.1", port), timeout=10)]
        return []

    return until(dial, "the leader listens")[0]


def test_strangers_are_dropped_and_keep_nobody_out(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"]).desks
    agents = [a.work_here()]
    first = _dial(nodes.port)
    sayings = [b"x" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"type":"hello","name":"b","nonce":"n"}\n']
    nonce = _hello(first)["nonce"]
    reflected = proof(TOKEN[::-1], "follower", "ekvi.peers/1", "g1/k1", nonce, "n", "b")
    sayings.append(json.dumps({"type": "hello", "name": "b", "nonce": "n", "proof": reflected}).encode() + b"\n")
    for said in sayings:
        with contextlib.closing(_dial(nodes.port)) as sock:
            _hello(sock)
            sock.sendall(said)
            assert _closed(sock), said
    silent = [_dial(nodes.port) for _ in range(40)]  # and many that say nothing
    agents.append(b.work_here())
    nodes.both_began()
    nodes.open("go.train")
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
    for sock in (first, *silent):
        sock.close()
    assert a.last("r1")["state"] == "SUCCEEDED"


def test_a_run_stalls_only_where_no_node_prints(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"], env={"FAIL_b": "0"}, stall_after_s=1.5).desks
    agents = [desk.work_here() for desk in (a, b)]
    nodes.both_began()
    for desk in (a, b):
        desk.wait_state("r1", "RUNNING")
    spool, end = b.run_dir("r1") / "spool.log", time.monotonic() + 3
    pid = nodes.child(1).pid
    assert spool.exists()
    while time.monotonic() < end:  # b's training prints, a's does not
        with Path(f"/proc/{pid}/fd/1").open("wb", buffering=0) as out:
            out.write(b"step\n")
        assert a.last("r1")["state"] == b.last("r1")["state"] == "RUNNING"
        time.sleep(0.2)
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
        assert desk.last("r1")["state"] == "STALLED"
    assert "stage train printed nothing for 1.5 s" in nodes.reason(0)


def test_a_leader_whose_port_is_taken_says_so_and_goes_on_when_it_is_free(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"]).desks
    nodes.open("go.train")
    with socket.create_server(("127.0.0.1", nodes.port)):
        agents = [desk.work_here() for desk in (a, b)]
        said = f"waits: port {nodes.port} of this node cannot be listened on (Address already in use)"
        until(lambda: a.states("r1") and a.last("r1")["reason"] == said, f"it says so: {a.states('r1')}")
    for desk, agent in zip((a, b), agents, strict=True):
        desk.finish(agent)
    assert a.last("r1")["state"] == "SUCCEEDED"


def test_a_node_whose_slot_is_taken_keeps_no_other_from_the_leaders(nodes: Nodes, tmp_path: Path) -> None:
    """A plain queue trains on b; one on a, which came later than the nodes' group, still has its turn."""
    plain = []
    for name in NAMES:
        desk = Desk(nodes.folder / name)
        desk.q = desk.work / "groups" / "plain.k1"
        desk.queue({"p": [python("train", WORK, str(nodes.gates), env={"NODE": f"plain-{name}"})]}, group="plain")
        plain.append(desk)
    a, b = nodes.queue(["r1"]).desks
    on_a, on_b = plain
    agents = [(on_b, on_b.work_here())]
    on_b.wait_state("p", "RUNNING")
    agents += [(desk, desk.work_here()) for desk in (a, b)]
    said = "waits for node b: waits for slot default, held by run p of group plain"
    until(lambda: a.states("r1") and a.last("r1")["reason"] == said, f"a says who holds it: {a.states('r1')}")
    nodes.open("go.train.plain-a")
    agents.append((on_a, on_a.work_here()))
    assert on_a.wait_ended("p")["state"] == "SUCCEEDED"
    assert nodes.began() == set()
    nodes.open("go.train")
    for desk, agent in agents:
        desk.finish(agent)
    assert a.last("r1")["state"] == "SUCCEEDED"


def _succeeded(desk: Desk) -> bool:
    return "SUCCEEDED" in desk.names("r1")


def test_groups_that_hold_each_others_slots_both_come_to_their_turn(tmp_path: Path) -> None:
    """Group 1 is led by a, group 2 by b, on the same two machines with one slot each."""
    groups = []
    for i in (0, 1):
        (tmp_path / f"g{i}").mkdir()
        group = Nodes(tmp_path / f"g{i}")
        works = [tmp_path / "a", tmp_path / "b"]
        group.desks = [Desk(work) for work in (works if i == 0 else works[::-1])]
        for desk in group.desks:
            desk.q = desk.work / "groups" / f"g{i}.k1"
        group.queue(["r1"], group=f"g{i}")
        group.open("go.train")
        groups.append(group)
    try:
        agents = [(desk, desk.work_here()) for rank in (0, 1) for group in groups for desk in [group.desks[rank]]]
        for group in groups:
            until(partial(_succeeded, group.desks[0]), f"both groups end: {[g.logs() for g in groups]}", 40.0)
        for desk, agent in agents:
            desk.finish(agent)
            assert not is_locked(str(desk.work / "slots" / "default.0.lock"))
    finally:
        for group in groups:
            for desk in group.desks:
                desk.close()


def test_a_follower_that_is_done_waits_for_its_leader_until_it_is_told_to_stop(nodes: Nodes) -> None:
    a, b = nodes.queue(["r1"]).desks
    leader, follower = a.work_here(), b.work_here()
    nodes.both_began()
    a.kill_agent(leader)
    nodes.open("go.train.b")
    assert b.wait_ended("r1")["state"] == "SUCCEEDED"
    assert b.call("status", str(b.q)).returncode == 0
    assert is_locked(str(b.q / "agent.lock"))
    assert b.call("stop", str(b.q)).returncode == 0
    assert json.loads(b.call("status", str(b.q)).stdout)["runs"][0]["state"] == "SUCCEEDED"
    b.finish(follower)
