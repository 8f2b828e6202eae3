"""The metrics table: each revision against structures as the kernel declares them, and whatever else comes."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent.gpu.gpu_metrics import ENERGY_J, decode, partitions_busy
from tests.fakes.gpu_metrics import STRUCTURES, VERSIONS, attributes, blob

OLD = ("v1.1", "v1.2", "v1.3")
COUNTED = ("v1.6-312", "v1.6", "v1.7", "v1.8", "v1.9")
VALUES: dict[str, Any] = {
    "temperature_edge": 41, "temperature_hotspot": 59, "temperature_mem": 51, "average_gfx_activity": 97,
    "average_umc_activity": 41, "average_socket_power": 402, "curr_socket_power": 705,
    "energy_accumulator": 2**40 + 7, "current_uclk": 1300, "accumulation_counter": 55257356,
    "prochot_residency_acc": 1, "ppt_residency_acc": 2, "socket_thm_residency_acc": 3, "vr_thm_residency_acc": 4,
    "hbm_thm_residency_acc": 5, "throttle_status": 2, "indep_throttle_status": 1 << 36,
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_each_value_is_found_where_the_kernel_puts_it(version: str) -> None:
    own: dict[str, Any] = {
        "current_gfxclk": 1700 if version in OLD else [1304, 1275, 1317, 1283, 1298, 1281, 1309, 1287]
    }
    links: dict[str, Any] = {"xgmi_read_data_acc": range(8), "xgmi_write_data_acc": [9]}
    values, name = decode(blob(version, {**VALUES, **own, **links}))
    assert values is not None
    assert name == version.partition("-")[0]
    expected: dict[str, Any] = {
        "temp_hot": 59,
        "temp_mem": 51,
        "gfx": 97,
        "umc": 41,
        "energy": 2**40 + 7,
        "uclk": 1300,
    }
    if version in OLD:
        expected |= {"temp_edge": 41, "power_average": 402, "gfxclk": [1700]}
    else:
        expected |= {"power_current": 705}
    if version in COUNTED:
        expected |= {"acc": 55257356, "prochot": 1, "ppt": 2, "socket_thm": 3, "vr_thm": 4, "hbm_thm": 5}
    if version in ("v1.4", "v1.5"):
        expected["throttle"] = 2
    if version == "v1.3":
        expected["indep_throttle"] = 1 << 36
    if version not in OLD:
        write = [9] if version == "v1.9" else [9] + [None] * 7
        expected |= {"gfxclk": own["current_gfxclk"], "xgmi_read": list(range(8)), "xgmi_write": write}
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize("version", STRUCTURES)
def test_an_empty_table_is_none_and_never_zero(version: str) -> None:
    values, _ = decode(blob(version, {}))
    assert values is not None
    for name, value in values.items():
        assert value is None or (isinstance(value, list) and set(value) == {None}), name


def test_sizes_are_those_of_the_kernels_structures() -> None:
    sizes = {name: ctypes.sizeof(kind) for name, (_, kind) in STRUCTURES.items()}
    assert sizes == {
        "v1.1": 96, "v1.2": 104, "v1.3": 120, "v1.4": 288, "v1.5": 360, "v1.6-312": 312, "v1.6": 1664, "v1.7": 2208,
        "v1.8": 3872,
    }  # fmt: skip


@pytest.mark.parametrize("version", ["v1.6", "v1.7", "v1.8"])
def test_use_of_each_partition_and_none_for_dies_that_it_does_not_have(version: str) -> None:
    busy = partitions_busy(blob(version, {"xcp_busy": [[100, 98], [0], [3, 0xFFFFFFFF, 5]]}))
    assert busy == [[100, 98], [0], [3, 5], [], [], [], [], []]
    assert partitions_busy(blob("v1.6-312", {})) is None


def test_the_order_and_the_number_of_attributes_are_free() -> None:
    first = attributes([("curr_socket_power", "H", [705]), ("temperature_hotspot", "H", [59])])
    other = attributes([("temperature_hotspot", "H", [58]), ("curr_socket_power", "H", [700])])
    assert len(first) == len(other)
    for _ in range(2):
        assert decode(first)[0] == {"power_current": 705, "temp_hot": 59}
        assert decode(other)[0] == {"power_current": 700, "temp_hot": 58}


def test_attributes_that_are_not_known_are_passed_over_and_other_units_refused() -> None:
    table = attributes(
        [(48, "H", [1, 2, 3, 4]), ("temperature_hotspot", "h", [59]), ("current_gfxclk", "I", [1300, 1299])]
    )
    assert decode(table)[0] == {"temp_hot": 59, "gfxclk": [1300, 1299]}
    assert decode(attributes([("temperature_hotspot", "H", [59])], unit=0))[0] == {"temp_hot": 59}
    assert decode(attributes([("temperature_hotspot", "H", [332])], unit=77))[0] == {}
    assert decode(attributes([("temperature_hotspot", "h", [-1]), ("curr_socket_power", "H", [0xFFFF])]))[0] == {
        "temp_hot": None,
        "power_current": None,
    }


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "cut off"),
        (struct.pack("<HBB", 120, 1, 3) + b"\0" * 50, "cut off: 54 of 120"),
        (struct.pack("<HBB", 128, 1, 3) + b"\0" * 124, "v1.3 of 128 bytes has a layout that is not known"),
        (struct.pack("<HBB", 384, 1, 6) + b"\0" * 380, "v1.6 of 384 bytes"),
        (struct.pack("<HBB", 168, 2, 4) + b"\0" * 164, "v2.4"),
        (struct.pack("<HBBi", 8, 1, 9, 3), "do not fit"),
        (struct.pack("<HBBi", 8, 1, 9, -1), "do not fit"),
    ],
)
def test_what_is_not_known_is_not_decoded(raw: bytes, why: str) -> None:
    values, text = decode(raw)
    assert values is None
    assert why in text


@given(st.binary(max_size=4096))
def test_random_bytes_never_raise(raw: bytes) -> None:
    decode(raw)
    partitions_busy(raw)


@given(st.sampled_from(VERSIONS), st.integers(0, 4000), st.data())
def test_a_known_header_before_random_or_missing_bytes_never_raises(
    version: str, cut: int, data: st.DataObject
) -> None:
    whole = blob(version, {"temperature_hotspot": 60, "average_gfx_activity": 50})
    raw = bytearray(whole[: max(0, cut % (len(whole) + 1))])
    if len(raw) > 8:
        noise = data.draw(st.binary(min_size=1, max_size=64))
        at = data.draw(st.integers(4, len(raw) - 1))
        raw[at : at + len(noise)] = noise[: len(raw) - at]
    values, text = decode(bytes(raw))
    assert values is not None or text
    if len(raw) < len(whole):
        assert values is None


@given(st.sampled_from(tuple(STRUCTURES)), st.integers(0, 254), st.integers(0, 2**64 - 2))
def test_what_is_encoded_is_decoded(version: str, degrees: int, energy: int) -> None:
    values, _ = decode(blob(version, {"temperature_hotspot": degrees, "energy_accumulator": energy}))
    assert values is not None
    assert (values["temp_hot"], values["energy"]) == (degrees, energy)


def test_the_energy_counts_in_the_kernels_unit() -> None:
    assert pytest.approx(15.259e-6, rel=1e-4) == ENERGY_J


REAL = os.environ.get("EKVI_REAL_DATA", "")


@pytest.mark.skipif(not REAL, reason="EKVI_REAL_DATA names no folder of real captures")
def test_tables_with_values_of_real_cards() -> None:
    folder = Path(REAL, "telemetry", "amd-synthetic")
    found = {path.name.split("_recon")[0]: decode(path.read_bytes()) for path in folder.glob("*.bin")}
    w7900, mi300x, by_attributes = (found[name][0] for name in sorted(found))
    assert w7900 is not None
    assert (w7900["power_average"], w7900["gfx"], w7900["umc"], w7900["gfxclk"]) == (9, 0, 1, [3])
    assert w7900["temp_hot"] is None
    assert mi300x is not None
    assert (mi300x["power_current"], mi300x["temp_hot"], mi300x["acc"]) == (120, 42, 10657785)
    assert mi300x["gfxclk"] == [160, 160, 160, 160, 159, 159, 158, 159]
    assert by_attributes is not None
    assert by_attributes["energy"] is None
    assert (by_attributes["power_current"], by_attributes["ppt"]) == (194, 633093)
