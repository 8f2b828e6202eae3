"""What nvidia-smi writes, and the source that calls it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent.gpu.nvml_hot import SHARE_S
from runners.agent.gpu.smi_report import (
    links_of_topo,
    names_of_help,
    report_of_text,
    report_of_xml,
    rows_of_csv,
    rows_of_dmon,
)
from runners.agent.gpu.smi_values import RULES, device, number_of, power_kind, reading
from runners.agent.gpu.source import (
    BAD_VALUE,
    DEVICE_KEYS,
    FAILED,
    HOT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SENTINEL,
    STATIC,
    Reasons,
)
from tests.fakes.nvidia_smi import H200_ROW, FakeSmi, xml
from tests.gpu.driven import Driven

Drive = Callable[[dict[str, str]], Driven]


@pytest.fixture
def smi(tmp_path: Path) -> FakeSmi:
    return FakeSmi(tmp_path / "bin")


@pytest.fixture
def drive() -> Iterator[Drive]:
    made: list[Driven] = []

    def make(env: dict[str, str]) -> Driven:
        made.append(Driven("nvidia_smi", "NvidiaSmi", env))
        return made[-1]

    yield make
    for driven in made:
        driven.close()


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("[N/A]", NOT_SUPPORTED), ("N/A", NOT_SUPPORTED), ("[Not Supported]", NOT_SUPPORTED), ("-", NOT_SUPPORTED),
        ("[Requested functionality has been deprecated]", NOT_SUPPORTED), ("[Function Not Found]", NOT_FOUND),
        ("[Insufficient Permissions]", NO_PERMISSION), ("Insufficient Permissions", NO_PERMISSION),
        ("[GPU is lost]", FAILED), ("[GPU requires reset]", FAILED), ("[Unknown Error]", FAILED), ("ERR!", FAILED),
        ("", SENTINEL), ("65535", SENTINEL), ("4294967295", SENTINEL), ("[?]", BAD_VALUE), ("-3", BAD_VALUE),
    ],
)  # fmt: skip
def test_a_word_that_is_no_value_is_none_and_never_0(word: str, code: str) -> None:
    for field in ("util", "temp_edge_c", "clk_sm_mhz"):
        reasons = Reasons()
        row = dict.fromkeys(RULES[field].names, word)
        assert reading(row, [field], reasons) == {field: None}
        assert reasons.known[field][0] == code


def test_a_word_that_is_no_mask_is_none_and_not_no_throttling() -> None:
    for word, code in (("[N/A]", NOT_SUPPORTED), ("Active?", BAD_VALUE), ("0xFFFFFFFFFFFFFFFF", BAD_VALUE)):
        reasons = Reasons()
        assert reading({"clocks_event_reasons.active": word}, ["throttle"], reasons) == {"throttle": None}
        assert reasons.known["throttle"][0] == code
    assert reading({"clocks_throttle_reasons.active": "0x0"}, ["throttle"], Reasons()) == {"throttle": []}


def test_what_a_tool_does_not_have_is_not_found() -> None:
    reasons = Reasons()
    assert reading({}, ["power_w", "throttle"], reasons) == {"power_w": None, "throttle": None}
    assert {code for code, _ in reasons.known.values()} == {NOT_FOUND}


@given(st.text(max_size=30))
def test_no_word_brings_a_parser_down_or_becomes_0(word: str) -> None:
    row = {name: word for rule in RULES.values() for name in rule.names}
    found = reading(row, [*RULES, "throttle"], Reasons())
    if not any(letter.isdigit() for letter in word):
        assert set(map(str, found.values())) == {"None"}
    device(row, 0)


@pytest.mark.parametrize(
    ("word", "factor", "number"),
    [("97 %", 1, 0.97), ("97", 0.01, 0.97), ("143771 MiB", 1, 143771 * 2**20), ("55", 2.0**20, 55 * 2**20),
     ("433.10 W", 1, 433.1), ("16x", 1, 16), ("862 KB/s", 1, 862_000), ("37761276 us", 1, 37.761276),
     ("-8 C", 1, -8), ("0x4", 1, None), ("12 34", 1, None)],
)  # fmt: skip
def test_numbers_have_their_unit_or_that_of_the_field(word: str, factor: float, number: float | None) -> None:
    found = number_of(word, factor)
    assert found == (None if number is None else pytest.approx(number))


def test_csv_is_read_with_and_without_header_and_units() -> None:
    with_units = "uuid, utilization.gpu [%], memory.used [MiB]\nGPU-1, 97 %, 55 MiB\n"
    bare = "GPU-1, 97, 55\n"
    names = ["uuid", "utilization.gpu", "memory.used"]
    for rows in (rows_of_csv(with_units), rows_of_csv(bare, names)):
        assert reading(rows[0], ["util", "mem_used"], Reasons()) == {"util": 0.97, "mem_used": 55 << 20}
    assert rows_of_csv("WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n" + bare, names) == rows_of_csv(
        bare, names
    )
    assert rows_of_csv("", names) == rows_of_csv("") == []


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"power.draw.instant": "5 W"}, "instant"),
        ({"power.draw.instant": "[N/A]", "compute_cap": "9.0"}, "avg1s"),
        ({"compute_cap": "8.0"}, "instant"),
        ({"compute_cap": "7.5"}, "instant"),
        ({"architecture": "Ampere", "name": "NVIDIA A100-SXM4-80GB"}, "instant"),
        ({"architecture": "Ampere", "name": "NVIDIA A10G"}, "avg1s"),
        ({"architecture": "Turing", "name": "Tesla T4"}, "instant"),
        ({"name": "Tesla T4"}, None),
    ],
)
def test_a_row_says_what_kind_of_power_it_holds(row: dict[str, str], kind: str | None) -> None:
    assert power_kind(row) == kind


def test_a_report_that_is_none_is_refused() -> None:
    for text in ("", "NVIDIA-SMI has failed", "<html></html>", "<nvidia_smi_log>"):
        with pytest.raises(ValueError, match="nvidia-smi"):
            report_of_xml(text)
        with pytest.raises(ValueError, match="nvidia-smi"):
            report_of_text(text)


def test_ecc_is_unknown_where_a_part_of_it_is() -> None:
    text = xml(["GPU-0"]).replace(
        "<dram_correctable>3</dram_correctable>", "<dram_correctable>N/A</dram_correctable>"
    )
    reasons = Reasons()
    (gpu,) = report_of_xml(text)
    assert reading(gpu.row, ["ecc_corr", "ecc_uncorr"], reasons) == {"ecc_corr": None, "ecc_uncorr": 6}
    assert reasons.known["ecc_corr"][0] == NOT_SUPPORTED


_DMON = """# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk
# Idx      W      C      C      %      %    MHz    MHz
    0     78     28      -      -     10   3201    345
    1    631     63     57    100      9   2619   1980
"""


def test_dmon_is_read_by_its_header_and_a_dash_is_none() -> None:
    (first, low), (second, high) = rows_of_dmon(_DMON)
    fields = ["power_w", "temp_mem_c", "util", "clk_sm_mhz"]
    assert (first, reading(low, fields, Reasons())) == (
        0, {"power_w": 78, "temp_mem_c": None, "util": None, "clk_sm_mhz": 345}
    )  # fmt: skip
    assert (second, reading(high, fields, Reasons())["util"]) == (1, 1.0)


def test_topology_is_read_also_where_it_is_underlined() -> None:
    lines = [
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m", "GPU0\t X \tNV18\tSYS\tPIX\t0-23",
        "GPU1\tNV18\t X \tNODE\tPIX\t0-23", "GPU2\tSYS\tNODE\t X \tPIX\t0-23", "NIC0\tPIX\tPIX\tPIX\t X ",
    ]  # fmt: skip
    text = "\n".join(lines)
    found = links_of_topo(text)
    assert found[0] == [
        {"to": 1, "kind": "NVLink", "count": 18}, {"to": 2, "kind": "PCIe", "count": 1, "path": "SYS"}
    ]  # fmt: skip
    assert sorted(found) == [0, 1, 2]
    assert links_of_topo("") == {}


def test_both_names_of_a_field_are_known() -> None:
    assert names_of_help('List of valid\n\n"name" or "gpu_name"\nThe "official" name.\n') == ["name", "gpu_name"]


def test_the_source_tells_what_the_tool_tells(smi: FakeSmi, drive: Drive) -> None:
    driven = drive(smi.env)
    driven.ask("open")
    (found,) = driven.devices
    assert tuple(found) == DEVICE_KEYS
    assert (found["bdf"], found["driver"], found["power_kind"]) == ("0000:1b:00.0", "580.159.04", "instant")
    assert found["mem_total"] == 143771 << 20
    assert driven.ask("hot") == [
        {
            "util": 0.97, "mem_busy": 0.41, "mem_used": 51200 << 20, "power_w": 433.1, "temp_edge_c": 61,
            "temp_hot_c": None, "temp_mem_c": 68, "clk_sm_mhz": 1755, "clk_min_mhz": None, "clk_max_mhz": None,
            "clk_mem_mhz": 3201, "throttle": ["power"],
        }
    ]  # fmt: skip
    assert driven.ask("static") == [
        {
            "mem_total": 143771 << 20, "power_limit_w": 700, "ecc_corr": 4, "ecc_uncorr": 6, "fan": None,
            "procs": [{"pid": 4242, "mem": 100 << 20}],
        }
    ]  # fmt: skip
    assert driven.ask("energy") == [{"energy_j": None}]
    assert {"energy_j", "fan", "tensor", "link_tx_bps"} <= set(driven.known[0])


def test_throttled_time_is_what_the_counters_gained(smi: FakeSmi, drive: Drive) -> None:
    driven = drive(smi.env)
    driven.ask("open")
    begun = time.perf_counter()
    driven.ask("hot")
    assert "thr_power" not in driven.ask("slow")[0]
    smi.row(0, {"clocks_event_reasons_counters.sw_power_cap": "1010000"})
    time.sleep(SHARE_S)
    driven.ask("hot")
    (slow,) = driven.ask("slow")
    assert 0.01 / (time.perf_counter() - begun) < slow["thr_power"] <= 1
    assert slow["thr_thermal"] == 0
    smi.row(0, {"clocks_event_reasons_counters.sw_power_cap": "0"})
    time.sleep(SHARE_S)
    driven.ask("hot")
    assert driven.ask("slow")[0]["thr_power"] is None, "a counter that ran back"
    assert driven.known[0]["thr_power"][0] == BAD_VALUE


def test_only_fields_that_this_driver_knows_are_asked_for(smi: FakeSmi, drive: Drive) -> None:
    old = {"clocks_throttle_reasons.active": "0x1", "power.draw": "26.78"}
    listed = ["uuid", "utilization.gpu", *old]
    smi.row(0, old)
    smi.set(listed=listed)
    driven = drive(smi.env)
    driven.ask("open")
    (hot,) = driven.ask("hot")
    assert (hot["power_w"], hot["throttle"], hot["temp_mem_c"]) == (26.78, ["idle"], None)
    assert driven.known[0]["temp_mem_c"][0] == NOT_FOUND
    assert f"--query-gpu={','.join(['uuid', 'utilization.gpu', 'power.draw', *list(old)[:1]])}" in smi.calls[-1]


def test_a_field_that_is_refused_after_all_is_asked_no_more(smi: FakeSmi, drive: Drive) -> None:
    smi.set(listed=[], refused=["power.draw.instant", "temperature.memory"])
    driven = drive(smi.env)
    driven.ask("open")
    (hot,) = driven.ask("hot")
    assert (hot["power_w"], hot["temp_mem_c"], hot["util"]) == (412.3, None, 0.97)
    before = len(smi.calls)
    driven.ask("hot")
    assert len(smi.calls) == before + 1


def test_one_gpu_that_is_lost_leaves_the_other(tmp_path: Path, drive: Drive) -> None:
    smi = FakeSmi(tmp_path, gpus=2)
    driven = drive(smi.env)
    driven.ask("open")
    lost = dict.fromkeys(H200_ROW, "[GPU is lost]")
    smi.row(1, lost)
    first, second = driven.ask("hot")
    assert first["power_w"] == 433.1
    assert set(map(str, second.values())) == {"None"}
    assert driven.known[1]["power_w"] == [FAILED, "nvidia-smi says GPU is lost"]
    smi.set(rows=smi.rows[:1], xml=xml(["GPU-0"]))
    assert driven.ask("hot")[1] == dict.fromkeys(HOT)
    assert driven.ask("static")[1] == dict.fromkeys(STATIC)


@pytest.mark.parametrize(
    "fails",
    [(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."), (15, "GPU is lost")],
)
def test_a_tool_that_fails_says_why(smi: FakeSmi, drive: Drive, fails: tuple[int, str]) -> None:
    driven = drive(smi.env)
    driven.ask("open")
    smi.set(fails=fails)
    for call in ("hot", "static"):
        assert f"ended with {fails[0]}: {fails[1]}" in driven.try_to(call)["gone"]
    found = drive(smi.env).try_to("open")
    assert found["code"] == FAILED
    assert fails[1] in found["text"]


def test_without_the_tool_it_says_so(tmp_path: Path, drive: Drive) -> None:
    found = drive({**os.environ, "PATH": str(tmp_path)}).try_to("open")
    assert found["code"] == NOT_FOUND
    assert "nvidia-smi" in found["text"]


def test_no_gpu_is_no_source(tmp_path: Path, drive: Drive) -> None:
    found: dict[str, Any] = drive(FakeSmi(tmp_path, gpus=0).env).try_to("open")
    assert found["text"] == "nvidia-smi finds no GPU."
