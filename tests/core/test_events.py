"""Events keep what they say through JSON, and a run's state follows them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.events import Artifact, Diagnostic, Event, Iteration, State, StateChange, from_json
from cockpit.core.state import RunState, reduce

_float = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_iterations = st.builds(
    Iteration,
    run=st.just("r"),
    seq=st.integers(0, 10**6),
    t=_float,
    t_recv=_float,
    offset=st.none() | st.integers(0, 10**12),
    step=st.integers(0, 10**7),
    total=st.none() | st.integers(1, 10**7),
    loss=_float,
    step_s=_float,
    tokens=st.none() | st.integers(0, 10**9),
    samples=st.none() | st.integers(0, 10**6),
    lr=_float,
    grad_norm=_float,
    extra=st.dictionaries(st.text(max_size=8), _float, max_size=3),
)


@given(_iterations)
def test_an_iteration_survives_json(event: Event) -> None:
    assert from_json(json.loads(json.dumps(event.to_json()))) == event


def test_the_keys_of_an_iteration_are_the_designs() -> None:
    keys = list(Iteration(step=3, offset=10).to_json())
    assert keys == [
        "seq", "t", "t_recv", "run", "type", "step", "total", "loss", "step_s", "tokens", "samples", "lr",
        "grad_norm", "extra", "offset",
    ]  # fmt: skip


def test_an_unknown_event_type_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        from_json({"type": "nonsense"})


def test_a_finished_run_stays_finished() -> None:
    state = RunState(run="r")
    reduce(state, StateChange(state=State.RUNNING, t=1.0))
    reduce(state, StateChange(state=State.FAILED, t=2.0, signal=9))
    reduce(state, StateChange(state=State.RUNNING, t=3.0))
    assert (state.state, state.signal, state.started_t, state.ended_t) == (State.FAILED, 9, 1.0, 2.0)


def test_unknown_values_do_not_become_zero() -> None:
    state = reduce(RunState(run="r"), Iteration(step=1))
    assert state.tokens_per_s is None
    assert state.series.loss[0] != state.series.loss[0]  # NaN: not a number that a mean would take in


def test_a_run_that_warns_at_every_step_does_not_fill_the_memory() -> None:
    state = RunState(run="r")
    warning = Diagnostic(level="warning", code="nan", message="not finite")
    for _ in range(3000):
        reduce(state, warning)
    reduce(state, Diagnostic(level="info", code="result", message="done"))
    assert len(state.diagnostics) == 1001
    assert state.diagnostics[-1].code == "result"
    assert (state.told["nan"], state.events) == (3000, 3001)
    for _ in range(21_000):
        reduce(state, Artifact(path="x"))
    assert len(state.artifacts) == 20_000
