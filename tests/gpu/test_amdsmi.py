"""The real amdsmi binding over a library made at test time: what the source makes of it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.agent.gpu.amdsmi import normalized
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
)
from tests.fakes.amd_sysfs import GIB, MI300X, Tree
from tests.fakes.amdsmi_library import Machine, build_rocm, package
from tests.gpu.driven import Driven

MI300X_LIB: dict[str, Any] = {
    "temperature_hotspot": 59, "temperature_mem": 51, "current_socket_power": 705, "average_gfx_activity": 100,
    "average_umc_activity": 41, "current_gfxclks": [1304, 1275, 1317, 1283, 1298, 1281, 1309, 1287],
    "current_uclk": 1300, "energy_accumulator": 655_360_000, "accumulation_counter": 55257356,
    "ppt_residency_acc": 749905, "socket_thm_residency_acc": 0, "vr_thm_residency_acc": 0, "hbm_thm_residency_acc": 0,
    "prochot_residency_acc": 0, "xgmi_read_data_acc": [1000, 2000], "xgmi_write_data_acc": [500, 500],
}  # fmt: skip
MI250_LIB: dict[str, Any] = {
    "temperature_edge": 45, "temperature_hotspot": 52, "average_socket_power": 402, "average_gfx_activity": 88,
    "current_gfxclk": 1700, "energy_accumulator": 6122129286992, "indep_throttle_status": 0,
}  # fmt: skip
INFO = "amdsmi_get_gpu_metrics_info"


@pytest.fixture(scope="session")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_rocm(tmp_path_factory.mktemp("rocm"))


@pytest.fixture
def machine(tmp_path: Path, rocm: Path) -> Machine:
    return Machine(tmp_path / "fakes", rocm)


@pytest.fixture
def driven(machine: Machine, tmp_path: Path) -> Iterator[Callable[..., Driven]]:
    made: list[Driven] = []

    def make(env: dict[str, str] | None = None) -> Driven:
        made.append(Driven("amdsmi", "Amdsmi", env or machine.env, str(tmp_path / "sys")))
        return made[-1]

    yield make
    for source in made:
        source.close()


def test_every_function_that_the_binding_resolves_is_there(rocm: Path) -> None:
    assert len((rocm / "lib/libamd_smi.so.symbols").read_text().split(",")) == 184


def test_an_mi300_as_the_library_tells_it(machine: Machine, driven: Callable[..., Driven], tmp_path: Path) -> None:
    Tree(tmp_path / "sys").gpu("0000:0c:00.0", "v1.6", MI300X)
    machine.gpu("0000:0c:00.0", **MI300X_LIB)
    source = driven()
    source.ask("open")
    (device,) = source.devices
    assert set(device) == set(DEVICE_KEYS)
    assert source.version
    about = (
        "model",
        "uuid",
        "bdf",
        "partition",
        "compute_mode",
        "memory_mode",
        "runtime",
        "power_limit_w",
        "package_id",
    )
    assert [device[key] for key in about] == [
        "AMD Instinct MI300X", "GPU-00000000000000d1", "0000:0c:00.0", None, "SPX", "NPS1", "ROCm 7.0.2", 750.0, None,
    ]  # fmt: skip
    (hot,) = source.ask("hot")
    assert set(hot) == set(HOT)
    assert (hot["util"], hot["mem_busy"], hot["power_w"], hot["temp_hot_c"]) == (1.0, 0.41, 705, 59)
    assert (hot["clk_min_mhz"], hot["clk_sm_mhz"], hot["clk_max_mhz"], hot["clk_mem_mhz"]) == (
        1275,
        1292.5,
        1317,
        1300,
    )
    assert (hot["mem_used"], hot["temp_edge_c"], hot["throttle"]) == (150000 << 20, None, None)
    assert source.known[0]["temp_edge_c"][0] == SENTINEL
    assert source.ask("energy") == [{"energy_j": 10000.0}]
    (static,) = source.ask("static")
    assert set(static) == set(STATIC)
    assert (static["mem_total"], static["power_limit_w"], static["procs"]) == (196592 << 20, 750.0, [])
    assert source.known[0]["ecc_corr"][0] == source.known[0]["fan"][0] == NOT_SUPPORTED
    assert set(source.ask("slow")[0]) == set(SLOW)


def test_the_metrics_are_one_call_and_the_one_that_sleeps_is_never_made(
    machine: Machine, driven: Callable[..., Driven]
) -> None:
    machine.gpu("0000:0c:00.0", **MI300X_LIB)
    source = driven()
    source.ask("open")
    before = machine.program.calls(INFO)
    source.ask("hot")
    assert machine.program.calls(INFO) == before + 1
    for do in ("slow", "energy", "static"):
        source.ask(do)
    assert machine.program.calls("amdsmi_get_violation_status") == 0
    assert machine.program.calls("amdsmi_get_gpu_process_list") == 0


def test_throttling_comes_from_what_the_counters_gained(machine: Machine, driven: Callable[..., Driven]) -> None:
    gpu = machine.gpu("0000:0c:00.0", **MI300X_LIB)
    source = driven()
    source.ask("open")
    source.ask("hot")
    source.ask("slow")
    gpu.metrics(accumulation_counter=55257356 + 5008, ppt_residency_acc=749905 + 4342)
    assert source.ask("hot")[0]["throttle"] == ["power"]
    assert source.ask("slow")[0]["thr_power"] == pytest.approx(0.867, abs=0.001)


def test_the_dies_of_an_mi250(machine: Machine, driven: Callable[..., Driven]) -> None:
    machine.gpu("0000:c1:00.0", "AMD Instinct MI250X", 0x90A, **MI250_LIB)
    machine.gpu(
        "0000:c6:00.0",
        "AMD Instinct MI250X",
        0x90A,
        **{**MI250_LIB, "average_socket_power": 0, "energy_accumulator": 0},
    )
    source = driven()
    source.ask("open")
    assert [d["package_id"] for d in source.devices] == ["0000:c1:00.0"] * 2
    first, second = source.ask("hot")
    assert (first["power_w"], second["power_w"]) == (402, None)
    assert (first["util"], second["util"], second["clk_sm_mhz"]) == (0.88, 0.88, 1700)
    assert (first["throttle"], second["mem_busy"]) == ([], None)
    assert source.known[1]["power_w"][0] == SHARED
    assert source.known[1]["mem_busy"][0] == SENTINEL
    assert [reading["energy_j"] is None for reading in source.ask("energy")] == [False, True]
    assert source.known[1]["energy_j"][0] == SHARED


def test_partitions_are_told_apart_by_address_and_number(machine: Machine, driven: Callable[..., Driven]) -> None:
    busy = [[100], [50]]
    for i in range(2):
        metrics = MI300X_LIB if i == 0 else {"average_gfx_activity": 0xFFFF}
        machine.gpu(f"0000:0c:00.{i}", partition=i, mode="DPX", xcp_busy=busy, **metrics)
    source = driven()
    source.ask("open")
    assert [(d["bdf"], d["partition"]) for d in source.devices] == [("0000:0c:00.0", 0), ("0000:0c:00.0", 1)]
    assert {d["package_id"] for d in source.devices} == {"0000:0c:00.0"}
    assert [d["mem_total"] for d in source.devices] == [196592 << 20, None]
    first, second = source.ask("hot")
    assert (first["util"], second["util"]) == (1.0, 0.5)
    assert (first["power_w"], second["power_w"], second["mem_used"]) == (705, None, None)
    assert source.known[1]["power_w"][0] == source.known[1]["mem_used"][0] == SHARED


def test_rdna3_and_the_bit_that_the_binding_makes_of_its_mask(
    machine: Machine, driven: Callable[..., Driven]
) -> None:
    bits = {**MI250_LIB, "indep_throttle_status": 1 << 36}
    machine.gpu("0000:03:00.0", "AMD Radeon PRO W7900", 0x1100, **bits)
    machine.gpu("0000:04:00.0", "AMD Instinct MI210", 0x90A, **bits)
    source = driven()
    source.ask("open")
    assert [reading["throttle"] for reading in source.ask("hot")] == [None, ["other"]]
    assert source.known[0]["throttle"][0] == BAD_VALUE


@pytest.mark.parametrize("status", [9, 30])
def test_a_library_that_is_busy_costs_one_tick(machine: Machine, driven: Callable[..., Driven], status: int) -> None:
    gpu = machine.gpu("0000:0c:00.0", **MI300X_LIB)
    machine.gpu("0000:1c:00.0", **MI300X_LIB)
    source = driven()
    source.ask("open")
    gpu.refuse(INFO, status)
    busy, other = source.ask("hot")
    assert busy == {}
    assert other["power_w"] == 705
    gpu.metrics()
    assert source.ask("hot")[0]["power_w"] == 705
    assert source.known[0].get("power_w") is None


@pytest.mark.parametrize("status", [32, 34])
def test_a_driver_that_left_is_gone(machine: Machine, driven: Callable[..., Driven], status: int) -> None:
    gpu = machine.gpu("0000:0c:00.0", **MI300X_LIB)
    source = driven()
    source.ask("open")
    gpu.refuse(INFO, status)
    assert INFO in source.try_to("hot")["gone"]


def test_what_is_denied_is_said_with_what_helps_and_not_asked_again(
    machine: Machine, driven: Callable[..., Driven]
) -> None:
    gpu = machine.gpu("0000:0c:00.0", **MI300X_LIB)
    gpu.refuse("amdsmi_get_gpu_vram_usage", 10)
    source = driven()
    source.ask("open")
    assert source.ask("hot")[0]["mem_used"] is None
    code, text = source.known[0]["mem_used"]
    assert code == NO_PERMISSION
    assert "add the user to the render and video groups" in text
    before = machine.program.calls("amdsmi_get_gpu_vram_usage")
    source.ask("hot")
    source.ask("static")
    assert machine.program.calls("amdsmi_get_gpu_vram_usage") == before


def test_what_is_not_supported_is_none(machine: Machine, driven: Callable[..., Driven]) -> None:
    gpu = machine.gpu("0000:0c:00.0", **MI300X_LIB)
    gpu.refuse(INFO, 2)
    source = driven()
    source.ask("open")
    (hot,) = source.ask("hot")
    assert set(hot) == set(HOT)
    assert set(hot.values()) == {None}
    assert source.known[0]["power_w"][0] == NOT_SUPPORTED


def test_a_library_that_denies_its_start(machine: Machine, driven: Callable[..., Driven]) -> None:
    machine.program.on("amdsmi_init", status=10)
    answer = driven().try_to("open")
    assert (answer["code"], answer["mend"]) == (NO_PERMISSION, "add the user to the render and video groups")


def test_no_gpu_names_the_library_that_hides_them(machine: Machine, driven: Callable[..., Driven]) -> None:
    answer = driven().try_to("open")
    assert answer["code"] == NOT_FOUND
    assert "librocm_smi64" in answer["text"]


def test_a_binding_without_its_library_is_not_used(
    machine: Machine, driven: Callable[..., Driven], tmp_path: Path
) -> None:
    """The one of the package index brings none: it would load whatever library it finds."""
    empty = tmp_path / "rocm"
    (empty / "share/amd_smi").mkdir(parents=True)
    (empty / "share/amd_smi/amdsmi").symlink_to(package())
    answer = driven({**machine.env, "ROCM_PATH": str(empty)}).try_to("open")
    assert answer["code"] == NOT_FOUND
    assert "no libamd_smi.so beside it" in answer["text"]


def test_an_installed_binding_is_never_taken_without_rocm(
    machine: Machine, driven: Callable[..., Driven], tmp_path: Path
) -> None:
    if Path("/opt/rocm").exists():
        pytest.skip("this machine has ROCm")
    answer = driven({**machine.env, "ROCM_PATH": str(tmp_path / "none")}).try_to("open")
    assert (answer["code"], "beside a library" in answer["text"]) == (NOT_FOUND, True)


def test_a_library_of_another_version_fails_at_import_and_is_said(
    tmp_path: Path, machine: Machine, driven: Callable[..., Driven]
) -> None:
    other = build_rocm(tmp_path / "rocm", without=("amdsmi_get_gpu_xcd_counter",))
    answer = driven({**machine.env, "ROCM_PATH": str(other), "LD_LIBRARY_PATH": ""}).try_to("open")
    assert answer["code"] == FAILED
    assert "AttributeError" in answer["text"]
    assert answer["mend"]


def test_what_the_binding_prints_at_import_does_not_reach_the_answers(
    tmp_path: Path, machine: Machine, driven: Callable[..., Driven]
) -> None:
    broken = tmp_path / "rocm"
    (broken / "lib").mkdir(parents=True)
    (broken / "lib/libamd_smi.so").write_bytes(b"no library")
    (broken / "share/amd_smi/amdsmi").mkdir(parents=True)
    for path in package().glob("*.py"):
        (broken / "share/amd_smi/amdsmi" / path.name).write_text(path.read_text())
    source = driven({**os.environ, "ROCM_PATH": str(broken), "LD_LIBRARY_PATH": ""})
    answer = source.try_to("open")
    assert answer["code"] == FAILED
    assert "KeyError" in answer["text"]
    assert "Unable to find libamd_smi.so" in source.close()


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"current_gfxclk": 1700}, {"gfxclk": [1700]}),
        ({"current_gfxclks": [0, 65535, 1300], "current_gfxclk": 65535}, {"gfxclk": [0, None, 1300]}),
        ({"energy_accumulator": "N/A"}, {"energy": None}),
        ({"power": 77}, {"energy": 77}),
        ({"energy_accumulator": 65535}, {"energy": 65535}),
        (
            {"average_socket_power": 65535, "current_socket_power": 4294967295},
            {"power_average": None, "power_current": None},
        ),
        ({"temperature_edge": "N/A (Secondary die)"}, {"temp_edge": None}),
        ({"temperature_edge": {"value": "N/A"}}, {"temp_edge": None}),
        ({"accumulation_counter": 2**64 - 1, "ppt_residency_acc": 2**64 - 1}, {"ppt": None}),
    ],
)
def test_keys_and_empty_places_over_the_versions(info: dict[str, Any], expected: dict[str, Any]) -> None:
    values = normalized(info)
    assert {name: value for name, value in values.items() if name in expected} == expected
    assert "acc" not in values


def test_processes_come_from_the_compute_driver(
    machine: Machine, driven: Callable[..., Driven], tmp_path: Path
) -> None:
    tree = Tree(tmp_path / "sys")
    tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    tree.process(os.getpid(), {1: GIB})
    gpu = machine.gpu("0000:0c:00.0", **MI300X_LIB)
    gpu.answer("amdsmi_get_gpu_total_ecc_count", 1, struct.pack("<3Q", 30, 1, 0))
    gpu.answer("amdsmi_get_gpu_fan_speed", 2, struct.pack("<q", 102))
    gpu.answer("amdsmi_get_gpu_fan_speed_max", 2, struct.pack("<Q", 255))
    source = driven()
    source.ask("open")
    (static,) = source.ask("static")
    assert [(p["pid"], p["mem"]) for p in static["procs"]] == [(os.getpid(), GIB)]
    assert (static["ecc_corr"], static["ecc_uncorr"], static["fan"]) == (30, 1, 0.4)
