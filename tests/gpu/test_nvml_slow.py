"""GPM, counters and the energy of NVML: what is told over the time between two readings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runners.agent.gpu.nvml_hot import SHARE_S, throttled_share
from runners.agent.gpu.source import (
    BAD_VALUE,
    NOT_SUPPORTED,
)
from tests.fakes.nvml import FakeNvml, field, no_field, u64
from tests.gpu.nvml_support import Drive, opened, rates


def test_the_older_counters_of_throttling_stand_in_for_the_fields(driver: FakeNvml, nvml: Drive) -> None:
    driver.set_field(0, 74, no_field())
    driver.program.on("nvmlDeviceGetViolationStatus", {1: 0}, out={2: [u64(0, 0), u64(0, 30_000_000)]})
    driven = opened(nvml, driver)
    (slow,) = rates(driven)
    assert 0 < slow["thr_power"] <= 0.03 / SHARE_S
    assert slow["thr_thermal"] == 0


@pytest.mark.parametrize("counter", [[5_000, 4_000, 3_000], [7_000, 7_000, 7_000]])
def test_the_energy_counter_is_told_as_it_is(driver: FakeNvml, nvml: Drive, counter: list[int]) -> None:
    """Backwards or stuck: whoever takes differences judges them, and sees what the hardware said."""
    driver.device(0, "TotalEnergyConsumption", 1, [u64(mj) for mj in counter])
    driven = opened(nvml, driver)
    assert [driven.ask("energy")[0]["energy_j"] for _ in counter] == [mj / 1000 for mj in counter]


def test_each_gpu_s_counter_has_its_own_moment(tmp_path: Path, nvml_library: Path, nvml: Drive) -> None:
    """The driver may take 30 ms for one: a moment for all of eight would be a tenth of a second wrong."""
    two = FakeNvml(tmp_path, nvml_library, gpus=2)
    for index in range(2):
        two.device(index, "TotalEnergyConsumption", 1, u64(5_000), delay_s=0.1)
    at = [reading["energy_at"] for reading in opened(nvml, two).ask("energy")]
    assert at[1] - at[0] >= 80_000_000


def test_gpm_says_nothing_until_there_are_two_samples_far_enough_apart(driver: FakeNvml, nvml: Drive) -> None:
    driven = opened(nvml, driver)
    assert driven.ask("slow") == [{}]
    assert "sm_active" not in driven.ask("slow")[0], "less than 0.1 s after the first"
    assert driver.program.calls("nvmlGpmSampleGet") == 1
    time.sleep(0.12)
    assert driven.ask("slow")[0]["sm_active"] == 0.915


def test_without_gpm_there_are_counters_and_reasons(
    tmp_path: Path,
    nvml_library: Path,
    nvml: Drive,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, gpm=None)
    for number, value in ((197, 2**33), (198, 2**32), (138, 1000), (139, 7)):
        fake.set_field(0, number, field(value, 3))
    driven = opened(nvml, fake)
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
    tmp_path: Path, nvml_library: Path, nvml: Drive, kind: int
) -> None:
    """On cards before Hopper it holds 32 bits, which PCIe 4.0 x16 fills in 0.14 s, also where its type has 64."""
    fake = FakeNvml(tmp_path, nvml_library, gpm=None)
    fake.set_field(0, 197, field(3_020_371_496, kind))
    driven = opened(nvml, fake)
    driven.ask("slow")
    assert driven.ask("slow")[0]["pcie_tx_bps"] is None
    assert driven.known[0]["pcie_tx_bps"][0] == BAD_VALUE


def test_a_gpm_metric_that_is_refused_or_no_number_is_none(
    tmp_path: Path,
    nvml_library: Path,
    nvml: Drive,
) -> None:
    fake = FakeNvml(tmp_path, nvml_library, gpm={2: float("nan"), 3: 250.0, 10: 100.0})
    driven = opened(nvml, fake)
    (slow,) = rates(driven)
    assert (slow["sm_active"], slow["sm_occ"], slow["tensor"], slow["dram_bw"]) == (None, None, None, 1.0)
    known = driven.known[0]
    assert [known[name][0] for name in ("sm_active", "sm_occ", "tensor")] == [BAD_VALUE, BAD_VALUE, NOT_SUPPORTED]


def test_throttled_time_is_a_share_and_a_counter_that_runs_back_tells_nothing(driver: FakeNvml, nvml: Drive) -> None:
    driver.set(0, thr_ns=(10**9, 10**9))
    driven = opened(nvml, driver)
    before = time.perf_counter()
    driven.ask("slow")
    driver.set(0, thr_ns=(10**9 + 50_000_000, 10**8))
    (slow,) = driven.ask("slow")
    assert slow.keys() & {"thr_power", "thr_thermal"} == set(), "too soon for counters that go in steps"
    time.sleep(SHARE_S)
    (slow,) = driven.ask("slow")
    assert 0.05 / (time.perf_counter() - before) < slow["thr_power"] <= 0.05 / SHARE_S
    assert "thr_thermal" not in slow


@pytest.mark.parametrize(
    ("gained_s", "past_s", "share"),
    [(0, 1, 0.0), (0.5, 1, 0.5), (1.1, 1, 1.0), (0.3, 0.25, 1.0), (1.3, 1, None), (-0.1, 1, None)],
)
def test_a_share_bears_the_steps_of_its_counter_and_no_more(
    gained_s: float, past_s: float, share: float | None
) -> None:
    assert throttled_share(gained_s, past_s) == share
