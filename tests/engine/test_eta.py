"""How long a group will still take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.events import Iteration, State, StateChange
from cockpit.core.state import RunState, reduce
from cockpit.engine.eta import eta_s


def _run(queue: str = "q", *, steps: int = 0, total: int = 10, step_s: float = 2.0, began: float = 100.0) -> RunState:
    """A run that began at `began`, took 5 s to its first iteration and has done `steps`."""
    state = RunState(run=f"{queue}.{steps}", queue=queue)
    if steps:
        reduce(state, StateChange(state=State.RUNNING, t=began))
    for step in range(1, steps + 1):
        reduce(state, Iteration(step=step, total=total, step_s=step_s, t=began + 5 + step * step_s))
    return state


def _done(queue: str, took: float) -> RunState:
    state = RunState(run="done", queue=queue)
    reduce(state, StateChange(state=State.RUNNING, t=0.0))
    reduce(state, StateChange(state=State.SUCCEEDED, t=took))
    return state


def test_nothing_known_is_none() -> None:
    assert eta_s([RunState(run="a", queue="q")]) is None


def test_a_running_run_counts_its_remaining_iterations() -> None:
    assert eta_s([_run(steps=4)]) == pytest.approx(6 * 2.0)


def test_a_waiting_run_takes_what_the_running_one_takes_start_up_included() -> None:
    waiting = RunState(run="b", queue="q")
    assert eta_s([_run(steps=4), waiting]) == pytest.approx(12 + 25)


def test_a_finished_run_tells_how_long_the_waiting_ones_take() -> None:
    assert eta_s([_done("q", 40.0), RunState(run="b", queue="q"), RunState(run="c", queue="q")]) == pytest.approx(80)


def test_queues_go_on_side_by_side() -> None:
    runs = [_done("a", 40.0), RunState(run="x", queue="a"), _done("b", 10.0), RunState(run="y", queue="b")]
    assert eta_s(runs) == pytest.approx(40)


def test_slots_of_one_queue_work_side_by_side() -> None:
    waiting = [RunState(run=str(i), queue="q", slots=2) for i in range(4)]
    done = _done("q", 40.0)
    assert eta_s([done, *waiting]) == pytest.approx(80)


@given(st.lists(st.integers(0, 10), min_size=1, max_size=4), st.floats(0.01, 100))
def test_it_is_never_negative(steps: list[int], step_s: float) -> None:
    found = eta_s([_run(f"q{i}", steps=n, step_s=step_s) for i, n in enumerate(steps)])
    assert found is None or found >= 0
