"""The real nvidia-ml-py over a library made at test time: what the source makes of a driver's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent.gpu.nvml_hot import throttle
from runners.agent.gpu.source import (
    BAD_VALUE,
    DEVICE_KEYS,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SENTINEL,
    SHARED,
    SLOW,
    THROTTLE,
)
from tests.fakes.nvml import FakeNvml, u32
from tests.gpu.nvml_support import WATTS, Drive, opened, rates


def test_every_field_of_a_busy_h200(driver: FakeNvml, nvml: Drive) -> None:
    driven = opened(nvml, driver)
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
    (energy,) = driven.ask("energy")
    assert (set(energy), energy["energy_j"]) == ({"energy_j", "energy_at"}, 987_654.321)
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


def test_a_device_says_who_it_is(driver: FakeNvml, nvml: Drive) -> None:
    driven = opened(nvml, driver)
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


def test_a_name_that_is_no_text_is_none(driver: FakeNvml, nvml: Drive) -> None:
    driver.device(0, "Name", 1, b"\xff\xfe\0")
    driver.refuse("VbiosVersion")
    device = opened(nvml, driver).devices[0]
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
    nvml: Drive,
    arch: int,
    device_id: int,
    kind: str | None,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, arch=arch, device_id=device_id, power_instant_mw=None)
    driven = opened(nvml, fake)
    assert driven.ask("hot")[0]["power_w"] == 412.345
    assert driven.devices[0]["power_kind"] == kind
    assert "power_w" not in driven.known[0]


def test_power_is_chosen_for_each_device(two: FakeNvml, nvml: Drive) -> None:
    two.set(1, power_instant_mw=None)
    driven = opened(nvml, two)
    assert [d["power_kind"] for d in driven.devices] == ["instant", "avg1s"]
    assert [r["power_w"] for r in driven.ask("hot")] == [WATTS, 412.345]


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
    driver: FakeNvml, nvml: Drive, values: dict[str, Any], fields: tuple[str, ...], code: str
) -> None:
    driven = opened(nvml, driver)
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
    nvml: Drive,
) -> None:
    fake = FakeNvml(tmp_path, old_nvml_library)
    driven = opened(nvml, fake)
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


def test_instances_of_mig_are_devices_and_one_speaks_for_what_there_is_once(two: FakeNvml, nvml: Drive) -> None:
    two.mig(0, [(2, 0, 70 << 30, 20 << 30), (2, 1, 70 << 30, 20 << 30), (9, 0, 16 << 30, 1 << 30)])
    driven = opened(nvml, two)
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


def test_processes_without_a_size_have_none(driver: FakeNvml, nvml: Drive) -> None:
    driver.processes(0, [(1, 2**64 - 1), (2, 0)])
    driven = opened(nvml, driver)
    assert driven.ask("static")[0]["procs"] == [{"pid": 1, "mem": None}, {"pid": 2, "mem": 0}]
    driver.processes(0, [])
    assert driven.ask("static")[0]["procs"] == []
    driver.refuse("ComputeRunningProcesses_v3", 4)
    assert driven.ask("static")[0]["procs"] is None
    assert driven.known[0]["procs"][0] == NO_PERMISSION


def test_a_fan_that_is_there_is_a_ratio(driver: FakeNvml, nvml: Drive) -> None:
    driver.device(0, "FanSpeed", 1, u32(38))
    assert opened(nvml, driver).ask("static")[0]["fan"] == 0.38


def test_links_are_nvlink_where_it_is_and_else_the_path_over_pcie(
    tmp_path: Path,
    nvml_library: Path,
    nvml: Drive,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, gpus=3)
    for a, b in ((0, 1), (1, 0)):
        for link in range(4):
            fake.device(a, "NvLinkState", 2, u32(int(link != 2)), link)
            fake.device(a, "NvLinkRemoteDeviceType", 2, u32(0), link)
            fake.device(a, "NvLinkRemotePciInfo_v2", 2, fake.pci(b), link)
    driven = opened(nvml, fake)
    assert driven.devices[0]["links"] == [
        {"to": 1, "kind": "NVLink", "count": 3}, {"to": 2, "kind": "PCIe", "count": 1, "path": "SYS"}
    ]  # fmt: skip
    assert [link["kind"] for link in driven.devices[2]["links"]] == ["PCIe", "PCIe"]


def test_links_over_a_switch_join_every_pair(two: FakeNvml, nvml: Drive) -> None:
    for gpu in range(2):
        for link in range(18):
            two.device(gpu, "NvLinkState", 2, u32(1), link)
            two.device(gpu, "NvLinkRemoteDeviceType", 2, u32(2), link)
    driven = opened(nvml, two)
    assert [d["links"] for d in driven.devices] == [
        [{"to": 1, "kind": "NVLink", "count": 18}], [{"to": 0, "kind": "NVLink", "count": 18}]
    ]  # fmt: skip


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
