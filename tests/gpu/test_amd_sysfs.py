"""The sysfs source against a tree as the driver lays it out: what it tells, and what it will not tell."""

from __future__ import annotations

import contextlib
import os
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.agent.gpu.amd_sysfs import AmdSysfs
from runners.agent.gpu.source import (
    BAD_VALUE,
    CODES,
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
    Gone,
    SourceError,
)  # fmt: skip
from tests.fakes.amd_sysfs import GIB, MI250, MI300X, Gpu, Tree, sensors
from tests.fakes.gpu_metrics import VERSIONS

GPU = "devices/pci0000:00/0000:0c:00.0"
NEW = [version for version in VERSIONS if version >= "v1.4"]


def mi250_pair(tree: Tree) -> tuple[Gpu, Gpu]:
    about: dict[str, Any] = {"device_id": "0x740c", "model": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "gfx": 90010}
    first = tree.gpu("0000:c1:00.0", "v1.3", MI250, mode=None, **about)
    second = tree.gpu("0000:c6:00.0", "v1.3", {**MI250, "average_socket_power": 0, "energy_accumulator": 0}, **about)
    second.write("hwmon/hwmon3/power1_cap", 0)
    return first, second


@pytest.mark.parametrize("version", NEW)
def test_an_mi300_tells_the_same_by_each_revision(tree: Tree, opened: Callable[[], AmdSysfs], version: str) -> None:
    tree.gpu("0000:0c:00.0", version, {**MI300X, "throttle_status": 2})
    reading = opened().hot()[0]
    assert set(reading) == set(HOT)
    assert {f: reading[f] for f in ("util", "mem_busy", "power_w", "temp_hot_c", "temp_mem_c")} == {
        "util": 1.0, "mem_busy": 0.41, "power_w": 705, "temp_hot_c": 59, "temp_mem_c": 51,
    }  # fmt: skip
    assert (reading["clk_min_mhz"], reading["clk_sm_mhz"], reading["clk_max_mhz"]) == (1275, 1292.5, 1317)
    assert reading["clk_mem_mhz"] == 1300
    assert reading["mem_used"] == 150 * GIB
    assert reading["temp_edge_c"] is None
    assert reading["throttle"] == (["power"] if version in ("v1.4", "v1.5") else None)


def test_the_device_is_described(tree: Tree, opened: Callable[[], AmdSysfs], monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = tree.root.parent / "rocm"
    (rocm / ".info").mkdir(parents=True)
    (rocm / ".info/version").write_text("7.1.0-123\n")
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    tree.gpu("0000:1c:00.0", "v1.6", MI300X)
    tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    tree.link(1, 2)
    source = opened()
    first, second = source.devices
    assert set(first) == set(DEVICE_KEYS)
    assert first == {
        "index": 0, "uuid": "GPU-00000000000000a1", "bdf": "0000:0c:00.0", "partition": None, "package_id": None,
        "model": "AMD Instinct MI300X OAM", "compute_mode": "SPX", "memory_mode": "NPS1", "driver": "6.12.12",
        "runtime": "ROCm 7.1.0", "vbios": "113-M3000100-102", "ecc": True, "numa_node": 1, "mem_total": 192 * GIB,
        "power_limit_w": 750.0, "power_limit_default_w": 750.0, "power_limit_max_w": 750.0, "power_kind": "socket",
        "power_scope": "gpu", "clk_sm_max_mhz": 2100.0, "pcie": {"gen": 5, "width": 16},
        "links": [{"to": 1, "kind": "XGMI", "count": None}],
    }  # fmt: skip
    assert (second["index"], second["bdf"]) == (1, "0000:1c:00.0")
    assert source.version == "6.12.12"


def test_every_none_has_a_reason(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    tree.gpu("0000:0c:00.0", "v1.3", {}, ras=False)
    tree.gpu("0000:1c:00.0", "v1.6", MI300X)
    mi250_pair(tree)
    source = opened()
    for ask in (source.hot, source.slow, source.energy, source.static):
        ask()
        for reading, why in zip(ask(), source.reasons, strict=True):
            for field, value in reading.items():
                if value is None and not field.startswith(("thr", "link_")):
                    assert why.known[field][0] in CODES, field
    assert set(source.slow()[1]) == set(SLOW)
    assert set(source.static()[1]) == set(STATIC)
    assert source.static()[1]["mem_total"] == 192 * GIB


def test_sensors_that_the_table_leaves_empty_come_from_their_own_files(
    tree: Tree, opened: Callable[[], AmdSysfs]
) -> None:
    gpu = tree.gpu("0000:03:00.0", "v1.3", {"average_gfx_activity": 0xFFFF})
    sensors(gpu, [("edge", 45), ("junction", 47.5), ("mem", 46)], power_w=211)
    gpu.write("hwmon/hwmon3/freq1_input", 2_500_000_000)
    source = opened()
    reading = source.hot()[0]
    assert (reading["temp_edge_c"], reading["temp_hot_c"], reading["temp_mem_c"]) == (45, 47.5, 46)
    assert (reading["power_w"], reading["util"], reading["mem_busy"]) == (211, 0.97, 0.4)
    assert (reading["clk_sm_mhz"], reading["clk_min_mhz"], reading["clk_max_mhz"]) == (2500, 2500, 2500)
    assert reading["clk_mem_mhz"] is None
    assert set(source.reasons[0].known) == {"clk_mem_mhz", "throttle"}


def test_a_table_that_is_not_known_costs_only_its_own_fields(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    gpu = tree.gpu("0000:03:00.0", "v1.6", MI300X)
    gpu.raw(b"\x80\x00\x01\x06" + b"\x11" * 124)
    source = opened()
    reading = source.hot()[0]
    assert (reading["util"], reading["power_w"], reading["mem_used"]) == (0.97, None, 150 * GIB)
    assert source.reasons[0].known["power_w"] == (
        NOT_SUPPORTED,
        "gpu_metrics v1.6 of 128 bytes has a layout that is not known",
    )
    assert source.energy() == [{"energy_j": None}]
    assert source.slow()[0]["thr_power"] is None


def test_65535_and_impossible_values_are_none(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    gpu = tree.gpu("0000:03:00.0", "v1.6", MI300X)
    gpu.remove("gpu_busy_percent", "mem_busy_percent")
    source = opened()
    gpu.set(average_gfx_activity=0xFFFF, average_umc_activity=101, curr_socket_power=0xFFFF, temperature_mem=400)
    gpu.set(current_gfxclk=[0, 0xFFFF, 1300, 0, 1200, 0xFFFF, 0, 0])
    reading = source.hot()[0]
    assert [reading[f] for f in ("util", "mem_busy", "power_w", "temp_mem_c")] == [None] * 4
    assert (reading["clk_min_mhz"], reading["clk_sm_mhz"], reading["clk_max_mhz"]) == (1200, 1250, 1300)
    known = source.reasons[0].known
    assert [known[f][0] for f in ("util", "mem_busy", "power_w")] == [SENTINEL, BAD_VALUE, SENTINEL]
    gpu.set(current_gfxclk=[0] * 8)
    assert source.hot()[0]["clk_sm_mhz"] is None


def test_the_second_die_of_an_mi250_leaves_power_to_the_first(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    mi250_pair(tree)
    source = opened()
    assert [d["package_id"] for d in source.devices] == ["0000:c1:00.0", "0000:c1:00.0"]
    assert [d["power_scope"] for d in source.devices] == ["package", "package"]
    assert [r["power_w"] for r in source.hot()] == [402, None]
    assert [r["util"] for r in source.hot()] == [0.88, 0.88]
    energy = source.energy()
    assert energy[0]["energy_j"] == pytest.approx(6122129286992 * 15.2588e-6, rel=1e-5)
    assert energy[1]["energy_j"] is None
    assert [r["power_limit_w"] for r in source.static()] == [750.0, None]
    assert [source.reasons[1].known[f][0] for f in ("power_w", "energy_j", "power_limit_w")] == [SHARED] * 3


def test_a_die_without_its_mate_speaks_for_itself(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    tree.gpu("0000:c1:00.0", "v1.3", MI250, device_id="0x7408", model=None, gfx=90010)
    source = opened()
    assert source.devices[0]["package_id"] is None
    assert source.hot()[0]["power_w"] == 402


@pytest.mark.parametrize("shift", [28, 0])
@pytest.mark.parametrize("version", ["v1.6", "v1.7", "v1.8"])
def test_partitions_share_sensors_and_have_their_own_use(
    tree: Tree, opened: Callable[[], AmdSysfs], version: str, shift: int
) -> None:
    busy = [[100], [0], [50], [], [7], [7], [7], [7]]
    tree.gpu("0000:0c:00.0", version, {**MI300X, "xcp_busy": busy}, partitions=8, mode="CPX", shift=shift)
    tree.gpu("0000:1c:00.0", version, {**MI300X, "xcp_busy": busy}, partitions=8, mode="CPX", shift=shift)
    source = opened()
    assert len(source.devices) == 16
    keys = [(d["bdf"], d["partition"]) for d in source.devices]
    assert keys[:9] == [*(("0000:0c:00.0", i) for i in range(8)), ("0000:1c:00.0", 0)]
    assert len(set(keys)) == 16
    assert {d["package_id"] for d in source.devices[:8]} == {"0000:0c:00.0"}
    assert [d["mem_total"] for d in source.devices[:3]] == [192 * GIB, None, None]
    readings = source.hot()
    assert [r["util"] for r in readings[:4]] == [1.0, 0.0, 0.5, None]
    assert [r["power_w"] for r in readings[:3]] == [705, None, None]
    assert [r["mem_used"] for r in readings[:2]] == [150 * GIB, None]
    assert source.reasons[1].known["power_w"][0] == SHARED
    assert [r["energy_j"] is None for r in source.energy()[:2]] == [False, True]


def test_partitions_read_the_table_of_their_gpu_once(
    tree: Tree, opened: Callable[[], AmdSysfs], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.gpu("0000:0c:00.0", "v1.6", {**MI300X, "xcp_busy": [[100]] * 8}, partitions=8, mode="CPX")
    source = opened()
    real = os.pread
    reads: list[str] = []

    def counted(fd: int, *args: int) -> bytes:
        reads.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        return real(fd, *args)

    monkeypatch.setattr(os, "pread", counted)
    source.hot()
    assert [path for path in reads if path.endswith("gpu_metrics")] == [str(tree.root / GPU / "gpu_metrics")]


def test_a_virtual_function_is_no_partition_of_its_neighbour(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    for bdf in ("0000:83:00.0", "0000:83:00.1"):
        tree.gpu(bdf, "v1.9", MI300X)
    source = opened()
    assert [(d["bdf"], d["partition"]) for d in source.devices] == [("0000:83:00.0", None), ("0000:83:00.1", None)]
    assert source.hot()[1]["power_w"] == 705


def test_errors_processes_and_fans(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    gpu = tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    tree.gpu("0000:1c:00.0", "v1.6", MI300X, ras=False)
    gpu.write("hwmon/hwmon3/pwm1", 102)
    gpu.write("hwmon/hwmon3/pwm1_max", 255)
    tree.process(os.getpid(), {1: 5 * GIB})
    tree.process(2**22 + 1, {2: GIB})
    first, second = opened().static()
    assert (first["ecc_corr"], first["ecc_uncorr"], first["fan"]) == (34, 1, 0.4)
    assert (second["ecc_corr"], second["ecc_uncorr"], second["fan"]) == (None, None, None)
    assert first["procs"] == [{"pid": os.getpid(), "mem": 5 * GIB}]
    assert second["procs"] == [{"pid": 2**22 + 1, "mem": GIB}]


def test_processes_are_unknown_without_the_compute_driver(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    tree.gpu("0000:0c:00.0", "v1.6", MI300X, gfx=None)
    source = opened()
    assert source.static()[0]["procs"] is None
    assert source.reasons[0].known["procs"][0] == NOT_FOUND


@pytest.mark.parametrize("whole", [True, False])
def test_a_gpu_that_vanishes_is_gone(tree: Tree, opened: Callable[[], AmdSysfs], whole: bool) -> None:
    gpu = tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    source = opened()
    source.hot()
    if whole:
        gpu.vanish()
    else:
        gpu.remove("gpu_metrics")
    with pytest.raises(Gone, match="is gone"):
        source.hot()
    with pytest.raises(Gone):
        source.slow()


def test_nothing_of_amd_says_what_to_do(tree: Tree) -> None:
    with pytest.raises(SourceError) as found:
        AmdSysfs(str(tree.root)).open()
    assert (found.value.code, bool(found.value.mend)) == (NOT_FOUND, True)


def deny(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As root no file is denied, so the system's answer is given in its place."""
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(names):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)


def test_what_may_not_be_read_is_none_with_what_helps(
    tree: Tree, opened: Callable[[], AmdSysfs], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    deny(monkeypatch, "gpu_metrics")
    source = opened()
    assert (source.hot()[0]["power_w"], source.hot()[0]["mem_used"]) == (None, 150 * GIB)
    code, text = source.reasons[0].known["power_w"]
    assert code == NO_PERMISSION
    assert "render and video groups" in text


def test_no_permission_at_all_closes_this_way(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    deny(monkeypatch, "gpu_metrics", "_percent", "_used", "_input", "_average")
    with pytest.raises(SourceError) as found:
        AmdSysfs(str(tree.root)).open()
    assert found.value.code == NO_PERMISSION
    assert found.value.mend == "add the user to the render and video groups"


def test_a_reading_that_fails_is_missed_and_the_next_one_is_not(
    tree: Tree, opened: Callable[[], AmdSysfs], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    source = opened()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")))
        assert source.hot()[0]["power_w"] is None, "so the driver answers while it resets a GPU"
    assert source.reasons[0].known["power_w"][0] == FAILED
    assert source.hot()[0]["power_w"] == 705


def open_files(root: Path) -> int:
    """How many files below `root` this process has open; others come and go."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += fd.readlink().is_relative_to(root)
    return found


def test_files_are_opened_once_and_given_back(tree: Tree) -> None:
    for i in range(8):
        tree.gpu(f"0000:{i + 1:02x}:00.0", "v1.6", MI300X)
    source = AmdSysfs(str(tree.root))
    source.open()
    source.hot()
    kept = open_files(tree.root)
    assert kept >= 8
    for _ in range(5):
        source.hot()
        source.slow()
        source.energy()
    assert open_files(tree.root) == kept
    source.close()
    assert open_files(tree.root) == 0


def test_a_tick_is_cheap(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    source = opened()
    cost_s = min(timeit.repeat(source.hot, number=50, repeat=5)) / 50
    assert cost_s < 1e-3, f"{cost_s * 1e6:.0f} us a GPU"
