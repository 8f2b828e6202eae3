"""Decimation, scales, ticks and braille: for any floats whatever."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.tui.widgets.plot import Canvas, Columns, Scale, Stroke, braille, scale_of, ticks

ANY = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.lists(st.tuples(ANY, ANY), max_size=60)
SIZE = st.tuples(st.integers(0, 30), st.integers(0, 12))
_LEFT, _RIGHT = 0x01 | 0x02 | 0x04 | 0x40, 0x08 | 0x10 | 0x20 | 0x80


def _columns(points: list[tuple[float, float]], width: int, low: float, high: float) -> Columns:
    columns = Columns(width, low, high)
    columns.extend([x for x, _ in points], [y for _, y in points])
    return columns


def _drawn(canvas: Canvas) -> set[int]:
    """The dot columns that hold a dot."""
    out: set[int] = set()
    for row in canvas.dots:
        for col, bits in enumerate(row):
            out |= {2 * col} if bits & _LEFT else set()
            out |= {2 * col + 1} if bits & _RIGHT else set()
    return out


@given(POINTS, SIZE, ANY, ANY, st.booleans(), st.booleans())
def test_any_floats_give_a_canvas_of_the_asked_shape(
    points: list[tuple[float, float]], size: tuple[int, int], a: float, b: float, log: bool, robust: bool
) -> None:
    width, height = size
    columns = _columns(points, 2 * width, min(a, b), max(a, b))
    canvas = braille([Stroke(columns, 1)], width, height, scale_of([columns], log=log, robust=robust))
    assert [len(row) for row in canvas.dots] == [width] * height
    assert [len(canvas.text(y)) for y in range(height)] == [width] * height


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=60), st.integers(1, 30), st.integers(1, 12))
def test_every_column_with_a_finite_value_is_drawn(
    points: list[tuple[float, float]], width: int, height: int
) -> None:
    xs = [x for x, _ in points]
    columns = _columns(points, 2 * width, min(xs), max(xs))
    expected = {columns.column(x) for x in xs}
    canvas = braille([Stroke(columns, 1)], width, height, scale_of([columns]))
    assert expected <= _drawn(canvas)


@given(st.lists(st.tuples(st.floats(0, 100), ANY), max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_growing_in_steps_gives_the_same_columns_as_at_once(
    points: list[tuple[float, float]], cuts: list[int]
) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    whole = _columns(points, 40, 0, 100)
    grown = Columns(40, 0, 100)
    for cut in [*sorted(cuts), len(xs)]:
        grown.extend(xs[:cut], ys[:cut])
    for name in ("low", "high", "first", "last"):
        assert repr(getattr(grown, name)) == repr(getattr(whole, name))


def test_a_single_spike_among_many_points_is_kept() -> None:
    points = [(float(i), 1.0) for i in range(10_000)]
    points[5_000] = (5_000.0, 9.0)
    columns = _columns(points, 100, 0, 9_999)
    assert max(h for h in columns.high if not math.isnan(h)) == 9.0


def test_a_gap_breaks_the_line() -> None:
    nan = math.nan
    columns = _columns([(0, 1.0), (10, 1.0), (20, nan), (30, 1.0), (40, 1.0)], 41, 0, 40)
    drawn = _drawn(braille([Stroke(columns, 1)], 21, 4, Scale(0, 2)))
    assert 15 not in drawn or 25 not in drawn
    assert {0, 5, 10, 30, 35, 40} <= drawn


@pytest.mark.parametrize("count", [2, 3, 4])
def test_of_equal_lines_each_is_seen(count: int) -> None:
    points = [(float(i), float(i % 7)) for i in range(60)]
    strokes = [Stroke(_columns(points, 60, 0, 59), 1) for _ in range(count)]
    canvas = braille(strokes, 30, 6, Scale(0, 7))
    owners = {o for row in canvas.owner for o in row}
    assert owners == {-1, *range(count)}


def test_a_current_run_hides_an_earlier_one_whatever_the_order() -> None:
    columns = _columns([(0, 1.0), (9, 1.0)], 10, 0, 9)
    for strokes in ([Stroke(columns, 1), Stroke(columns, 2)], [Stroke(columns, 2), Stroke(columns, 1)]):
        canvas = braille(strokes, 5, 2, Scale(0, 2))
        best = max(range(2), key=lambda i: strokes[i].rank)
        assert {o for row in canvas.owner for o in row} == {-1, best}


@given(FINITE, FINITE, st.integers(1, 20), st.booleans())
def test_ticks_are_few_rising_and_inside(a: float, b: float, count: int, log: bool) -> None:
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, count, log=log)
    assert len(found) <= count + 2
    assert found == sorted(found)
    assert all(low <= v <= high for v in found)


@pytest.mark.parametrize(
    ("low", "high", "count", "log", "expected"),
    [
        (0.0, 10.0, 5, False, [0, 2, 4, 6, 8, 10]),
        (2.6, 7.1, 5, False, [3, 4, 5, 6, 7]),
        (11_430, 12_220, 4, False, [11_600, 11_800, 12_000, 12_200]),
        (0.001, 1000.0, 8, True, [0.001, 0.01, 0.1, 1, 10, 100, 1000]),
        (5.0, 5.0, 4, False, []),
        (math.nan, 1.0, 4, False, []),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, log: bool, expected: list[float]) -> None:
    assert ticks(low, high, count, log=log) == pytest.approx(expected)


def test_one_stalled_step_does_not_flatten_the_others() -> None:
    points = [(float(i), 100.0 + i % 5) for i in range(100)]
    points[50] = (50.0, 1.0)
    columns = _columns(points, 100, 0, 99)
    assert scale_of([columns], robust=True).low > 90
    assert scale_of([columns]).low < 1


def test_a_constant_line_has_a_scale_around_it() -> None:
    for value in (0.0, 5.0, -3.0, sys.float_info.max, -sys.float_info.max):
        scale = scale_of([_columns([(0, value), (1, value)], 4, 0, 1)])
        assert scale.low < scale.high
        assert scale.low <= value <= scale.high


def test_a_value_without_a_logarithm_is_left_out() -> None:
    columns = _columns([(0, -1.0), (5, 0.0), (9, 10.0)], 10, 0, 9)
    canvas = braille([Stroke(columns, 1)], 5, 4, scale_of([columns], log=True))
    assert _drawn(canvas) == {9}
