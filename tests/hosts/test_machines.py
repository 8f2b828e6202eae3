"""The two test machines are what they seem: each has its own of everything, and their wires can be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.hosts import probe
from tests.hosts import images
from tests.hosts.dockerd import BUSYBOX
from tests.hosts.machines import Machines
from tests.hosts.namespace import ROOT, own_folder, wait_for

pytestmark = pytest.mark.hosts


def ssh(machines: Machines, name: str, *words: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(machines.ssh_config), "-o", "ConnectTimeout=3", name, *words]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(("name", "vendor"), [("cuda-host", "nvidia"), ("rocm-host", "amd")])
def test_a_login_reaches_the_machine_of_that_name_and_vendor(machines: Machines, name: str, vendor: str) -> None:
    done = ssh(machines, name, "hostname; id -un; pwd")
    assert done.stdout.split() == [name, "ekvi-test", "/home/ekvi-test"], done.stderr
    script = probe._SCRIPT.replace("'", "'\\''")
    facts = probe.parse_facts(ssh(machines, name, f"sh -c '{script}' sh python3").stdout.encode())
    assert (facts.vendor, facts.hostname) == (vendor, name)


def test_they_are_two_machines(machines: Machines) -> None:
    cuda, rocm = machines.both
    ids = {m.exec("cat", "/etc/machine-id").stdout for m in machines.both}
    assert len(ids) == 2
    for m in machines.both:
        m.exec("sh", "-c", "echo mine > ~/note; echo mine > /tmp/note", user="ekvi-test")
    rocm.exec("rm", "/home/ekvi-test/note", "/tmp/note")
    assert (cuda.home / "note").read_text() == cuda.path("/tmp/note").read_text() == "mine\n"
    assert cuda.home.joinpath("note").owner() == "ekvi-test"


def test_the_user_runs_containers_with_the_vendors_flags(machines: Machines) -> None:
    run = f"docker run --rm --network host {{}} {BUSYBOX} ls /dev"
    for machine, flags in ((machines.cuda, "--gpus all"), (machines.rocm, "--device /dev/kfd --device /dev/dri")):
        machine.dockerd.load(images.busybox(BUSYBOX))
        done = ssh(machines, machine.name, run.format(flags))
        assert done.returncode == 0, done.stderr
        assert ("kfd" in done.stdout) is (machine.kind == "amd")
    assert not machines.cuda.exec("docker", "ps", "-aq").stdout


def test_they_reach_each_other(machines: Machines) -> None:
    done = machines.cuda.exec("busybox", "ping", "-c", "1", "-W", "2", machines.rocm.address, check=False)
    assert done.returncode == 0, done.stdout


def test_a_pulled_cable_answers_at_once_and_the_other_machine_does_not_mind(machines: Machines) -> None:
    machines.cuda.link_down()
    assert "No route to host" in ssh(machines, "cuda-host", "true").stderr
    assert ssh(machines, "rocm-host", "true").returncode == 0
    machines.cuda.link_up()
    assert ssh(machines, "cuda-host", "true").returncode == 0


def test_lost_packets_are_silence(machines: Machines) -> None:
    machines.rocm.drop_packets()
    assert "timed out" in ssh(machines, "rocm-host", "true").stderr
    machines.rocm.accept_packets()
    assert ssh(machines, "rocm-host", "true").returncode == 0


def test_killed_sshd_ends_sessions_and_leaves_what_is_detached(machines: Machines) -> None:
    cuda = machines.cuda
    ssh(machines, "cuda-host", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
    argv = ["ssh", "-F", str(machines.ssh_config), "cuda-host", "echo up; sleep 1000"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"up\n"
        cuda.kill_sshd()
        assert session.wait(10) == 255
    assert "refused" in ssh(machines, "cuda-host", "true").stderr
    assert cuda.namespace.processes("sleep")
    cuda.start_sshd()
    assert ssh(machines, "cuda-host", "true").returncode == 0


@pytest.mark.parametrize("crash", [False, True])
def test_containers_outlive_the_daemon(machines: Machines, *, crash: bool) -> None:
    rocm = machines.rocm
    rocm.dockerd.load(images.busybox(BUSYBOX))
    count = "i=0; while :; do i=$((i+1)); echo $i > /out/count; done"
    rocm.exec("mkdir", "/tmp/out")
    rocm.dockerd.run(
        "run", "-d", "--name", "counter", "--network", "host", "-v", "/tmp/out:/out", BUSYBOX, "sh", "-c", count
    )
    rocm.stop_dockerd(crash=crash)
    assert rocm.dockerd.run("ps", check=False).returncode != 0
    file = rocm.path("/tmp/out/count")

    def number() -> int:
        return int(file.read_text().strip() or 0)

    seen = number()
    wait_for(lambda: number() > seen, 5, "the container died with its daemon")
    rocm.start_dockerd()
    assert rocm.dockerd.run("ps", "--format", "{{.Names}}").stdout == "counter\n"


def test_twenty_addresses(machines: Machines) -> None:
    with machines.many(20) as many:
        assert ssh(machines, many.names[0], "hostname").stdout == "many-hosts\n"
        done = ssh(machines, many.names[19], "echo $SSH_CONNECTION")
        assert done.stdout.split()[2] == "10.77.3.21"


def test_the_vendors_tools_name_who_is_on_a_gpu(machines: Machines) -> None:
    machines.cuda.tenant(1, 4242, "python", 3 << 30)
    query = "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits"
    assert ssh(machines, "cuda-host", query).stdout == "GPU-00000001-1111-2222-3333-444444444444, 4242, 3072\n"
    machines.rocm.tenant(0, 4243, "python3", 3 << 30)
    assert "4243" in ssh(machines, "rocm-host", "amd-smi process --json").stdout
    assert "PID4243" in ssh(machines, "rocm-host", "rocm-smi --showpids --json").stdout


def test_nothing_is_left_of_a_daemon_whose_session_was_killed() -> None:
    code = (
        "import time\nfrom tests.hosts.dockerd import private_dockerd\n"
        "with private_dockerd() as d: print(d.namespace.folder, d.namespace.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        folder, pid = session.stdout.readline().split()
        os.kill(session.pid, signal.SIGKILL)
    wait_for(lambda: not Path("/proc", pid).exists(), 10, "the daemon lives on")
    with own_folder("t-"):
        assert not Path(folder).exists()
    assert not list(ROOT.glob(f"{Path(folder).name}*"))
