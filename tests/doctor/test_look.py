"""What is read of a server's answers, which may be anything."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.records import Access
from cockpit.engine import checks_gpus, checks_machine
from cockpit.engine.checks_leftovers import _queue
from cockpit.hosts import LocalHost
from cockpit.hosts.look import Busy, Clock, Gpus, around, clock, gpus, parse_look, size
from cockpit.hosts.meet import meet
from tests.doctor.made import look, server

TOOLS = Path(__file__).parents[1] / "hosts" / "tools"


@given(st.binary(max_size=2000), st.integers(0, 3))
def test_any_answer_is_a_look(output: bytes, paths: int) -> None:
    assert len(parse_look(output, paths).there) == paths


def test_unknown_is_none_and_never_zero() -> None:
    found = parse_look(b"user=anna\n", 0)
    assert (found.left_by, found.memory_by, found.load, found.cores, found.shm_by) == (None,) * 5
    assert [f.level for f in checks_machine.room(found, "/w", LocalHost())] == ["fail"]


def test_a_look_reads_what_df_and_ps_print() -> None:
    said = b"""user=anna\nat=/srv\nwrite=yes\nload=3.50\ncores=8
disk=/dev/sda1 2 members 1000 400 600 40% /srv with spaces
busy=bob         90061 799.5 python3 train
busy=anna            1 100.0 ps\n"""
    found = parse_look(said, 0)
    assert (found.user, found.at, found.left_by, found.refused) == ("anna", "/srv", 600 * 1024, None)
    assert found.busy == (Busy("bob", "python3 train", 7.995),), "ps itself is too young to count"
    (load,) = checks_machine.load(found)
    assert (load.level, load.text) == ("warn", "load 3.50 on 8 cores: bob's python3 train takes 8.0 cores.")


async def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    found = await around(LocalHost(), str(tmp_path / "a" / "b"), [str(tmp_path), str(tmp_path / "no $(touch x)")])
    assert found.at == str(tmp_path)
    assert found.there == (True, False)
    assert found.refused is None
    assert found.left_by is not None
    assert found.left_by > 0
    assert list(tmp_path.iterdir()) == [], "the look leaves nothing"


async def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = await around(LocalHost(), str(tmp_path / "file" / "work"))
    (finding,) = checks_machine.room(found, str(tmp_path / "file" / "work"), LocalHost())
    assert finding.level == "fail"
    assert "Not a directory" in finding.text


async def test_this_machines_clock_is_its_own() -> None:
    found = await clock(LocalHost())
    assert found is not None
    assert abs(found.offset_s) <= found.error_s + 0.01


def test_a_clock_is_only_blamed_beyond_its_error() -> None:
    assert next(iter(checks_machine.clock(Clock(5.0, 0.1, 0.2)))).level == "warn"
    assert next(iter(checks_machine.clock(Clock(5.0, 4.0, 8.0)))).level == "ok"


def test_absent_gpus_are_named() -> None:
    (finding,) = checks_gpus.inventory(Gpus(4, ("H200",) * 4, "570"), look(), server(vendor="nvidia", gpus=(2, 7)))
    assert (finding.level, finding.text) == ("fail", "GPU 7 is not there: the server has 4 (0-3).")
    assert finding.mend == "Correct servers.a.gpus."


def test_a_count_that_nobody_knows_refuses_nothing() -> None:
    (finding,) = checks_gpus.inventory(Gpus(None), look(renders=0), server(vendor="amd", gpus=(7,)))
    assert finding.level == "warn"


def test_a_missing_driver_is_told_with_its_devices() -> None:
    (nvidia,) = checks_gpus.devices(look(nvidia=False), "nvidia", container=True)
    assert "/dev/nvidiactl" in nvidia.text
    (amd,) = checks_gpus.devices(look(kfd=False, renders=0), "amd", container=True)
    assert "/dev/kfd and /dev/dri/renderD* are not there" in amd.text
    (rights,) = checks_gpus.devices(look(kfd=True, kfd_open=False, renders=1), "amd", container=False)
    assert "usermod -aG render,video anna" in str(rights.mend)


def test_a_forgotten_queue_says_its_age_size_and_what_tidies_it_up() -> None:
    queue = {"path": "/w/groups/g 1.k", "group": "g-1", "alive": False, "age_s": 7300.0, "size_by": 5_000_000}
    left = _queue({**queue, "runs": [{"run": "r", "state": "RUNNING"}]}, Access(), ["python3", "a.pyz"])
    assert left.level == "warn"
    assert left.text == "group g-1, 2 h old, 5.0 MB: its agent is gone, and 1 of 1 runs are not done."
    assert "python3 a.pyz clean '/w/groups/g 1.k'" in str(left.mend)
    done = _queue({**queue, "runs": [{"run": "r", "state": "SUCCEEDED"}]}, Access(), ["python3", "a.pyz"])
    assert "done, not fetched" in done.text
    assert _queue({**queue, "alive": True, "pid": 7}, Access(), ["x"]).level == "ok"


def test_what_a_server_calls_its_queues_is_data_in_the_commands_to_copy() -> None:
    said = {"path": "/w x/groups/$(id).k", "group": "g;`id`", "age_s": 10**400, "size_by": 10**400, "runs": []}
    mend = _queue(said, Access(address="user@there", config="/my conf"), ["python3", "/w x/a.pyz"]).mend or ""
    assert "fetch 'g;`id`'" in mend
    typed = shlex.split(mend.rpartition("throw it away: ")[2])
    assert typed[:-1] == ["ssh", "-F", "/my conf", "user@there"]
    assert shlex.split(typed[-1]) == ["python3", "/w x/a.pyz", "clean", said["path"]], "the far shell reads it again"


async def test_machines_meet_on_ports_or_say_why_not() -> None:
    host = LocalHost()
    free = _free_port()
    assert (await meet(host, [host, host], "127.0.0.1", [free], python=sys.executable)).failed == [{}, {}]
    missed = await meet(host, [host], "127.0.0.2:bad", [free], python=sys.executable, wait=0.5)
    assert missed.failed[0], "an address that is none is no success"


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        met = await meet(LocalHost(), [LocalHost()], "127.0.0.1", [port], python=sys.executable, wait=0.5)
    assert met.busy == {str(port): "Address already in use"}


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])


def test_sizes_read_well() -> None:
    assert [size(v) for v in (None, 0, 999, 1500, 2_500_000_000)] == ["unknown", "0 B", "999 B", "1.5 kB", "2.5 GB"]


@pytest.mark.parametrize(("vendor", "memory_by"), [("nvidia", 143771 << 20), ("amd", 196592 << 20)])
async def test_each_gpu_s_memory_is_read(monkeypatch: pytest.MonkeyPatch, vendor: str, memory_by: int) -> None:
    monkeypatch.setenv("PATH", f"{TOOLS}:{os.environ['PATH']}")
    found = await gpus(LocalHost(), vendor)
    assert found.memory_by == (memory_by, memory_by)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize(
    "said", ["0, NVIDIA GB10, 580.1, [N/A]", '{"gpu_data": [{"vram": {"size": "N/A"}}]}', "[[]]"]
)
async def test_memory_that_is_not_told_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str, said: str
) -> None:
    for name in ("nvidia-smi", "amd-smi"):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'E'\n{said}\nE\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = await gpus(LocalHost(), vendor)
    assert all(size is None for size in found.memory_by)
