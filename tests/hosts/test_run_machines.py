"""What keeps a run from starting on machines with GPUs, as `run` meets it: busy, absent, cut off, or taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.duel import User, eventually, user
from tests.hosts.machines import HOME, Machines

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]


def profile(servers: dict[str, Any], *argv: str) -> dict[str, Any]:
    """A plain program on servers."""
    groups = {"model": "tiny", "data": "pydoc", "training": "cpu", "launcher": "process"}
    return {
        "defaults": [{k: v} for k, v in groups.items()] + [{"theme": "nord"}, {"pricing": "none"}, "_self_"],
        "stage": "train",
        "repeats": 1,
        "runner": {"name": "command", "argv": list(argv)},
        "servers": servers,
    }


@pytest.fixture
def someone(tmp_path: Path, machines: Machines) -> Iterator[User]:
    with user(tmp_path, machines) as made:
        yield made


def test_busy_and_absent_gpus_and_nodes_cut_off_are_refused_and_the_good_server_goes_on(
    someone: User, machines: Machines
) -> None:
    machines.cuda.exec("sh", "-c", "sleep 1000 </dev/null >/dev/null 2>&1 &", user="ekvi-test")
    pid = int(machines.cuda.exec("sh", "-c", "pgrep -x sleep | head -n 1").stdout)
    machines.cuda.tenant(1, pid, "python3", 61 << 30)
    gpus = {"address": "cuda-host", "vendor": "nvidia", "training": "cpu"}
    pair = {"nodes": ["cuda-host", "rocm-host"], "vendor": "cpu", "master_addr": machines.cuda.address}
    servers = {
        "busy": {**gpus, "slot": "one", "gpus": [1]},
        "absent": {**gpus, "slot": "two", "gpus": [0, 5]},
        "pair": {**pair, "training": "cpu", "slot": "three"},
        "good": {"address": "rocm-host", "vendor": "cpu", "training": "cpu"},
    }
    someone.write_profile("two", profile(servers, "true"))
    rule = ("INPUT", "-p", "tcp", "--dport", "29401", "-j", "DROP")
    machines.cuda.exec("iptables", "-w", "10", "-I", *rule)
    try:
        said = someone.call("run", "--profile", "two", rc=3).stderr
    finally:
        machines.cuda.exec("iptables", "-w", "10", "-D", *rule)
    told = dict(
        line.removeprefix("refused: server ").split(": ", 1) for line in said.splitlines() if "refused: " in line
    )
    assert set(told) == {"busy", "absent", "pair"}, said
    assert f"somebody is on the GPUs: GPU 1: ekvi-test's python3 (pid {pid}" in told["busy"]
    assert "servers.busy.share_gpus=true" in told["busy"]
    assert told["absent"].startswith("GPU 5 is not there: the server has 2 (0-1). Correct servers.absent.gpus.")
    assert "node rocm-host does not reach 10.77.1.2 port 29401 on node cuda-host: timed out" in told["pair"]
    assert "servers.pair.master_addr" in told["pair"]
    assert {m["server"]: m["state"] for m in someone.metas()} == {
        "busy": "CANCELLED", "absent": "CANCELLED", "pair": "CANCELLED", "good": "SUCCEEDED",
    }  # fmt: skip


def test_a_second_group_on_the_slot_waits_and_says_for_whom(someone: User, machines: Machines) -> None:
    server = {"address": "rocm-host", "vendor": "cpu", "training": "cpu"}
    program = f"while [ ! -e {HOME}/gate ]; do sleep 0.1; done"
    someone.write_profile("two", profile({"good": server}, "sh", "-c", program))
    someone.call("run", "--profile", "two", "--detach")
    first = eventually(lambda: someone.group, 10, someone.said)
    second = someone.start("run", "--profile", "two")
    wanted = f"good #1: PENDING (waits for slot default, held by run {first['runs'][0]} of group {first['id']})"
    eventually(lambda: wanted in someone.said(), 30, someone.said)
    machines.rocm.exec("touch", f"{HOME}/gate", user="ekvi-test")
    assert second.wait(60) == 0, someone.said()
    someone.call("attach", first["id"])
    assert {m["state"] for m in someone.metas()} == {"SUCCEEDED"}
