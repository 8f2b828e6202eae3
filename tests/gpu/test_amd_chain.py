"""The agent itself on a server with AMD GPUs: the first source that opens, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.amd_sysfs import MI300X, Tree
from tests.fakes.amdsmi_library import Machine, build_rocm
from tests.gpu.test_amd_cli import Tool, card

INFO = "amdsmi_get_gpu_metrics_info"
REPO = Path(__file__).parents[2]
ORDER = ["amdgpu-sysfs", "amdsmi", "amd-smi", "rocm-smi"]
WAIT_S = 30.0
METRICS: dict[str, Any] = {"current_socket_power": 705, "average_gfx_activity": 100}


def streamed(tmp_path: Path, env: dict[str, str], until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The lines of `agent stream` to the first one that is waited for."""
    argv = [sys.executable, "-m", "runners.agent", "stream", "--vendor", "amd", "--sys", str(tmp_path / "sys")]
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(argv, cwd=REPO, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        for raw in process.stdout:
            lines.append(json.loads(raw))
            if until(lines[-1]):
                break
        process.stdin.close()
        process.stdout.read()
        timer.cancel()
    assert lines
    assert until(lines[-1]), lines[-1]
    return lines


def named(line: dict[str, Any]) -> bool:
    """The hello line of a source that opened."""
    return line["type"] == "hello" and bool(line["devices"])


def valued(line: dict[str, Any]) -> bool:
    """A tick with power in it."""
    return line["type"] == "tick" and any(device.get("power_w") is not None for device in line["devices"])


def prepared(tmp_path: Path, backend: str) -> dict[str, str]:
    """A machine on which `backend` is the first way that is open."""
    tree = Tree(tmp_path / "sys")
    env = {**os.environ, "ROCM_PATH": str(tmp_path / "none"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    if backend == "amdgpu-sysfs":
        tree.gpu("0000:0c:00.0", "v1.9", MI300X)
    elif backend == "amdsmi":
        machine = Machine(tmp_path / "fakes", build_rocm(tmp_path / "rocm"))
        machine.gpu("0000:0c:00.0", **METRICS)
        return machine.env
    else:
        document = {"card0": card(**{"Average Graphics Package Power (W)": "705", "GPU use (%)": "100"})}
        Tool(tmp_path, "rocm-smi").says("vram", document)
    return env


@pytest.mark.parametrize("backend", ["amdgpu-sysfs", "amdsmi", "rocm-smi"])
def test_the_first_source_that_opens_is_named_with_the_fate_of_those_before(tmp_path: Path, backend: str) -> None:
    lines = streamed(tmp_path, prepared(tmp_path, backend), named)
    hello = lines[-1]
    assert hello["backend"] == backend
    tried = [source["name"] for source in hello["sources"]]
    assert tried == ORDER[: len(tried)]
    assert [source["ok"] for source in hello["sources"]] == [False] * (len(tried) - 1) + [True]
    assert all(source["code"] and source["text"] for source in hello["sources"][:-1])


@pytest.mark.parametrize("backend", ["amdgpu-sysfs", "amdsmi"])
def test_its_values_stand_in_the_ticks(tmp_path: Path, backend: str) -> None:
    lines = streamed(tmp_path, prepared(tmp_path, backend), valued)
    (device,) = lines[-1]["devices"]
    assert (device["power_w"], device["util"]) == (705, 1.0)
    (about,) = [line for line in lines if named(line)][-1]["devices"]
    assert about["unavailable"]["sm_active"][0] == "not_told"


def test_a_library_that_prints_and_then_blocks_costs_neither_the_stream_nor_its_lines(tmp_path: Path) -> None:
    Tree(tmp_path / "sys")
    machine = Machine(tmp_path / "fakes", build_rocm(tmp_path / "rocm"))
    one = machine.gpu("0000:0c:00.0", **METRICS)
    machine.program.on("amdsmi_init", say="Unable to find something\n")
    said: list[str] = []

    def step(line: dict[str, Any]) -> bool:
        if valued(line) and not said:
            machine.program.on(INFO, {0: one.handle}, delay_s=60)
            said.append("blocks")
        if line["type"] == "err" and line["code"] == "blocked":
            one.metrics()
            said.append("blocked")
        return bool(line["type"] == "err" and line["code"] == "recovered")

    lines = streamed(tmp_path, machine.env, step)
    assert said == ["blocks", "blocked"]
    stale = [line["devices"][0] for line in lines if line["type"] == "tick" and "stale_s" in line["devices"][0]]
    assert stale
    assert stale[-1]["power_w"] is None


def test_a_driver_that_is_unloaded_is_said_and_comes_back(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    lost = tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    env = {**os.environ, "ROCM_PATH": str(tmp_path / "none"), "PATH": str(tmp_path / "bin")}
    said: list[str] = []

    def step(line: dict[str, Any]) -> bool:
        if valued(line) and not said:
            (lost.folder / "gpu_metrics").unlink()
            said.append("lost")
        if line["type"] == "err" and line["code"] == "gone":
            lost.set()
            said.append(line["text"])
        return len(said) == 2 and valued(line)

    streamed(tmp_path, env, step)
    assert "gpu_metrics is gone" in said[1]
