"""A calibrated server against its class: what is told, what is not known, and which card is slow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.metrics.compare import compare
from cockpit.metrics.specs import gpu_spec
from cockpit.metrics.standing import standing
from cockpit.metrics.summary import summarise
from cockpit.report import markdown, summary_text, text
from tests.metrics.made import columns, meta, side, told

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


def calibration(
    device: str = H200, *speeds: float, precision: str = "bf16", **rates: dict[str, Any]
) -> dict[str, Any]:
    """The data of a `calibrate` diagnostic as the runner says it."""
    each = speeds or (742.0,)
    devices = [
        {"rank": i, "host": "h", "gpu": i, "uuid": f"u{i}", precision: {"value": v}} for i, v in enumerate(each)
    ]
    main = {"value": sorted(each)[len(each) // 2], "unit": "TFLOP/s", "least": min(each), "greatest": max(each)}
    return {
        "schema": "ekvi.calibrate/1", "matmul_tflops": main["value"], "precision": precision, "device": device,
        "processes": len(each), "rates": {precision: main, **rates}, "devices": devices,
    }  # fmt: skip


def headline(*found: dict[str, Any], model: str | None = None) -> str:
    got = standing(found, model)
    assert got is not None
    return str(got["headline"])


def test_a_card_that_others_measured_is_held_against_that_and_against_its_data_sheet() -> None:
    said = headline(calibration(H200, 776 * 0.82))
    assert said.startswith("this node is at 82 % of its class: 776 TFLOP/s in bf16 were measured on another H200 SXM")
    assert "8192^3" in said
    assert said.endswith("; 64 % of its data sheet's 989.4 TFLOP/s dense bf16, which products seldom reach")


def test_a_card_that_nobody_measured_is_held_against_its_data_sheet_alone() -> None:
    assert headline(calibration(H100, 742.0)) == (
        "this node is at 75 % of its class by the data sheet: 989.4 TFLOP/s dense bf16 (H100 SXM5), which products"
        " seldom reach"
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (calibration("AMD Radeon Graphics"), "no class figure: AMD Radeon Graphics is not in gpu_specs.csv"),
        (calibration("cpu", 0.1, precision="fp32"), "no class figure: gpu_specs.csv holds GPUs, and this is a CPU"),
        (
            calibration(H200, 50.0, precision="fp32"),
            "no class figure for fp32: gpu_specs.csv gives none for H200 SXM",
        ),
        (
            {"matmul_tflops": None, "matmul_why": "no fp8 here", "precision": "fp8", "device": H200},
            "no rate of fp8 products was found: no fp8 here",
        ),
    ],
)
def test_what_is_not_known_says_why_and_names_the_table(found: dict[str, Any], said: str) -> None:
    assert headline(found) == said


def test_a_name_that_torch_does_not_know_is_taken_from_telemetry() -> None:
    assert "(MI300X)" in headline(calibration("AMD Radeon Graphics", 650.0), model="AMD Instinct MI300X")


def test_each_rate_has_its_own_share() -> None:
    copy = {"value": 3936.0, "unit": "GB/s"}
    fp8 = {"value": 1187.0, "unit": "TFLOP/s", "format": "e4m3fn"}
    reduce = {"value": 360.0, "unit": "GB/s", "processes": 8, "collective": "nccl", "library": "2.27.3"}
    got = standing([calibration(H200, 742.0, copy=copy, fp8=fp8, all_reduce=reduce)], None)
    assert got is not None
    found = {f["name"]: f for f in got["figures"]}
    assert found["copy"]["of_spec"] == pytest.approx(0.82)
    assert found["fp8"]["of_spec"] == pytest.approx(0.6, abs=1e-3)
    assert found["fp8"]["what"] == "fp8 (e4m3fn) products"
    assert found["all_reduce"]["what"] == "all-reduce over 8 processes (nccl 2.27.3, bus rate)"
    assert found["all_reduce"]["of_spec"] is None


def test_the_slow_card_is_named_and_the_even_ones_are_not() -> None:
    got = standing([calibration(H200, 740.0, 735.0, 560.0, 745.0)], None)
    assert got is not None
    (slow,) = got["slow"]
    assert slow["text"] == "GPU 2 of h (rank 2, u2)"
    assert slow["below"] == pytest.approx(1 - 560 / 740)
    even = standing([calibration(H200, 740.0, 735.0, 745.0)], None)
    assert even is not None
    assert not even["slow"]
    assert even["spread"] == pytest.approx(10 / 740)


def test_of_several_calibrations_the_median_counts() -> None:
    got = standing([calibration(H200, v) for v in (700.0, 720.0, 500.0)], None)
    assert got is not None
    assert got["figures"][0]["value"] == 700.0
    assert got["calibrations"] == 3


def test_no_calibration_is_none_and_one_of_before_has_its_products() -> None:
    assert standing([], H200) is None
    old = standing([{"matmul_tflops": 742.0, "precision": "bf16", "device": H200}], None)
    assert old is not None
    assert [f["value"] for f in old["figures"]] == [742.0]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("rates", "devices", "precision", "device", "matmul_tflops", "processes")


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.dictionaries(st.sampled_from(["bf16", "copy"]), JSON))
def test_what_a_program_says_never_breaks_a_summary(said: dict[str, Any], rates: dict[str, Any]) -> None:
    for one in (said, {**said, "precision": "bf16", "rates": rates, "devices": [rates, rates]}):
        summary = summarise(meta(), columns([]), (), [told("calibrate", **one)])
        assert summary_text(summary)


def test_the_table_s_measured_products_are_read() -> None:
    mi300x, nvl = gpu_spec("AMD Instinct MI300X"), gpu_spec("NVIDIA H200 NVL")
    assert mi300x is not None
    assert nvl is not None
    assert (mi300x.measured["fp8"].tflops, mi300x.mem_bw_gb_s) == (1159.0, 5300.0)
    assert mi300x.measured["fp8"].where.startswith("8192^3, ")
    assert {p: m.tflops for p, m in nvl.measured.items()} == {"bf16": 853.0, "fp8": 1661.0}
    half = gpu_spec("AMD Instinct MI250X")
    assert half is not None
    assert half.mem_bw_gb_s == 3277.0 / 2


def test_show_and_compare_say_where_a_side_stands() -> None:
    found = calibration(H200, 740.0, 735.0, 560.0, 745.0)
    shown = " ".join(summary_text(summarise(meta(), columns([]), (), [told("calibrate", **found)])).split())
    assert "Calibrated: this node is at 95 % of its class" in shown
    assert "slow: GPU 2 of h (rank 2, u2), bf16 products 560.0, 24 % below the median" in shown
    sides = [side("left", [4000, 4040, 3960]), side("right", [4000, 4040, 3960])]
    for run in sides[0].runs:
        dict_of = run.summary["provenance"]
        dict_of["calibrate"] = found
    document = compare(sides)
    assert document["sides"][0]["calibration"]["class"] == "H200 SXM"
    assert document["sides"][1]["calibration"] is None
    for rendered in (text(document), markdown(document)):
        assert "this node is at 95 % of its class" in " ".join(rendered.split())
