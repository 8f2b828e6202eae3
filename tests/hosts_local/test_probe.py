"""What a machine says of itself, and what a Python there lacks."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.errors import LaunchRefused
from cockpit.hosts import LocalHost
from cockpit.hosts.probe import HostFacts, check_python, detect_vendor, facts, parse_facts

LIMIT_S = 20.0

LINUX = b"""@@ system
Linux

@@ kernel
6.8.0-60-generic

@@ arch
x86_64

@@ hostname
node7

@@ cpuinfo
model name\t: AMD EPYC 9534   64-Core Processor

@@ lscpu
Model name:                           ignored, as the first says more

@@ cpu_brand

@@ cores
256

@@ meminfo
MemTotal:       2113461204 kB

@@ memsize

@@ os_release
NAME="Ubuntu"
PRETTY_NAME="Ubuntu 24.04.2 LTS"

@@ sw_vers

@@ governor
performance

@@ machine_id
0123456789abcdef0123456789abcdef

@@ amd
yes

@@ python
3.12.3
"""

MACOS = b"""@@ system
Darwin

@@ kernel
24.5.0

@@ cpu_brand
Apple M3 Max

@@ cores
16

@@ memsize
137438953472

@@ sw_vers
15.5

@@ uuid
AAAA-BBBB
"""


def test_a_linux_server_with_amd_gpus() -> None:
    assert parse_facts(LINUX) == HostFacts(
        cpu_model="AMD EPYC 9534 64-Core Processor",
        logical_cores=256,
        memory_total_by=2113461204 * 1024,
        arch="x86_64",
        kernel="Linux 6.8.0-60-generic",
        os="Ubuntu 24.04.2 LTS",
        governor="performance",
        host_id="d614e382f4f7",
        hostname="node7",
        vendor="amd",
        python="3.12.3",
    )


def test_a_mac() -> None:
    found = parse_facts(MACOS)
    assert (found.cpu_model, found.logical_cores, found.memory_total_by) == ("Apple M3 Max", 16, 2**37)
    assert (found.os, found.kernel, found.vendor) == ("macOS 15.5", "Darwin 24.5.0", "cpu")


def test_what_nobody_says_is_unknown() -> None:
    nothing = parse_facts(b"")
    assert nothing.vendor == "cpu"
    assert set(replace(nothing, vendor="").to_json().values()) == {None, ""}


def test_the_host_id_does_not_give_the_machine_id_away() -> None:
    found = parse_facts(LINUX)
    assert found.host_id is not None
    assert found.host_id not in LINUX.decode()
    assert parse_facts(LINUX.replace(b"0123", b"3210")).host_id != found.host_id


@given(st.binary())
def test_no_output_breaks_the_parser(noise: bytes) -> None:
    parse_facts(noise)
    parse_facts(LINUX + b"\n@@ meminfo\n" + noise)


async def test_the_facts_of_this_machine() -> None:
    async with asyncio.timeout(LIMIT_S):
        found = await facts(LocalHost(), sys.executable)
    assert found["python"] == platform.python_version()
    assert found["hostname"] == platform.node()
    assert found["arch"] == platform.machine()
    assert found["logical_cores"]
    assert found["memory_total_by"]
    assert json.loads(json.dumps(found)) == found


async def test_a_python_that_is_not_there_leaves_the_other_facts() -> None:
    async with asyncio.timeout(LIMIT_S):
        found = await facts(LocalHost(), "/nonexistent/python")
    assert found["python"] is None
    assert found["arch"] == platform.machine()


async def test_the_vendor_is_that_of_the_facts() -> None:
    async with asyncio.timeout(LIMIT_S):
        assert await detect_vendor(LocalHost()) == (await facts(LocalHost()))["vendor"]


@pytest.mark.parametrize(("section", "vendor"), [(b"nvidia", "nvidia"), (b"amd", "amd"), (b"other", "cpu")])
def test_the_vendor_is_read_from_the_driver(section: bytes, vendor: str) -> None:
    assert parse_facts(b"@@ " + section + b"\nyes\n").vendor == vendor


async def test_missing_modules_are_named_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lookalike.py").touch()
    monkeypatch.chdir(tmp_path)  # a file of that name in the current folder is no installed package
    wanted = ["lookalike", "json", "no.such", "asyncio.events", "nothing_like_this"]
    assert await check_python(LocalHost(), sys.executable, wanted) == ["lookalike", "no.such", "nothing_like_this"]


async def test_nothing_is_imported_by_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert await check_python(LocalHost(), sys.executable, ["loud"]) == []


@pytest.mark.parametrize("python", ["/nonexistent/python3", "/bin/false", "/bin/echo"])
async def test_what_is_no_python_is_refused_in_one_sentence(python: str) -> None:
    with pytest.raises(LaunchRefused, match=f"{python} on this machine is no Python that runs: .*Set the server's"):
        await check_python(LocalHost(), python, [])


async def test_an_old_python_is_refused_with_both_versions() -> None:
    mine = platform.python_version().replace(".", r"\.")
    with pytest.raises(LaunchRefused, match=rf"is Python {mine}; 9\.1 or newer is needed"):
        await check_python(LocalHost(), sys.executable, [], minimum=(9, 1))
