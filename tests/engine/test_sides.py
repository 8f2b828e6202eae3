"""Which runs make a side of a comparison."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cockpit.core.errors import UsageError
from cockpit.core.events import Iteration
from cockpit.engine.sides import run_facts, sides_of
from cockpit.store.store import Store
from tests.store.conftest import make_plan

ONE, TWO = "20260131-093000-duel-4f2a", "20260201-093000-duel-77aa"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two groups that ended; the second one swept."""
    made = Store(tmp_path / "runs")
    for group in (ONE, TWO):
        plan = make_plan(group)
        if group == ONE:
            queue = plan.queues[0]
            runs = tuple(dataclasses.replace(r, sweep={}) for r in queue.runs)
            plan = dataclasses.replace(plan, queues=(dataclasses.replace(queue, runs=runs),))
        made.create(plan, {"q1": {}})
        for run in made.group(group).runs:
            made.run_dir(run).update_meta(state="SUCCEEDED")
    return made


def names(store: Store, *words: str) -> dict[str, list[str]]:
    """Sides by name, each with its runs less the group's id."""
    return {s.name: [r.id.partition(".")[2] for r in s.runs] for s in sides_of(store, words)}


def test_a_group_has_a_side_for_each_server(store: Store) -> None:
    assert names(store, ONE) == {"left": ["left.r1", "left.r2"], "right": ["right.r1", "right.r2"]}


def test_a_server_or_a_run_of_a_group_is_a_side_too(store: Store) -> None:
    assert names(store, f"{ONE}:right", f"{ONE}.left.r1") == {"right": ["right.r1", "right.r2"], "left": ["left.r1"]}
    assert set(names(store, f"{ONE}.left.r1", f"{ONE}.left.r2")) == {f"{ONE}.left.r1", f"{ONE}.left.r2"}


def test_a_swept_point_is_in_the_name_and_the_group_where_names_clash(store: Store) -> None:
    point = "training.learning_rate=1e-4"
    assert set(names(store, TWO)) == {f"left|{point}", f"right|{point}"}
    other = "20260301-093000-duel-88bb"
    store.create(make_plan(other), {"q1": {}})
    for run in store.group(other).runs:
        store.run_dir(run).update_meta(state="SUCCEEDED")
    assert set(names(store, f"{TWO}:left", f"{other}:left")) == {f"{TWO}:left|{point}", f"{other}:left|{point}"}


def test_an_unknown_server_names_the_nearest(store: Store) -> None:
    with pytest.raises(UsageError, match=r"no server 'rihgt'") as caught:
        sides_of(store, [f"{ONE}:rihgt"])
    assert "right" in str(caught.value.hint)


def test_a_run_that_has_not_ended_has_no_figures_yet(store: Store) -> None:
    run = f"{ONE}.left.r1"
    store.run_dir(run).update_meta(state="RUNNING")
    with pytest.raises(UsageError, match="is RUNNING: its figures are known when it has ended"):
        run_facts(store, run)


def test_a_summary_that_is_missing_is_made_from_the_journal(store: Store) -> None:
    run = f"{ONE}.left.r1"
    journal = store.run_dir(run).journal()
    journal.append([Iteration(step=i, loss=2.0, step_s=0.5, tokens=100, offset=i) for i in (1, 2, 3)])
    assert run_facts(store, run).metric("tokens_per_s") == pytest.approx(200.0)
