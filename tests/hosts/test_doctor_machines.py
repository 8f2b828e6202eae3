"""`doctor` and `servers test` as a user calls them, against two machines with GPUs that others use."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.dockerd import PYTHON
from tests.hosts.duel import User, eventually, user
from tests.hosts.machines import Machines

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]


def profile(**server: Any) -> dict[str, Any]:
    """A command in a container on both machines."""
    groups = {"model": "tiny", "data": "pydoc", "training": "cpu", "launcher": "container"}
    return {
        "defaults": [{k: v} for k, v in groups.items()] + [{"theme": "nord"}, {"pricing": "none"}, "_self_"],
        "runner": {"name": "command", "argv": ["true"]},
        "launcher": {"image": PYTHON, "ulimits": {"memlock": None, "stack": None}},
        "servers": {name: {"address": name, **server} for name in ("cuda-host", "rocm-host")},
    }  # fmt: skip


@pytest.fixture
def someone(tmp_path: Path, machines: Machines) -> Iterator[User]:
    for machine in machines.both:
        if machine.dockerd.run("image", "inspect", PYTHON, check=False).returncode != 0:
            machine.dockerd.load(_python())
    with user(tmp_path, machines) as made:
        made.write_profile("two", profile())
        yield made


def _python() -> Any:
    from tests.hosts import images

    return images.python(PYTHON)


def findings(document: dict[str, Any], server: str, check: str) -> list[dict[str, Any]]:
    (told,) = [s for s in document["servers"] if s["name"] == server]
    return [f for f in told["findings"] if f["check"] == check]


def test_two_healthy_machines(someone: User) -> None:
    said = someone.call("doctor", "--profile", "two").stdout
    assert said.splitlines()[-1].startswith("A run can start on all 2 servers")
    document = someone.json("doctor", "--profile", "two")
    assert document["schema"] == "ekvi.doctor/1"
    assert {s["name"]: s["vendor"] for s in document["servers"]} == {"cuda-host": "nvidia", "rocm-host": "amd"}
    (gpus,) = findings(document, "cuda-host", "gpus")
    assert gpus["text"].startswith("2 x NVIDIA H200, driver 570.124.06")
    (gpus,) = findings(document, "rocm-host", "gpus")
    assert gpus["text"].startswith("2 x AMD Instinct MI300X")
    for name in ("cuda-host", "rocm-host"):
        assert findings(document, name, "engine")[0]["text"].startswith("docker ")
        assert [f["level"] for f in findings(document, name, "tenants")] == ["ok"]
        assert findings(document, name, "containers")


def test_gpus_that_somebody_else_is_using(someone: User, machines: Machines) -> None:
    machines.cuda.exec("sh", "-c", "sleep 1000 </dev/null >/dev/null 2>&1 &", user="ekvi-test")
    pid = int(machines.cuda.exec("sh", "-c", "pgrep -x sleep | head -n 1").stdout)
    machines.cuda.tenant(1, pid, "python3", 61 << 30)
    document = json.loads(someone.call("doctor", "--profile", "two", "--output", "json", rc=3).stdout)
    (busy,) = findings(document, "cuda-host", "tenants")
    assert "take others (servers.cuda-host.gpus=0)" in busy["mend"]
    assert busy["level"] == "fail"
    assert f"GPU 1: ekvi-test's python3 (pid {pid}, 65.5 GB)" in busy["text"]
    assert "servers.cuda-host.share_gpus=true" in busy["mend"]
    assert document["verdict"].startswith("A run could not start on cuda-host; it can on rocm-host")
    someone.call("doctor", "--profile", "two", "servers.cuda-host.share_gpus=true")
    someone.call("doctor", "--profile", "two", "servers.cuda-host.gpus=0")
    absent = someone.json("doctor", "--profile", "two", "servers.cuda-host.gpus=[0,5]", rc=3)
    assert findings(absent, "cuda-host", "gpus")[0]["text"] == "GPU 5 is not there: the server has 2 (0-1)."


def test_a_container_of_somebody_else_is_named(someone: User, machines: Machines) -> None:
    words = ["run", "-d", "--network", "host", "--name", "bobs-training", "--device", "/dev/kfd"]
    machines.rocm.dockerd.run(*words, PYTHON, "sleep", "1000")
    pid = int(machines.rocm.dockerd.run("inspect", "-f", "{{.State.Pid}}", "bobs-training").stdout)
    machines.rocm.tenant(0, pid, "python3", 1 << 30)
    document = someone.json("doctor", "--profile", "two", rc=3)
    assert "in container bobs-training" in findings(document, "rocm-host", "tenants")[0]["text"]
    (running,) = findings(document, "rocm-host", "containers")
    assert running["level"] == "warn"
    assert f"bobs-training ({PYTHON})" in running["text"]


def test_one_machine_gone_hides_nothing_of_the_other(someone: User, machines: Machines) -> None:
    machines.rocm.link_down()
    document = someone.json("doctor", "--profile", "two", rc=3)
    assert [f["level"] for f in findings(document, "rocm-host", "login")] == ["fail"]
    assert findings(document, "cuda-host", "engine")[0]["level"] == "ok"


def test_nodes_that_lose_each_others_packets(someone: User, machines: Machines) -> None:
    nodes = {"defaults": profile()["defaults"], "runner": profile()["runner"], "launcher": {"kind": "process"}}
    nodes["defaults"] = [{"launcher": "process"} if "launcher" in d else d for d in nodes["defaults"]]
    spec = {"nodes": ["cuda-host", "rocm-host"], "vendor": "cpu", "master_addr": machines.cuda.address}
    someone.write_profile("both", {**nodes, "servers": {"pair": spec}})
    good = someone.json("doctor", "--profile", "both")
    assert "2 nodes meet at 10.77.1.2 ports 29400 and 29401" in findings(good, "pair", "ports")[0]["text"]
    machines.cuda.exec("iptables", "-w", "10", "-I", "INPUT", "-p", "tcp", "--dport", "29401", "-j", "DROP")
    try:
        bad = someone.json("doctor", "--profile", "both", rc=3)
    finally:
        machines.cuda.exec("iptables", "-w", "10", "-D", "INPUT", "-p", "tcp", "--dport", "29401", "-j", "DROP")
    (port,) = findings(bad, "pair", "ports")
    assert "does not reach 10.77.1.2 port 29401" in port["text"]
    assert "timed out" in port["text"]


def test_server_files_are_tested_by_name(someone: User, machines: Machines) -> None:
    ssh = f"ssh.config={machines.ssh_config}"
    someone.call("servers", "add", "cuda", "address=cuda-host", ssh)
    said = someone.call("servers", "test", "cuda").stdout
    assert "2 x NVIDIA H200" in said
    assert "docker " in said
    someone.call("servers", "add", "gone", "address=no-such-host.invalid", ssh)
    document = someone.json("servers", "test", "gone", "cuda", rc=3)
    assert [(s["name"], s["level"] == "fail") for s in document["servers"]] == [("gone", True), ("cuda", False)]


def test_ctrl_c_is_clean(someone: User, machines: Machines) -> None:
    machines.cuda.drop_packets()
    process = someone.start("doctor", "--profile", "two")
    eventually(_waits, 20, "doctor never connected")
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130
    assert "Traceback" not in someone.said()


def _waits() -> bool:
    """Whether a connection to a machine's port 22 (0016) is in the making (SYN_SENT, 02)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[3] == "02" and row[2].endswith(":0016") for row in rows)


def test_a_training_that_cannot_fit_is_refused_before_anything_is_started(someone: User) -> None:
    words = ["model=llama31_8b", "training.sequence_length=8192"]
    large = {**profile(share_gpus=True), "runner": {"name": "megatron"}}
    someone.write_profile("large", large)
    document = someone.json("doctor", "--profile", "large", *words, rc=3)
    for name, model in (("cuda-host", "140.4"), ("rocm-host", "192.0")):
        (memory,) = findings(document, name, "gpu memory")
        assert memory["level"] == "fail", name
        assert f"which has {model}" in memory["text"]
        assert "What would help: training." in memory["mend"]
    said = someone.call("run", "--profile", "large", *words, rc=3).stderr
    assert "llama31_8b takes about" in said
    assert json.loads(someone.call("runs", "--output", "json").stdout) in ([], {"runs": []})
    script = someone.call("run", "--profile", "large", *words, "--dry-run").stdout
    assert script.count("`run` refuses this: llama31_8b takes about") == 2
