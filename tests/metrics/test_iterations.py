"""Logs that tell some of their steps only: what a line stands for, and the speed that follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.events import Iteration
from cockpit.core.state import Series
from cockpit.metrics.iterations import passed, stands_for
from cockpit.metrics.summary import summarise
from cockpit.parse.stream import Declared, StreamParser
from tests.metrics.made import columns, meta


@pytest.mark.parametrize(
    ("step", "stands"),
    [
        ([1, 2, 3, 4], [1, 1, 1, 1]),
        ([10, 20, 30], [10, 10, 10]),
        ([1, 10, 20, 30], [1, 9, 10, 10]),
        ([501, 502, 503], [1, 1, 1]),
        ([1010, 1020, 1030], [10, 10, 10]),
        ([1, 2, 3, 400, 401], [1, 1, 1, 1, 1]),
        ([1, 2, 3, 40, 41, 42, 79, 80], [1, 1, 1, 1, 1, 1, 1, 1]),
        ([10, 20, 50, 60, 70], [10, 10, 10, 10, 10]),
        ([80, 90, 100, 90, 100], [10, 10, 10, 10, 10]),
        ([1, 2, 3, 4, 14, 24], [1, 1, 1, 1, 10, 10]),
        ([7], [1]),
        ([0, 1, 2], [1, 1, 1]),
        ([], []),
        ([1, np.nan, 3, 4, 5], [1, 1, 1, 1, 1]),
    ],
    ids=str,
)
def test_what_each_line_stands_for(step: list[float], stands: list[float]) -> None:
    assert stands_for(np.array(step, dtype=np.float64)).tolist() == stands


def test_after_a_restart_a_line_passes_the_steps_that_it_stands_for() -> None:
    step = np.array([80.0, 90.0, 100.0, 60.0, 70.0])
    assert passed(step, stands_for(step)).tolist() == [10, 10, 10, 10, 10]


def test_a_slow_first_step_that_is_told_alone_weighs_as_one_step() -> None:
    took = np.array([20.0, *[0.5] * 30])  # step 1 alone, then each tenth step with the mean of its ten
    table = {**columns(took), "step": np.array([1.0, *np.arange(11.0, 302.0, 10.0)])}
    found = summarise(meta(), table)["metrics"]["tokens_per_s"]
    assert found["value"] == pytest.approx(301 * 1024 / (20 + 300 * 0.5))


@given(st.integers(2, 25), st.lists(st.floats(0.1, 3.0), min_size=60, max_size=200))
def test_the_mean_of_every_nth_step_gives_the_speed_of_all_steps(every: int, took: list[float]) -> None:
    whole = np.array(took[: len(took) // every * every])
    every_nth = {n: c[every - 1 :: every] for n, c in columns(whole).items()}
    every_nth["step_s"] = whole.reshape(-1, every).mean(axis=1)
    found = summarise(meta(), every_nth)
    if found["iterations"]["warmup_dropped"] == 0:
        assert found["metrics"]["tokens_per_s"]["value"] == pytest.approx(1024 * whole.size / whole.sum())


def test_a_log_that_tells_every_tenth_step_lacks_none_of_them() -> None:
    every_tenth = {n: c[9::10] for n, c in columns(np.full(200, 0.5)).items()}
    note = summarise(meta(total=200), every_tenth)["iterations"]["note"]
    assert note.startswith("a line of the log stands for 10 iterations")
    holed = {n: np.delete(c, 7) for n, c in every_tenth.items()}
    assert summarise(meta(total=200), holed)["iterations"]["note"].startswith("10 iterations are not in the log")


def logged(text: str, declared: Declared) -> dict[str, Any]:
    """The columns that a log gives."""
    parser, series = StreamParser(declared), Series()
    for event in parser.feed(text.encode(), 0) + parser.finish():
        if isinstance(event, Iteration):
            series.append(event)
    return {name: np.array(getattr(series, name)) for name in ("step", "loss", "step_s", "tokens", "t")}


def test_the_speed_of_a_torchtitan_log_is_that_of_all_its_steps() -> None:
    """It tells step 1 and each tenth with the mean of those since the line before."""
    seconds, text = 0.0, ""
    for step in range(1, 201):
        seconds += 2.0 if step <= 10 or 100 < step <= 110 else 0.25
        if step == 1 or step % 10 == 0:
            stamp = f"2026-05-18 16:{int(seconds // 60):02}:{seconds % 60:06.3f}".replace(".", ",")
            text += f"[titan] {stamp} - root - INFO - step: {step:2}  loss:  3.2  grad_norm:  0.8  tps: 7,282\n"
    found = summarise(meta(), logged(text, Declared(sequence_length=1024, global_batch=8)))["metrics"]
    timed = seconds - 2.0  # the first line has no line before it
    assert found["tokens_per_s"]["value"] == pytest.approx(199 * 8192 / timed, rel=1e-6)


def test_the_speed_of_a_nemo_log_weighs_each_line_by_the_steps_it_stands_for() -> None:
    head, tail = (
        "Training epoch 0, iteration {}/99 | lr: 1e-4 | global_batch_size: 4",
        " | train_step_timing in s: {}\n",
    )
    line = head + " | global_step: {}" + tail
    told = [(0, 9.0), *((n, 1.0) for n in range(9, 100, 10))]
    text = "".join(line.format(n, n, took) for n, took in told)
    found = summarise(meta(), logged(text, Declared(sequence_length=100)))["metrics"]
    assert found["tokens_per_s"]["value"] == pytest.approx(100 * 400 / (9 + 99 * 1.0))
