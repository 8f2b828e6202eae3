"""Numbers as a narrow panel says them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.tui import words
from cockpit.tui.widgets.chart import tick_label


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "inf"),
        (0.0, "0.00"),
        (0.00312, "0.00312"),
        (0.5, "0.500"),
        (3.414, "3.41"),
        (62.0, "62.0"),
        (999.6, "1000"),
        (9_870.0, "9870"),
        (12_000.0, "12.0k"),
        (999_700.0, "1.00M"),
        (4_561_000.0, "4.56M"),
        (-12_000.0, "-12.0k"),
        (1e-9, "1.00e-09"),
        (1e20, "1.00e+20"),
    ],
)
def test_a_number_has_three_digits(value: float | None, text: str) -> None:
    assert words.short(value) == text


@given(st.floats(-1e300, 1e300))
def test_a_short_number_is_short_and_close(value: float) -> None:
    text = words.short(value)
    assert len(text) <= 10
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1.0)
    said = float(text.rstrip("kMGT")) * scale
    assert said == pytest.approx(value, rel=6e-3, abs=1e-300)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "0:00"), (59.6, "1:00"), (185.0, "3:05"), (3723.0, "1:02:03"), (-4.0, "0:00")],
)
def test_a_clock(seconds: float | None, text: str) -> None:
    assert words.clock(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.9, "59 s"), (125.0, "2 min"), (7300.0, "2 h")])
def test_an_age(seconds: float, text: str) -> None:
    assert words.age(seconds) == text


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (12_000, 500, "12.0k"),
        (12_000, 1_000, "12k"),
        (2.5, 0.5, "2.5"),
        (3, 1, "3"),
        (0.001, 0.0005, "0.0010"),
        (2e6, 1e6, "2M"),
        (0.0, 1, "0"),
        (5000.0, 0.0, "5000"),
    ],
)
def test_a_tick_has_the_decimals_of_its_step(value: float, step: float, text: str) -> None:
    assert tick_label(value, step) == text
