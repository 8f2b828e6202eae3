"""The real nvidia-ml-py over a library made at test time: what the source makes of a driver's answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.telemetry.pack import build_agent
from runners.agent.gpu.nvml_hot import SHARE_S, throttle, throttled_share
from runners.agent.gpu.source import (
    BAD_VALUE,
    DEVICE_KEYS,
    FAILED,
    HOT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SENTINEL,
    SHARED,
    SLOW,
    STATIC,
    THROTTLE,
)
from tests.fakes.library import environment
from tests.fakes.nvml import LOST, UNKNOWN, FakeNvml, field, no_field, u32, u64
from tests.gpu.driven import Driven

WATTS = 433.0
LIMIT_S = 30

Drive = Callable[[FakeNvml], Driven]


@pytest.fixture
def driver(tmp_path: Path, nvml_library: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fakes", nvml_library)


@pytest.fixture
def two(tmp_path: Path, nvml_library: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fakes", nvml_library, gpus=2)


@pytest.fixture
def drive() -> Iterator[Drive]:
    made: list[Driven] = []

    def make(fake: FakeNvml) -> Driven:
        made.append(Driven("nvml", "Nvml", environment(fake.program)))
        return made[-1]

    yield make
    for driven in made:
        driven.close()


def opened(drive: Drive, fake: FakeNvml) -> Driven:
    driven = drive(fake)
    driven.ask("open")
    return driven


def rates(driven: Driven, pause_s: float = SHARE_S + 0.01) -> list[dict[str, Any]]:
    """The slow reading over two samples."""
    driven.ask("slow")
    time.sleep(pause_s)  # nearer to each other GPM and the counters of throttling say nothing
    found = driven.ask("slow")
    assert isinstance(found, list)
    return found


def test_every_field_of_a_busy_h200(driver: FakeNvml, drive: Drive) -> None:
    driven = opened(drive, driver)
    assert driven.ask("hot") == [
        {
            "util": 0.97, "mem_busy": 0.41, "mem_used": 50 << 30, "power_w": WATTS, "temp_edge_c": 61,
            "temp_hot_c": None, "temp_mem_c": 68, "clk_sm_mhz": 1755, "clk_min_mhz": None, "clk_max_mhz": None,
            "clk_mem_mhz": 3201, "throttle": ["power"],
        }
    ]  # fmt: skip
    (slow,) = rates(driven)
    mib = float(1 << 20)
    expected = {
        "sm_active": 0.915, "sm_occ": 0.4025, "tensor": 0.62, "dram_bw": 0.555, "pcie_tx_bps": 100 * mib,
        "pcie_rx_bps": 50 * mib, "link_tx_bps": 1000 * mib, "link_rx_bps": 2000 * mib,
        "thr_power": 0, "thr_thermal": 0,
    }  # fmt: skip
    assert slow == pytest.approx(expected)
    assert driven.ask("energy") == [{"energy_j": 987_654.321}]
    assert driven.ask("static") == [
        {
            "mem_total": 150_754_820_096, "power_limit_w": 700.0, "ecc_corr": 3, "ecc_uncorr": 0, "fan": None,
            "procs": [{"pid": 4242, "mem": 40 << 30}],
        }
    ]  # fmt: skip
    why = {name: code for name, (code, _) in driven.known[0].items()}
    assert why == {
        "temp_hot_c": "not_told", "clk_min_mhz": "not_told", "clk_max_mhz": "not_told", "fan": NOT_SUPPORTED
    }  # fmt: skip


def test_a_device_says_who_it_is(driver: FakeNvml, drive: Drive) -> None:
    driven = opened(drive, driver)
    (device,) = driven.devices
    assert tuple(device) == DEVICE_KEYS
    assert device == {
        "index": 0, "uuid": "GPU-000a0000-0000-0000-0000-000000000000", "bdf": "0000:1b:00.0", "partition": None,
        "package_id": None, "model": "NVIDIA H200", "compute_mode": None, "memory_mode": None, "driver": "580.159.04",
        "runtime": "CUDA 13.0", "vbios": "96.00.D9.00.01", "ecc": True, "numa_node": device["numa_node"],
        "mem_total": 150_754_820_096, "power_limit_w": 700.0, "power_limit_default_w": 700.0,
        "power_limit_max_w": 700.0, "power_kind": "instant", "power_scope": "gpu", "clk_sm_max_mhz": 1980,
        "pcie": {"gen": 5, "width": 16}, "links": [],
    }  # fmt: skip
    assert driven.version == "13.580.159.04"


def test_a_name_that_is_no_text_is_none(driver: FakeNvml, drive: Drive) -> None:
    driver.device(0, "Name", 1, b"\xff\xfe\0")
    driver.refuse("VbiosVersion")
    device = opened(drive, driver).devices[0]
    assert (device["model"], device["vbios"]) == (None, None)
    assert device["driver"] == "580.159.04"


@pytest.mark.parametrize(
    ("arch", "device_id", "kind"),
    [
        pytest.param(6, 0x1EB810DE, "instant", id="Turing"),
        pytest.param(7, 0x20B210DE, "instant", id="GA100"),
        pytest.param(7, 0x220410DE, "avg1s", id="GA102"),
        pytest.param(9, 0x233510DE, "avg1s", id="Hopper"),
        pytest.param(0xFFFFFFFF, 0, None, id="unknown"),
    ],
)
def test_power_without_an_instant_reading_says_what_it_is(
    tmp_path: Path,
    nvml_library: Path,
    drive: Drive,
    arch: int,
    device_id: int,
    kind: str | None,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, arch=arch, device_id=device_id, power_instant_mw=None)
    driven = opened(drive, fake)
    assert driven.ask("hot")[0]["power_w"] == 412.345
    assert driven.devices[0]["power_kind"] == kind
    assert "power_w" not in driven.known[0]


def test_power_is_chosen_for_each_device(two: FakeNvml, drive: Drive) -> None:
    two.set(1, power_instant_mw=None)
    driven = opened(drive, two)
    assert [d["power_kind"] for d in driven.devices] == ["instant", "avg1s"]
    assert [r["power_w"] for r in driven.ask("hot")] == [WATTS, 412.345]


def test_a_driver_that_supports_nothing_gives_none_and_never_0(driver: FakeNvml, drive: Drive) -> None:
    driver.refuse_all()
    driven = opened(drive, driver)
    for call, fields in (("hot", HOT), ("energy", ("energy_j",)), ("static", STATIC)):
        (reading,) = driven.ask(call)
        assert reading == dict.fromkeys(fields), call
    (slow,) = rates(driven)
    assert slow == dict.fromkeys(SLOW)
    told = {name for name, (code, _) in driven.known[0].items() if code in (NOT_SUPPORTED, "not_told")}
    assert told == {*HOT, *SLOW, *STATIC, "energy_j"}


@pytest.mark.parametrize(
    ("values", "fields", "code"),
    [
        ({"util": (0xFFFF, 0xFFFFFFFF)}, ("util", "mem_busy"), SENTINEL),
        ({"util": (101, 100)}, ("util",), BAD_VALUE),
        ({"power_instant_mw": 0xFFFFFFFF}, ("power_w",), SENTINEL),
        ({"power_instant_mw": 0}, ("power_w",), BAD_VALUE),
        ({"temp": 0xFFFF, "temp_mem": 0xFFFFFFFF}, ("temp_edge_c", "temp_mem_c"), SENTINEL),
        ({"temp_mem": 0}, ("temp_mem_c",), BAD_VALUE),
        ({"sm": 0xFFFF, "memclk": 0xFFFFFFFF}, ("clk_sm_mhz", "clk_mem_mhz"), SENTINEL),
        ({"mem": (2**64 - 1, 0, 2**64 - 1)}, ("mem_used",), SENTINEL),
        ({"reasons": 2**64 - 1}, ("throttle",), SENTINEL),
    ],
)
def test_all_bits_and_what_cannot_be_are_none(
    driver: FakeNvml, drive: Drive, values: dict[str, Any], fields: tuple[str, ...], code: str
) -> None:
    driven = opened(drive, driver)
    driver.set(0, **values)
    (reading,) = driven.ask("hot")
    assert {reading[name] for name in fields} == {None}
    assert {driven.known[0][name][0] for name in fields} == {code}
    driver.set(0, util=(5, 5), temp=50, temp_mem=51, sm=100, memclk=200, reasons=0)
    driver.set(0, mem=(100_000, 0, 65535), power_instant_mw=65535)
    (reading,) = driven.ask("hot")
    assert reading["power_w"] == 65.535, "a power of 65535 mW is one"
    assert reading["mem_used"] == 65535
    assert None not in [reading[name] for name in fields], "a value that comes back is told again"


def test_an_older_driver_is_read_by_its_older_functions(
    tmp_path: Path,
    old_nvml_library: Path,
    drive: Drive,
) -> None:
    fake = FakeNvml(tmp_path, old_nvml_library)
    driven = opened(drive, fake)
    (hot,) = driven.ask("hot")
    assert hot["power_w"] == 412.345
    assert hot["throttle"] == ["power"]
    assert hot["mem_used"] == (50 << 30) + 645_922_816, "version 1 counts the driver's own memory as used"
    assert driven.ask("static")[0]["procs"] == [{"pid": 4242, "mem": 40 << 30}]
    assert hot["temp_mem_c"] is None
    (slow,) = rates(driven)
    assert {slow[name] for name in SLOW} == {None}
    for name in ("temp_mem_c", "sm_active", "pcie_tx_bps", "link_rx_bps"):
        assert driven.known[0][name][0] == NOT_FOUND, name


def test_the_older_counters_of_throttling_stand_in_for_the_fields(driver: FakeNvml, drive: Drive) -> None:
    driver.set_field(0, 74, no_field())
    driver.program.on("nvmlDeviceGetViolationStatus", {1: 0}, out={2: [u64(0, 0), u64(0, 30_000_000)]})
    driven = opened(drive, driver)
    (slow,) = rates(driven)
    assert 0 < slow["thr_power"] <= 0.03 / SHARE_S
    assert slow["thr_thermal"] == 0


def test_what_is_not_permitted_is_asked_once(driver: FakeNvml, drive: Drive) -> None:
    driver.refuse("ClockInfo", 4)
    driver.set_field(0, 82, no_field(4))
    driven = opened(drive, driver)
    asked = driver.program.calls("nvmlDeviceGetClockInfo")
    for _ in range(3):
        (hot,) = driven.ask("hot")
        assert (hot["clk_sm_mhz"], hot["clk_mem_mhz"], hot["temp_mem_c"]) == (None, None, None)
        assert hot["power_w"] == WATTS, "the rest of the batch is there"
    assert driver.program.calls("nvmlDeviceGetClockInfo") == asked
    assert driven.known[0]["clk_sm_mhz"][0] == NO_PERMISSION
    assert driven.known[0]["temp_mem_c"][0] == NO_PERMISSION


def test_a_gpu_that_is_lost_ends_the_source_and_comes_back(two: FakeNvml, drive: Drive) -> None:
    driven = opened(drive, two)
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
def test_errors_that_need_a_new_start_end_the_source(driver: FakeNvml, drive: Drive, status: int) -> None:
    driven = opened(drive, driver)
    driver.refuse("UtilizationRates", status)
    assert f"({status})" in driven.try_to("hot")["gone"]


@pytest.mark.parametrize("call", ["hot", "slow", "energy", "static"])
def test_every_call_says_that_the_gpus_are_gone(driver: FakeNvml, drive: Drive, call: str) -> None:
    driven = opened(drive, driver)
    driver.refuse_all(LOST)
    assert "lost" in driven.try_to(call)["gone"]


def test_an_unknown_error_from_the_first_is_one_field_that_is_not_asked_again(driver: FakeNvml, drive: Drive) -> None:
    driver.refuse("Temperature", UNKNOWN)
    driven = opened(drive, driver)
    asked = driver.program.calls("nvmlDeviceGetTemperature")
    (hot,) = driven.ask("hot")
    assert hot["temp_edge_c"] is None
    assert hot["power_w"] == WATTS
    assert driver.program.calls("nvmlDeviceGetTemperature") == asked
    assert driven.known[0]["temp_edge_c"][0] == FAILED


@pytest.mark.parametrize(("status", "code", "words"), [(9, FAILED, "not loaded"), (18, FAILED, "two versions")])
def test_a_library_without_its_driver_does_not_open(
    driver: FakeNvml, drive: Drive, status: int, code: str, words: str
) -> None:
    driver.refuse("nvmlInitWithFlags", status)
    found = drive(driver).try_to("open")
    assert found["code"] == code
    assert words in found["text"]
    assert "utility" in found["mend"]


def test_no_gpu_that_answers_does_not_open(driver: FakeNvml, drive: Drive) -> None:
    driver.refuse_all(LOST)
    found = drive(driver).try_to("open")
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


def test_a_tick_never_asks_what_blocks(driver: FakeNvml, drive: Drive) -> None:
    driven = opened(drive, driver)
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


@pytest.mark.parametrize("counter", [[5_000, 4_000, 3_000], [7_000, 7_000, 7_000]])
def test_the_energy_counter_is_told_as_it_is(driver: FakeNvml, drive: Drive, counter: list[int]) -> None:
    """Backwards or stuck: whoever takes differences judges them, and sees what the hardware said."""
    driver.device(0, "TotalEnergyConsumption", 1, [u64(mj) for mj in counter])
    driven = opened(drive, driver)
    assert [driven.ask("energy")[0]["energy_j"] for _ in counter] == [mj / 1000 for mj in counter]


def test_gpm_says_nothing_until_there_are_two_samples_far_enough_apart(driver: FakeNvml, drive: Drive) -> None:
    driven = opened(drive, driver)
    assert driven.ask("slow") == [{}]
    assert "sm_active" not in driven.ask("slow")[0], "less than 0.1 s after the first"
    assert driver.program.calls("nvmlGpmSampleGet") == 1
    time.sleep(0.12)
    assert driven.ask("slow")[0]["sm_active"] == 0.915


def test_without_gpm_there_are_counters_and_reasons(
    tmp_path: Path,
    nvml_library: Path,
    drive: Drive,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, gpm=None)
    for number, value in ((197, 2**33), (198, 2**32), (138, 1000), (139, 7)):
        fake.set_field(0, number, field(value, 3))
    driven = opened(drive, fake)
    before = time.perf_counter()
    assert driven.ask("slow")[0].keys() & {"pcie_tx_bps", "link_tx_bps"} == set()
    for number, value in ((197, 2**33 + 10**6), (138, 3000)):
        fake.set_field(0, number, field(value, 3))
    (slow,) = driven.ask("slow")
    most_s = time.perf_counter() - before
    assert 10**6 / most_s < slow["pcie_tx_bps"]
    assert slow["pcie_rx_bps"] == 0
    assert slow["link_tx_bps"] == pytest.approx(slow["pcie_tx_bps"] * 2000 * 1024 / 10**6)
    assert slow["link_rx_bps"] == 0
    assert "Hopper" in driven.known[0]["sm_active"][1]
    assert slow["sm_active"] is None


@pytest.mark.parametrize("kind", [1, 3])
def test_a_pcie_counter_that_may_wrap_is_not_believed(
    tmp_path: Path, nvml_library: Path, drive: Drive, kind: int
) -> None:
    """On cards before Hopper it holds 32 bits, which PCIe 4.0 x16 fills in 0.14 s, also where its type has 64."""
    fake = FakeNvml(tmp_path, nvml_library, gpm=None)
    fake.set_field(0, 197, field(3_020_371_496, kind))
    driven = opened(drive, fake)
    driven.ask("slow")
    assert driven.ask("slow")[0]["pcie_tx_bps"] is None
    assert driven.known[0]["pcie_tx_bps"][0] == BAD_VALUE


def test_a_gpm_metric_that_is_refused_or_no_number_is_none(
    tmp_path: Path,
    nvml_library: Path,
    drive: Drive,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, gpm={2: float("nan"), 3: 250.0, 10: 100.0})
    driven = opened(drive, fake)
    (slow,) = rates(driven)
    assert (slow["sm_active"], slow["sm_occ"], slow["tensor"], slow["dram_bw"]) == (None, None, None, 1.0)
    known = driven.known[0]
    assert [known[name][0] for name in ("sm_active", "sm_occ", "tensor")] == [BAD_VALUE, BAD_VALUE, NOT_SUPPORTED]


def test_throttled_time_is_a_share_and_a_counter_that_runs_back_tells_nothing(driver: FakeNvml, drive: Drive) -> None:
    driver.set(0, thr_ns=(10**9, 10**9))
    driven = opened(drive, driver)
    before = time.perf_counter()
    driven.ask("slow")
    driver.set(0, thr_ns=(10**9 + 50_000_000, 10**8))
    (slow,) = driven.ask("slow")
    assert slow.keys() & {"thr_power", "thr_thermal"} == set(), "too soon for counters that go in steps"
    time.sleep(SHARE_S)
    (slow,) = driven.ask("slow")
    assert 0.05 / (time.perf_counter() - before) < slow["thr_power"] <= 0.05 / SHARE_S
    assert "thr_thermal" not in slow


def test_instances_of_mig_are_devices_and_one_speaks_for_what_there_is_once(two: FakeNvml, drive: Drive) -> None:
    two.mig(0, [(2, 0, 70 << 30, 20 << 30), (2, 1, 70 << 30, 20 << 30), (9, 0, 16 << 30, 1 << 30)])
    driven = opened(drive, two)
    assert [(d["index"], d["partition"]) for d in driven.devices] == [(0, "2/0"), (1, None), (2, "2/1"), (3, "9/0")]
    assert [d["compute_mode"] for d in driven.devices] == ["MIG", None, "MIG", "MIG"]
    packages = [d["package_id"] for d in driven.devices]
    assert packages[0] == packages[2] == packages[3] == "GPU-000a0000-0000-0000-0000-000000000000"
    assert len({d["uuid"] for d in driven.devices}) == 4
    hot = driven.ask("hot")
    assert [r["util"] for r in hot] == [None, 0.97, None, None]
    assert [r["mem_used"] for r in hot] == [20 << 30, 50 << 30, 20 << 30, 1 << 30]
    assert [r["power_w"] for r in hot] == [WATTS, WATTS, None, None]
    assert [r["temp_edge_c"] for r in hot] == [61] * 4
    assert [r["energy_j"] for r in driven.ask("energy")] == [987_654.321, 987_654.321, None, None]
    slow = rates(driven)
    assert [r["tensor"] for r in slow] == [0.62] * 4
    assert two.program.calls("nvmlGpmMigSampleGet") == 6
    for name in ("power_w", "energy_j"):
        assert driven.known[3][name][0] == SHARED
    assert [r["ecc_corr"] for r in driven.ask("static")] == [3, 3, None, None]


def test_errors_of_the_gpu_are_told_as_they_happen(two: FakeNvml, drive: Drive) -> None:
    driven = opened(drive, two)
    assert driven.ask("events") == []
    two.xid(1, 79)
    text = "Xid 79: the GPU has fallen off the bus"
    assert driven.ask("events") == [{"index": 1, "event": "xid", "value": 79, "text": text}]
    assert driven.ask("events") == []


def test_a_storm_of_errors_does_not_keep_events_for_ever(driver: FakeNvml, drive: Drive) -> None:
    driver.program.on("nvmlEventSetWait_v2", out={1: u64(driver.handle(0), 0x8, 31) + u32(0, 0)})
    driven = opened(drive, driver)
    assert 0 < len(driven.ask("events")) < 1000


def test_a_driver_without_events_is_quiet(driver: FakeNvml, drive: Drive) -> None:
    driver.refuse("nvmlDeviceRegisterEvents")
    driven = opened(drive, driver)
    assert driven.ask("events") == []
    assert driver.program.calls("nvmlEventSetFree") == 1


def test_processes_without_a_size_have_none(driver: FakeNvml, drive: Drive) -> None:
    driver.processes(0, [(1, 2**64 - 1), (2, 0)])
    driven = opened(drive, driver)
    assert driven.ask("static")[0]["procs"] == [{"pid": 1, "mem": None}, {"pid": 2, "mem": 0}]
    driver.processes(0, [])
    assert driven.ask("static")[0]["procs"] == []
    driver.refuse("ComputeRunningProcesses_v3", 4)
    assert driven.ask("static")[0]["procs"] is None
    assert driven.known[0]["procs"][0] == NO_PERMISSION


def test_a_fan_that_is_there_is_a_ratio(driver: FakeNvml, drive: Drive) -> None:
    driver.device(0, "FanSpeed", 1, u32(38))
    assert opened(drive, driver).ask("static")[0]["fan"] == 0.38


def test_links_are_nvlink_where_it_is_and_else_the_path_over_pcie(
    tmp_path: Path,
    nvml_library: Path,
    drive: Drive,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, gpus=3)
    for a, b in ((0, 1), (1, 0)):
        for link in range(4):
            fake.device(a, "NvLinkState", 2, u32(int(link != 2)), link)
            fake.device(a, "NvLinkRemoteDeviceType", 2, u32(0), link)
            fake.device(a, "NvLinkRemotePciInfo_v2", 2, fake.pci(b), link)
    driven = opened(drive, fake)
    assert driven.devices[0]["links"] == [
        {"to": 1, "kind": "NVLink", "count": 3}, {"to": 2, "kind": "PCIe", "count": 1, "path": "SYS"}
    ]  # fmt: skip
    assert [link["kind"] for link in driven.devices[2]["links"]] == ["PCIe", "PCIe"]


def test_links_over_a_switch_join_every_pair(two: FakeNvml, drive: Drive) -> None:
    for gpu in range(2):
        for link in range(18):
            two.device(gpu, "NvLinkState", 2, u32(1), link)
            two.device(gpu, "NvLinkRemoteDeviceType", 2, u32(2), link)
    driven = opened(drive, two)
    assert [d["links"] for d in driven.devices] == [
        [{"to": 1, "kind": "NVLink", "count": 18}], [{"to": 0, "kind": "NVLink", "count": 18}]
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("gained_s", "past_s", "share"),
    [(0, 1, 0.0), (0.5, 1, 0.5), (1.1, 1, 1.0), (0.3, 0.25, 1.0), (1.3, 1, None), (-0.1, 1, None)],
)
def test_a_share_bears_the_steps_of_its_counter_and_no_more(
    gained_s: float, past_s: float, share: float | None
) -> None:
    assert throttled_share(gained_s, past_s) == share


@given(st.integers(0, 2**64 - 1))
def test_throttle_is_a_set_in_order_and_empty_only_where_nothing_holds(bits: int) -> None:
    names = throttle(bits)
    assert names == [name for name in THROTTLE if name in names]
    assert (names == []) == (bits == 0)


@pytest.mark.parametrize(
    ("bits", "names"),
    [(0x1, ["idle"]), (0x2, ["other"]), (0x4, ["power"]), (0x48, ["thermal", "hw"]), (0x88, ["power", "hw"]),
     (0x10, ["sync"]), (0x20, ["thermal"]), (0x100, ["other"]), (1 << 40, ["other"])],
)  # fmt: skip
def test_each_reason_has_its_name(bits: int, names: list[str]) -> None:
    assert throttle(bits) == names
