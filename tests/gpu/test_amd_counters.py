"""What counters of AMD's driver gained: throttling, energy, bytes on links; and what they cannot say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runners.agent.gpu.amd_sysfs import AmdSysfs
from runners.agent.gpu.source import BAD_VALUE, SENTINEL
from tests.fakes.amd_sysfs import MI250, MI300X, Tree


def test_rdna3_sets_its_hotspot_bit_always(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    about: dict[str, Any] = {"model": "AMD Radeon PRO W7900", "device_id": "0x7448", "mode": None}
    bits = {**MI250, "indep_throttle_status": 1 << 36}
    rdna3 = tree.gpu("0000:03:00.0", "v1.3", bits, gfx=110000, **about)
    unknown = tree.gpu("0000:04:00.0", "v1.3", bits, gfx=None, **about)
    unknown.write("ip_discovery/die/0/GC/0/major", 11)
    nothing = tree.gpu("0000:05:00.0", "v1.3", bits, gfx=None, **about)
    rdna2 = tree.gpu("0000:06:00.0", "v1.3", bits, gfx=100300, **about)
    source = opened()
    assert [r["throttle"] for r in source.hot()] == [[], [], [], ["thermal"]]
    for gpu in (rdna3, unknown, nothing, rdna2):
        gpu.set(indep_throttle_status=1 << 36 | 1 << 34 | 1 << 1 | 1 << 47 | 1 << 60)
    assert [r["throttle"] for r in source.hot()] == [["hw", "other", "power", "thermal"]] * 4


def test_a_real_pair_under_load_gives_its_share_of_power_throttling(
    tree: Tree, opened: Callable[[], AmdSysfs]
) -> None:
    gpu = tree.gpu("0000:83:00.0", "v1.9", MI300X)
    source = opened()
    assert source.hot()[0]["throttle"] is None
    assert source.slow()[0]["thr_power"] is None
    gpu.set(accumulation_counter=55257356 + 5008, ppt_residency_acc=749905 + 4342)
    assert source.hot()[0]["throttle"] == ["power"]
    slow = source.slow()[0]
    assert slow["thr_power"] == pytest.approx(0.867, abs=0.001)
    assert slow["thr_thermal"] == 0.0
    assert source.hot()[0]["throttle"] == ["power"], "no new count is no news"
    gpu.set(accumulation_counter=55257356 + 6000)
    assert source.hot()[0]["throttle"] == []
    assert source.slow()[0]["thr_power"] == 0.0
    gpu.set(accumulation_counter=55257356 + 7000, prochot_residency_acc=10, hbm_thm_residency_acc=500)
    assert source.hot()[0]["throttle"] == ["hw", "thermal"]
    assert source.slow()[0]["thr_thermal"] == 0.5


@pytest.mark.parametrize("moves", [0, 1000])
def test_a_residency_equal_to_its_counter_at_idle_is_no_throttling(
    tree: Tree, opened: Callable[[], AmdSysfs], moves: int
) -> None:
    names = ("accumulation_counter", "ppt_residency_acc", "socket_thm_residency_acc", "hbm_thm_residency_acc")
    quirk = {**MI300X, **dict.fromkeys(names, 10657785), "average_gfx_activity": 1}
    gpu = tree.gpu("0000:0c:00.0", "v1.6", quirk)
    source = opened()
    source.hot()
    source.slow()
    gpu.set(**dict.fromkeys(names, 10657785 + moves))
    assert source.hot()[0]["throttle"] == ([] if moves else None)
    assert source.slow()[0]["thr_power"] is None
    gpu.set(**dict.fromkeys(names, 10657785 + 2000), average_gfx_activity=99)
    assert source.hot()[0]["throttle"] is None, "under load such a counter leaves it open"
    gpu.set(accumulation_counter=10657785 + 3000, ppt_residency_acc=10657785 + 2867)
    source.hot()
    assert source.slow()[0]["thr_power"] == pytest.approx(1867 / 2000 if moves else 2867 / 3000)


def test_counters_that_pass_32_bits_or_begin_anew(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    gpu = tree.gpu("0000:0c:00.0", "v1.6", {**MI300X, "accumulation_counter": 2**32 - 500, "ppt_residency_acc": 100})
    source = opened()
    source.slow()
    gpu.set(accumulation_counter=500, ppt_residency_acc=350)
    assert source.slow()[0]["thr_power"] == 0.25
    gpu.set(accumulation_counter=10, ppt_residency_acc=0)
    assert source.slow()[0]["thr_power"] is None
    gpu.set(accumulation_counter=1010, ppt_residency_acc=1)
    assert source.slow()[0]["thr_power"] == 0.001


@pytest.mark.parametrize("count", [0, 2**64 - 1])
def test_an_energy_counter_that_is_not_there(tree: Tree, opened: Callable[[], AmdSysfs], count: int) -> None:
    tree.gpu("0000:0c:00.0", "v1.3", {**MI250, "energy_accumulator": count}, model="AMD Radeon RX 6700 XT", mode=None)
    source = opened()
    assert source.energy() == [{"energy_j": None}]
    assert source.reasons[0].known["energy_j"][0] == (SENTINEL if count else BAD_VALUE)


def test_an_energy_counter_is_told_as_it_stands_also_backwards(tree: Tree, opened: Callable[[], AmdSysfs]) -> None:
    gpu = tree.gpu("0000:0c:00.0", "v1.6", {**MI300X, "energy_accumulator": 65536 * 5000})
    source = opened()
    told = [source.energy()[0]["energy_j"]]
    for joules in (5700, 5700, 4000):
        gpu.set(energy_accumulator=65536 * joules)
        told.append(source.energy()[0]["energy_j"])
    assert told == [5000, 5700, 5700, 4000]


def test_xgmi_bytes_a_second(tree: Tree, opened: Callable[[], AmdSysfs], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 12.0, 13.0))
    monkeypatch.setattr("runners.agent.gpu.amd_sysfs.time.monotonic", lambda: next(now))
    gpu = tree.gpu("0000:0c:00.0", "v1.6", MI300X)
    source = opened()
    assert source.slow()[0]["link_rx_bps"] is None
    gpu.set(xgmi_read_data_acc=[1000 + 4000, 2000 + 6000], xgmi_write_data_acc=[500, 1500])
    slow = source.slow()[0]
    assert (slow["link_rx_bps"], slow["link_tx_bps"]) == (10000 * 1024 / 2, 1000 * 1024 / 2)
    gpu.set(xgmi_read_data_acc=[0, 0])
    assert source.slow()[0]["link_rx_bps"] is None
