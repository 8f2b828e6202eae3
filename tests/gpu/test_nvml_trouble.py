"""A driver that refuses, blocks, is lost, old or not there; and what a reading costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.telemetry.pack import build_agent
from runners.agent.gpu.source import (
    FAILED,
    HOT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SLOW,
    STATIC,
)
from tests.fakes.library import environment
from tests.fakes.nvml import LOST, UNKNOWN, FakeNvml, no_field, u32, u64
from tests.gpu.driven import Driven
from tests.gpu.nvml_support import LIMIT_S, WATTS, Drive, opened, rates


def test_a_driver_that_supports_nothing_gives_none_and_never_0(driver: FakeNvml, nvml: Drive) -> None:
    driver.refuse_all()
    driven = opened(nvml, driver)
    for call, fields in (("hot", HOT), ("energy", ("energy_j",)), ("static", STATIC)):
        (reading,) = driven.ask(call)
        assert reading == dict.fromkeys(fields), call
    (slow,) = rates(driven)
    assert slow == dict.fromkeys(SLOW)
    told = {name for name, (code, _) in driven.known[0].items() if code in (NOT_SUPPORTED, "not_told")}
    assert told == {*HOT, *SLOW, *STATIC, "energy_j"}


def test_what_is_not_permitted_is_asked_once(driver: FakeNvml, nvml: Drive) -> None:
    driver.refuse("ClockInfo", 4)
    driver.set_field(0, 82, no_field(4))
    driven = opened(nvml, driver)
    asked = driver.program.calls("nvmlDeviceGetClockInfo")
    for _ in range(3):
        (hot,) = driven.ask("hot")
        assert (hot["clk_sm_mhz"], hot["clk_mem_mhz"], hot["temp_mem_c"]) == (None, None, None)
        assert hot["power_w"] == WATTS, "the rest of the batch is there"
    assert driver.program.calls("nvmlDeviceGetClockInfo") == asked
    assert driven.known[0]["clk_sm_mhz"][0] == NO_PERMISSION
    assert driven.known[0]["temp_mem_c"][0] == NO_PERMISSION


def test_a_gpu_that_is_lost_ends_the_source_and_comes_back(two: FakeNvml, nvml: Drive) -> None:
    driven = opened(nvml, two)
    two.refuse_all(LOST, index=1, after=20)  # calls for both GPUs
    answers = [driven.try_to("hot") for _ in range(10)]
    assert [next(iter(answer)) for answer in answers[:5]] == ["ok"] * 5
    assert "the GPU is lost" in answers[-1]["gone"]
    driven.ask("close")
    driven.ask("open")
    hot = driven.ask("hot")
    assert hot[0]["power_w"] == WATTS, "the other GPU is read on"
    assert hot[1] == dict.fromkeys(HOT)
    assert driven.devices[1]["index"] == 1
    assert driven.known[1]["power_w"][0] == FAILED
    assert "lost" in driven.known[1]["power_w"][1]
    assert driven.ask("static")[1] == dict.fromkeys(STATIC)
    fresh = FakeNvml(Path(two.program.env["EKVI_FAKES"]), two.program.library, gpus=2)
    assert "answers again" in driven.try_to("static")["gone"]
    driven.ask("close")
    driven.ask("open")
    assert [r["power_w"] for r in driven.ask("hot")] == [WATTS, WATTS]
    assert fresh.program.calls("nvmlInitWithFlags") == 1


@pytest.mark.parametrize("status", [1, 16, 18, UNKNOWN])
def test_errors_that_need_a_new_start_end_the_source(driver: FakeNvml, nvml: Drive, status: int) -> None:
    driven = opened(nvml, driver)
    driver.refuse("UtilizationRates", status)
    assert f"({status})" in driven.try_to("hot")["gone"]


@pytest.mark.parametrize("call", ["hot", "slow", "energy", "static"])
def test_every_call_says_that_the_gpus_are_gone(driver: FakeNvml, nvml: Drive, call: str) -> None:
    driven = opened(nvml, driver)
    driver.refuse_all(LOST)
    assert "lost" in driven.try_to(call)["gone"]


def test_an_unknown_error_from_the_first_is_one_field_that_is_not_asked_again(driver: FakeNvml, nvml: Drive) -> None:
    driver.refuse("Temperature", UNKNOWN)
    driven = opened(nvml, driver)
    asked = driver.program.calls("nvmlDeviceGetTemperature")
    (hot,) = driven.ask("hot")
    assert hot["temp_edge_c"] is None
    assert hot["power_w"] == WATTS
    assert driver.program.calls("nvmlDeviceGetTemperature") == asked
    assert driven.known[0]["temp_edge_c"][0] == FAILED


@pytest.mark.parametrize(("status", "code", "words"), [(9, FAILED, "not loaded"), (18, FAILED, "two versions")])
def test_a_library_without_its_driver_does_not_open(
    driver: FakeNvml, nvml: Drive, status: int, code: str, words: str
) -> None:
    driver.refuse("nvmlInitWithFlags", status)
    found = nvml(driver).try_to("open")
    assert found["code"] == code
    assert words in found["text"]
    assert "utility" in found["mend"]


def test_no_gpu_that_answers_does_not_open(driver: FakeNvml, nvml: Drive) -> None:
    driver.refuse_all(LOST)
    found = nvml(driver).try_to("open")
    assert found["code"] == FAILED
    assert "no GPU that answers" in found["text"]
    assert driver.program.calls("nvmlShutdown") == 1, "what was begun is given back"


def test_without_the_library_it_says_so(driver: FakeNvml) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": ""}
    driven = Driven("nvml", "Nvml", env)
    try:
        found = driven.try_to("open")
    finally:
        driven.close()
    assert found["code"] == NOT_FOUND
    assert "library is not found" in found["text"]


def test_a_tick_never_asks_what_blocks(driver: FakeNvml, nvml: Drive) -> None:
    driven = opened(nvml, driver)
    for call in ("hot", "hot", "slow", "static", "events"):
        driven.ask(call)
    assert driver.program.calls("nvmlDeviceGetPcieThroughput") == 0
    assert driver.program.calls("nvmlDeviceGetTotalEnergyConsumption") == 0
    driven.ask("energy")
    assert driver.program.calls("nvmlDeviceGetTotalEnergyConsumption") == 1


_WHILE_BLOCKED = """
import sys, threading, time
from runners.agent.gpu.nvml import Nvml
source = Nvml()
source.open()
asking = threading.Thread(target=source.energy)
asking.start()
read = 0
while asking.is_alive() and read < 50:
    source.hot()
    read += 1
print(read, asking.is_alive(), flush=True)
sys.stdin.readline()
asking.join()
print("joined", flush=True)
"""


def test_hot_goes_on_while_the_energy_counter_blocks(driver: FakeNvml) -> None:
    driver.device(0, "TotalEnergyConsumption", 1, u64(1), delay_s=60.0)
    with subprocess.Popen(
        [sys.executable, "-c", _WHILE_BLOCKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(driver.program),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "50 True\n"
        driver.set(0, energy_mj=5)  # ends the wait
        words, _ = process.communicate("\n", timeout=LIMIT_S)
        assert words == "joined\n"


def test_errors_of_the_gpu_are_told_as_they_happen(two: FakeNvml, nvml: Drive) -> None:
    driven = opened(nvml, two)
    assert driven.ask("events") == []
    two.xid(1, 79)
    text = "Xid 79: the GPU has fallen off the bus"
    assert driven.ask("events") == [{"index": 1, "event": "xid", "value": 79, "text": text}]
    assert driven.ask("events") == []


def test_a_storm_of_errors_does_not_keep_events_for_ever(driver: FakeNvml, nvml: Drive) -> None:
    driver.program.on("nvmlEventSetWait_v2", out={1: u64(driver.handle(0), 0x8, 31) + u32(0, 0)})
    driven = opened(nvml, driver)
    assert 0 < len(driven.ask("events")) < 1000


def test_a_driver_without_events_is_quiet(driver: FakeNvml, nvml: Drive) -> None:
    driver.refuse("nvmlDeviceRegisterEvents")
    driven = opened(nvml, driver)
    assert driven.ask("events") == []
    assert driver.program.calls("nvmlEventSetFree") == 1


_IN_THE_PACKAGE = """
import json, resource, statistics, sys, time
sys.path.insert(0, sys.argv[1])
from agent.gpu.nvml import Nvml
source = Nvml()
source.open()
print(json.dumps(source.hot()))
for _ in range(500):
    source.hot()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
took = []
for _ in range(3000):
    begun = time.perf_counter()
    source.hot()
    took.append((time.perf_counter() - begun) / len(source.devices))
print(statistics.median(took), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
source.close()
"""


def _interpreters() -> list[str]:
    """This Python, and the oldest supported one where this machine has it."""
    old = shutil.which("python3.8")
    works = old and subprocess.run([old, "-c", "pass"], capture_output=True, check=False).returncode == 0
    return [sys.executable, *([old] if old and works else [])]


@pytest.mark.parametrize("interpreter", _interpreters())
def test_the_packed_agent_reads_eight_gpus_for_little(tmp_path: Path, nvml_library: Path, interpreter: str) -> None:
    fake = FakeNvml(tmp_path / "fakes", nvml_library, gpus=8)
    pyz = tmp_path / "agent.pyz"
    pyz.write_bytes(build_agent().data)
    done = subprocess.run(
        [interpreter, "-W", "error", "-I", "-S", "-c", _IN_THE_PACKAGE, str(pyz)], env=environment(fake.program),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hot, cost = done.stdout.splitlines()
    assert [reading["power_w"] for reading in json.loads(hot)] == [WATTS] * 8
    seconds, kilobytes = map(float, cost.split())
    assert seconds < 0.2e-3, "of a tick, for each GPU"
    assert kilobytes < 1000, "memory that 24,000 readings left behind"
