"""Every form in which amd-smi and rocm-smi print, and all captures of real machines."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent.gpu import amd_text, rocm_text
from runners.agent.gpu.amd_text import Told, number_in
from runners.agent.gpu.source import BAD_VALUE, CODES, FIELDS, SENTINEL
from tests.fakes import amd_captures
from tests.fakes.amd_captures import files, parts, tables

REAL = os.environ.get("EKVI_REAL_DATA", "")
FILES = files(Path(REAL)) if REAL else []
TOOLS = [path for path in FILES if path.suffix != ".bin" and not path.name.startswith("gpudiagnostics")]
real = pytest.mark.skipif(not REAL, reason="EKVI_REAL_DATA names no folder of real captures")


@pytest.mark.parametrize(
    "raw",
    [
        "N/A",
        "N/A (Secondary die)",
        {"value": "N/A", "unit": "W"},
        "[N/A]",
        "N/A Mb/s",
        "",
        None,
        True,
        [],
        {},
        "auto",
        65535,
        4294967295,
        2**64 - 1,
        "65535",
        {"value": 4294967295, "unit": "W"},
        "0x74a1",
        float("nan"),
        "18446744073709551615 W",
    ],
)
def test_what_is_no_value_is_none(raw: Any) -> None:
    assert number_in(raw) is None


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (0, 0),
        ("0 %", 0),
        ("171 W", 171),
        ("(500Mhz)", 500),
        ({"value": 93, "unit": "%"}, 93),
        ("14292727.274 J", 14292727.274),
        ("-5 °C", -5),
        ("0.3", 0.3),
        ("2.5GT/s x1", 2.5),
    ],
)
def test_a_value_is_its_number(raw: Any, value: float) -> None:
    assert number_in(raw) == value


def test_a_counter_may_be_65535() -> None:
    assert number_in("65535", counter=True) == 65535
    assert number_in("4294967295", counter=True) is None


GPU0 = {"gpu": 0, "usage": {"gfx_activity": {"value": 93, "unit": "%"}}, "power": {"socket_power": 712}}


@pytest.mark.parametrize("document", [GPU0, [GPU0], {"gpu_data": [GPU0]}], ids=["one", "list", "gpu_data"])
@pytest.mark.parametrize("before", ["", "WARNING: User is missing the following required groups: [render] {}\n\n"])
@pytest.mark.parametrize("indent", [None, 4])
def test_json_of_each_version(document: Any, before: str, indent: int | None) -> None:
    text = before + json.dumps(document, indent=indent) + "\nbye\n"
    (told,) = amd_text.metrics(amd_text.gpus_in(amd_text.json_in(text)))
    assert (told.gpu, told.reading) == (0, {"util": 0.93, "power_w": 712})


@pytest.mark.parametrize("text", ["", "no gpu", "[]", "{}", json.dumps([GPU0, GPU0], indent=4)[:-40]])
def test_output_without_a_whole_document_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no JSON"):
        amd_text.json_in(text)


@pytest.mark.parametrize("document", [{"gpu_data": []}, [{"cpu": 0}], {"error": "x"}])
def test_a_document_without_a_gpu_is_an_error(document: Any) -> None:
    with pytest.raises(ValueError, match="no GPU"):
        amd_text.gpus_in(document)


@given(st.text(max_size=300))
def test_any_text_gives_readings_or_a_value_error(text: str) -> None:
    for parse in (amd_text.monitor, amd_text.nested, rocm_text.table):
        parse(text)
    for refuse in (amd_text.json_in, amd_text.comma_separated, rocm_text.cards_in):
        try:
            refuse(text)
        except ValueError:
            continue


_NAME = st.sampled_from(
    [
        "usage",
        "gfx_activity",
        "power",
        "socket_power",
        "clock",
        "gfx_0",
        "clk",
        "mem_0",
        "temperature",
        "hotspot",
        "edge",
        "mem_usage",
        "used_vram",
        "value",
        "unit",
        "throttle",
        "ppt_violation_status",
        "energy",
        "total_energy_consumption",
        "ecc",
        "total_correctable_count",
        "fan",
        "pcie",
        "current_bandwidth_sent",
        "asic",
        "limit",
        "bus",
        "bdf",
        "vram",
    ]
)
_LEAF = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10))
_TREE = st.recursive(
    _LEAF, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_NAME, inner, max_size=6))
)


@given(st.dictionaries(_NAME, _TREE, max_size=8))
def test_documents_of_any_shape_never_raise(gpu: dict[str, Any]) -> None:
    told = amd_text.metric({**gpu, "gpu": 0})
    for field, value in told.reading.items():
        assert value is not None or told.why[field][0] in CODES
    amd_text.identity({**gpu, "gpu": 0})


def test_energy_that_stands_at_0_and_power_of_0_are_none() -> None:
    told = amd_text.metric({"gpu": 1, "power": {"socket_power": 0}, "energy": {"total_energy_consumption": 0.0}})
    assert told.reading == {"power_w": None, "energy_j": None}
    assert {code for code, _ in told.why.values()} == {BAD_VALUE}


def test_clocks_of_both_names_and_dies_that_are_off() -> None:
    clock = {"gfx_0": {"cur_clk": 1300}, "gfx_1": {"clk": {"value": 1200, "unit": "MHz"}}, "gfx_2": {"clk": 0},
             "gfx_3": {"clk": 65535}, "mem_0": {"cur_clk": 900}}  # fmt: skip
    reading = amd_text.metric({"gpu": 0, "clock": clock}).reading
    assert reading == {"clk_sm_mhz": 1250, "clk_min_mhz": 1200, "clk_max_mhz": 1300, "clk_mem_mhz": 900}


def test_csv_of_the_watch_mode_and_of_monitor() -> None:
    watch = "timestamp,gpu,gfx_activity,socket_power,power_management,gfx_0_clk,gfx_1_clk,edge,hotspot,mem\n"
    watch += "1700000000,0,98,705,ENABLED,1300,1200,N/A,59,51\n1700000001,0,99,707,ENABLED,1290,N/A,N/A,60,52\n"
    first, second = amd_text.comma_separated(watch)
    assert first.reading == {
        "util": 0.98, "power_w": 705, "temp_edge_c": None, "temp_hot_c": 59, "temp_mem_c": 51,
        "clk_sm_mhz": 1250, "clk_min_mhz": 1200, "clk_max_mhz": 1300,
    }  # fmt: skip
    assert second.reading["clk_sm_mhz"] == 1290
    (told,) = amd_text.comma_separated("gpu,power_usage,gfx,mem,vram_used,vram_total\n3,201,97,40,1024,2048\n")
    assert told.gpu == 3
    assert told.reading == {
        "power_w": 201, "util": 0.97, "mem_busy": 0.4, "mem_used": 1 << 30, "mem_total": 2 << 30,
    }  # fmt: skip


def test_identity_of_list_and_static() -> None:
    static = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x9F444A2FB30ADEB0", "device_id": "0x74a1"},
        "bus": {"bdf": "0000:0C:00.0"},
        "limit": {"max_power": {"value": 750, "unit": "W"}, "socket_power": {"value": 700, "unit": "W"}},
        "partition": {"accelerator_partition": "CPX", "memory_partition": "NPS4", "partition_id": 2},
        "numa": {"node": 1},
        "vram": {"size": {"value": 196592, "unit": "MB"}},
        "vbios": {"part_number": "113-M3"},
        "driver": {"version": "6.12"},
    }
    assert amd_text.identity(static) == {
        "bdf": "0000:0c:00.0", "partition": 2, "uuid": "GPU-9f444a2fb30adeb0", "model": "AMD Instinct MI300X",
        "vbios": "113-M3", "driver": "6.12", "numa_node": 1, "mem_total": 196592 << 20, "compute_mode": "CPX",
        "memory_mode": "NPS4", "power_limit_w": 700, "power_limit_max_w": 750, "device_id": "0x74a1",
    }  # fmt: skip


def told_in(path: Path) -> list[Told]:
    return [told for part in parts(path) for told in part.told]


@real
@pytest.mark.parametrize("path", TOOLS or [Path("none")], ids=lambda path: path.name)
def test_every_capture_is_read(path: Path) -> None:
    """Each field has a value in its range, or None with a code; a file without fields is known for what it is."""
    found = parts(path)
    assert found
    for part in found:
        assert part.told or part.about or part.none
        for told in part.told:
            assert set(told.reading) <= set(FIELDS)
            for field, value in told.reading.items():
                if value is None:
                    assert told.why[field][0] in CODES, field
                else:
                    assert _sane(field, value), (field, value)


def _sane(field: str, value: Any) -> bool:
    if isinstance(value, list):
        return field == "throttle"
    assert isinstance(value, (int, float))
    if field in ("util", "mem_busy", "fan", "thr_power", "thr_thermal"):
        return 0 <= value <= 1
    if field.startswith("temp_"):
        return 10 <= value <= 110
    if field in ("power_w", "power_limit_w"):
        return 5 <= value <= 1500
    return value >= 0


@real
@pytest.mark.parametrize("path", TOOLS or [Path("none")], ids=lambda path: path.name)
def test_no_capture_turns_a_missing_value_into_a_number(path: Path, tmp_path: Path) -> None:
    """Where all its values are taken out of a capture and N/A stands there, nothing comes out but None."""
    blank = tmp_path / path.parent.name / path.name
    blank.parent.mkdir()
    blank.write_text(_blanked(path.read_text()))
    for told in told_in(blank):
        numbers = {field: value for field, value in told.reading.items() if value is not None}
        assert numbers == {}, told.gpu


def _blanked(text: str) -> str:
    if text.lstrip().startswith(("{", "[")) and ("gpu_data" in text or '"gpu"' in text or '"card0"' in text):
        try:
            return json.dumps(_without(json.loads(text)), indent=4)
        except ValueError:
            pass
    lines = []
    for line in text.splitlines():
        if re.match(r"\s*(GPU|CPU|CORE): \d+$", line) or re.match(r"\s*[$#]", line):
            lines.append(line)
        elif re.match(r"\s*\d+\s", line):  # of a table: all cells but the first
            first, *cells = re.split(r"(\s{2,})", line.strip())
            lines.append(first + "".join(cell if not cell.strip() else _na(cell) for cell in cells))
        elif re.match(r'\s*"\d+,\d', line):
            lines.append(re.sub(r",[^,\\\"]+", ",N/A", line))
        else:
            lines.append(re.sub(r"(:\s+)\S.*$", r"\1N/A", line))
    return "\n".join(lines) + "\n"


def _na(cell: str) -> str:
    return re.sub(r"[\d.]+", "N/A", cell)


def _without(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without(inner) for inner in value]
    return value if key == "gpu" else "N/A"


@real
def test_what_some_captures_say() -> None:
    by_name = {path.name: told_in(path) for path in TOOLS}

    def of(part: str) -> list[Told]:
        (found,) = [told for name, told in by_name.items() if part in name]
        return found

    assert [told.reading["power_w"] for told in of("6.1.0_01")] == [171, 175, 177, 172, 178, 176, 176, 175]
    assert len(of("6.3.0_09")) == 32
    assert of("6.4.0_02")[5].reading == {"thr_power": 1.0, "thr_thermal": 0.03}
    second = of("6.4.1_05")[1]
    assert {field for field, value in second.reading.items() if value is None} == {
        "power_w", "temp_hot_c", "temp_mem_c", "clk_sm_mhz", "util", "mem_busy",
    }  # fmt: skip
    assert [(told.gpu, told.partition, told.reading["thr_power"]) for told in of("7.0.0_02")] == [
        (0, 0, 0.0), (0, 1, None), (1, 1, None), (2, 0, 0.0), (2, 1, None),
    ]  # fmt: skip
    assert of("7.1.0_01")[0].reading["energy_j"] == 14292727.274
    csv = of("inferencex")
    assert [told.reading["energy_j"] for told in csv] == [178319501.682, 178400000.0, 178324501.682, None]
    secondary = of("rx6700xt_rocm602")[0]
    assert secondary.reading["power_w"] is None
    assert secondary.why["power_w"] == (SENTINEL, 'the tool prints "N/A (Secondary die)"')
    assert of("mi210_rocm5")[0].reading["energy_j"] == pytest.approx(6122129286992 * 15.259e-6, rel=1e-4)
    assert [told.reading["power_w"] for told in of("6.1.2_mi250x")] == [402, None]
    assert [told.partition for told in of("rocprofiler")] == [0, 0, 0, 0]


@real
def test_the_drivers_tables_of_real_cards() -> None:
    (path,) = [path for path in FILES if path.name.startswith("gpudiagnostics")]
    by_key = {
        (model, revision, len(values)): amd_captures.of_table(values) for model, revision, values in tables(path)
    }
    w7900, why = by_key["Radeon PRO W7900", "v1.3", 1]
    assert (w7900["power_w"], w7900["util"], w7900["throttle"], w7900["temp_hot_c"]) == (9, 0, [], None)
    assert why["temp_hot_c"][0] == SENTINEL
    load, _ = by_key["MI300X VF", "v1.9", 2]
    assert load["thr_power"] == pytest.approx(0.867, abs=0.001)
    assert (load["throttle"], load["power_w"]) == (["power"], 707)


@real
def test_every_file_has_its_place_in_the_table_or_below_it() -> None:
    named = {capture.file for capture in amd_captures.captures(Path(REAL))}
    empty = {path.name for path in TOOLS if not told_in(path)}
    assert named | empty == {path.name for path in FILES}
    assert len(amd_captures.remarks(Path(REAL)).splitlines()) > 10
