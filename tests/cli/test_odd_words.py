"""Words of a training that are no words: they reach no terminal as commands, and break no face."""

from __future__ import annotations

import json

import pytest

from cockpit.cli import say_error
from cockpit.cli.jsonlines import JsonLines
from cockpit.cli.progress import Bars, Plain
from cockpit.core.errors import ServerError
from cockpit.core.events import Diagnostic, Event, Iteration, Stage, State, StateChange
from cockpit.core.state import RunState, reduce
from cockpit.engine.observer import GroupInfo, Observer, Outcome

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b1m"
EVENTS: list[Event] = [
    Stage(stage=f"train[/red][bold]{EVIL}", status="start"),
    Diagnostic(level="error", code="error", message=f"first [/b] {EVIL}"),
    StateChange(state=State.STALLED, reason=f"said {EVIL}", data={"tail": [f"last {EVIL}"]}),
]


def _play(face: Observer, events: list[Event]) -> None:
    state = RunState(run="g.left.r1", group="g", server="left", queue="q", sweep={"data.name": f"[/x]{EVIL}"})
    face.begin(GroupInfo("g", "toy", "nord", (state,), live=True))
    for event in events:
        reduce(state, event)
        face.event(state.run, event)
    face.note("warning", f"a server said {EVIL}")
    face.end(Outcome("g", "FAILED", 1))


@pytest.mark.parametrize("face", [Plain, Bars, lambda: JsonLines(frozenset())], ids=["plain", "bars", "json"])
def test_what_a_training_says_steers_no_terminal(face: type[Plain], capsys: pytest.CaptureFixture[str]) -> None:
    _play(face(), EVENTS)
    said = capsys.readouterr()
    shown = said.out + said.err
    assert "a server said" in shown
    assert "first [/b]" in shown
    for sign in ("\x1b]", "\x1b[2J\r", "\x07", "\x9b"):
        assert sign not in shown


def test_an_error_that_quotes_a_server_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(ServerError(f"it said {EVIL}."))
    assert capsys.readouterr().err == "ekvi-cockpit: it said .\n"


def test_a_value_that_json_does_not_know_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    face = JsonLines(frozenset({"gpu"}))
    face.event("r", Iteration(step=1, extra={"x": float("inf"), "y": [float("nan")]}))
    face.tick("r", {"type": "tick", "seq": 0, "t_wall_ns": "odd", "host": {"power_w": float("nan")}})
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["x"] if "x" in first else first["extra"]["x"]) is None
    assert second["t"] is None
    assert second["sample"]["host"]["power_w"] is None
