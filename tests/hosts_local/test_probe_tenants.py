"""Who is on the GPUs, from what the vendors' tools say; whatever a server says instead is no crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.errors import ServerError
from cockpit.hosts import LocalHost
from cockpit.hosts.probe import Tenant, gpu_tenants
from cockpit.hosts.probe_tenants import parse_tenants

GIB = 1 << 30
NVIDIA = b"""
@@ tool
/usr/bin/nvidia-smi

@@ gpus
0, GPU-aaa
1, GPU-bbb

@@ rc
0

@@ apps
GPU-bbb, 4242, 1024, python, with a comma
GPU-aaa, 17, [N/A], [Not Found]
MIG-ccc, 18, 5, vllm
GPU-aaa, [N/A], 5, lost

@@ users
  17 ann
4242 bob
"""
AMD_SMI = {
    "gpu": 1,
    "process_list": [
        {"process_info": {"name": "python3", "pid": 99, "memory_usage": {"vram_mem": {"value": 2, "unit": "GB"}}}},
        {"process_info": {"name": "N/A", "pid": "100", "mem_usage": {"value": "N/A", "unit": "B"}}},
    ],
}


def test_nvidias_rows_are_read_and_what_is_unknown_is_none() -> None:
    assert parse_tenants("nvidia", NVIDIA, "x") == [
        Tenant(0, 17, None, "ann", None),
        Tenant(1, 4242, "python, with a comma", "bob", GIB),
        Tenant(None, 18, "vllm", None, 5 << 20),
    ]


@pytest.mark.parametrize("whole", [[AMD_SMI], {"gpu_data": [AMD_SMI]}])
def test_amd_smis_rows_are_read(whole: object) -> None:
    idle = {"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}
    said = json.dumps(whole if isinstance(whole, dict) else [*whole, idle], indent=1)  # type: ignore[misc]
    output = f"@@ amd-smi\nWARNING: old driver\n{said}\n@@ users\n 99 ann python3\n100 bob train\n"
    assert parse_tenants("amd", output.encode(), "x") == [
        Tenant(1, 99, "python3", "ann", 2 * GIB),
        Tenant(1, 100, "train", "bob", None),
    ]


def test_rocm_smis_rows_are_read() -> None:
    said = {"system": {"PID7": "python, 1, 4096, 0, 0", "PID8": "two, 2, 9, 0, 0", "PID9": "where, 1, 5, 0, 0"}}
    gpus = {"system": {"PID7": "[3]", "PID8": "['0', '1']"}}
    output = f"@@ rocm-smi\n{json.dumps(said)}\n@@ rocm-smi-gpus\n{json.dumps(gpus)}\n@@ users\n7 ann python\n"
    assert parse_tenants("amd", output.encode(), "x") == [
        Tenant(0, 8, "two", None, None),
        Tenant(1, 8, "two", None, None),
        Tenant(3, 7, "python", "ann", 4096),
        Tenant(None, 9, "where", None, 5),
    ]


def test_the_drivers_own_files_are_read_where_there_is_no_tool() -> None:
    nodes = "/sys/t/nodes/0/gpu_id 0\n/sys/t/nodes/10/gpu_id 222\n/sys/t/nodes/9/gpu_id 111\n"
    kfd = "/sys/p/55/vram_222 4096\n/sys/p/55/vram_111 0\n/sys/p/56/vram_999 12\n"
    output = f"@@ nodes\n{nodes}\n@@ kfd\n{kfd}\n@@ users\n55 ann train.py\n"
    assert parse_tenants("amd", output.encode(), "x") == [
        Tenant(1, 55, "train.py", "ann", 4096),
        Tenant(None, 56, None, None, 12),
    ]


@pytest.mark.parametrize(
    ("vendor", "output", "says"),
    [
        ("nvidia", "@@ tool\n", "x cannot say who is on its GPUs: nvidia-smi is not there"),
        ("nvidia", "@@ tool\n/n\n@@ gpus\nNVML: mismatch\n@@ rc\n18\n", "nvidia-smi says 'NVML: mismatch'"),
        ("amd", "@@ users\n1 root init\n", "neither amd-smi nor rocm-smi is there"),
    ],
)
def test_where_nothing_tells_it_is_said(vendor: str, output: str, says: str) -> None:
    with pytest.raises(ServerError, match=says):
        parse_tenants(vendor, output.encode(), "x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["gpu", "process_list", "process_info", "pid", "name", "memory_usage", "vram_mem", "value",
                         "unit", "system", "PID1", "gpu_data", "mem"]), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(["amd-smi", "rocm-smi", "rocm-smi-gpus"]), JSON)
def test_no_json_of_a_server_is_a_crash(section: str, said: object) -> None:
    output = f"@@ rocm-smi\n@@ {section}\n{json.dumps(said)}\n@@ users\n1 a b\n"
    for tenant in parse_tenants("amd", output.encode(), "x"):
        assert tenant.pid >= 0


@given(st.binary(max_size=200), st.sampled_from(["nvidia", "amd"]))
def test_no_bytes_of_a_server_are_a_crash(noise: bytes, vendor: str) -> None:
    start = b"@@ tool\nx\n@@ gpus\n0, a\n@@ rc\n0\n@@ apps\n" if vendor == "nvidia" else b"@@ kfd\n"
    for tenant in parse_tenants(vendor, start + noise, "x"):
        assert not any(ord(c) < 32 for c in (tenant.name or "") + (tenant.user or ""))


async def test_the_tools_of_a_machine_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in *query-gpu*) echo '0, GPU-a'; echo '1, GPU-b';;"
        f" *) echo 'GPU-a, {os.getpid()}, 3, me'; echo 'GPU-b, 1, 4, init';; esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = await gpu_tenants(LocalHost(), "nvidia", None)
    assert [(t.gpu, t.pid, t.memory_by) for t in found] == [(0, os.getpid(), 3 << 20), (1, 1, 4 << 20)]
    assert all(t.user for t in found)
    assert [t.gpu for t in await gpu_tenants(LocalHost(), "nvidia", (1,))] == [1]
    assert await gpu_tenants(LocalHost(), "cpu", None) == []
