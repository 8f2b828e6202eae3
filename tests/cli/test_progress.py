"""What headless faces print."""

from __future__ import annotations

import json

import pytest

from cockpit.cli.commands.compare import within
from cockpit.cli.jsonlines import JsonLines, extras
from cockpit.cli.progress import Bars, Plain, duration, ending, last_lines
from cockpit.cli.tables import print_table
from cockpit.core.errors import UsageError
from cockpit.core.events import Diagnostic, Event, Iteration, State, StateChange
from cockpit.core.state import RunState, reduce
from cockpit.core.text import size
from cockpit.engine.observer import GroupInfo, Observer, Outcome


def _play(face: Observer, events: list[Event]) -> None:
    state = RunState(run="g.left.r1", group="g", server="left", queue="q")
    face.begin(GroupInfo("g", "toy", "nord", (state,), live=True))
    for event in events:
        reduce(state, event)
        face.event(state.run, event)
    face.log(state.run, 0, b"caf\xc3\xa9\n")
    face.log(state.run, 6, b"\xff\n")
    face.tick(state.run, {"type": "tick", "seq": 1, "t_wall_ns": 2_000_000_000})
    face.end(Outcome("g", "FAILED", 1))


EVENTS: list[Event] = [
    StateChange(state=State.RUNNING, stage="train", t=1.0),
    Iteration(step=1, total=2, loss=2.5, step_s=0.5, tokens=1000, t=2.0),
    Iteration(step=2, total=2, step_s=0.5, t=2.5),
    Diagnostic(level="error", code="error", message="out of memory"),
    StateChange(state=State.FAILED, signal=9, t=3.0, data={"tail": ["@ekvi {}", "last words"]}),
]


def test_plain_lines_say_states_numbers_errors_and_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    _play(Plain(), EVENTS)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "group g: 1 run",
        "left #1: RUNNING train",
        "left #1: 1/2  loss 2.500  2,000 tok/s",
        "left #1: 2/2",
        "left #1: error: out of memory",
        "left #1: FAILED signal 9",
        "  | last words",
        "group g: FAILED",
    ]


def test_bars_keep_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    _play(Bars(), EVENTS)
    said = capsys.readouterr()
    assert said.out == ""
    assert "left #1: FAILED signal 9" in said.err
    assert "last words" in said.err


def test_json_lines_leave_log_and_gpu_out_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    _play(JsonLines(extras("")), EVENTS)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["state", "iteration", "iteration", "diagnostic", "state", "group"]
    assert lines[-1] == {"type": "group", "id": "g", "runs": ["g.left.r1"], "state": "FAILED"}


def test_json_lines_carry_log_and_gpu_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    _play(JsonLines(extras("log,gpu")), [])
    text, raw, gpu, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (text["type"], text["text"], raw["offset"], raw["base64"]) == ("log", "café\n", 6, "/wo=")
    assert (gpu["type"], gpu["t"], gpu["sample"]["type"]) == ("gpu", 2.0, "tick")


def test_an_unknown_extra_is_refused() -> None:
    with pytest.raises(UsageError, match="gup"):
        extras("log,gup")


@pytest.mark.parametrize(("seconds", "shown"), [(None, "-"), (0, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_durations(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("by", "shown"), [(None, "-"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes(by: int | None, shown: str) -> None:
    assert size(by) == shown


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), (" 2.5 % ", 0.025)])
def test_within(text: str, share: float) -> None:
    assert within(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "x", "-1%", "0", "60%", "1%%"])
def test_within_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--within"):
        within(text)


def test_an_exit_without_a_signal_says_its_code() -> None:
    state = RunState(run="r", state=State.FAILED, exit_code=3, reason="stage train ended")
    assert ending(state) == "FAILED exit 3 (stage train ended)"
    assert last_lines(StateChange(state=State.FAILED)) == []


def test_a_column_without_a_value_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"a": 1, "b": None}, {"a": 22, "b": None}], "none")
    assert capsys.readouterr().out == "A\n1\n22\n"


@pytest.mark.parametrize("face", [Plain, Bars])
def test_the_last_step_of_a_run_has_no_time_left(face: type[Observer], capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[Event] = [Iteration(step=n, total=3, step_s=100.0, t=100.0 * n) for n in (1, 2)]
    _play(face(), [EVENTS[0], *steps])
    before = capsys.readouterr().err
    assert "ETA 1:40" in before or face is Bars  # a terminal shows the last state alone
    _play(face(), [EVENTS[0], *steps, Iteration(step=3, total=3, step_s=100.0, t=300.0)])
    assert "ETA" not in capsys.readouterr().err.splitlines()[-2]


@pytest.mark.parametrize("face", [Plain, Bars])
def test_the_last_lines_of_a_run_that_was_stopped_are_not_shown(
    face: type[Observer], capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = StateChange(state=State.CANCELLED, reason="stopped by the user", data={"tail": ["some line"]})
    _play(face(), [EVENTS[0], stopped])
    said = capsys.readouterr().err
    assert "CANCELLED (stopped by the user)" in said
    assert "some line" not in said


def test_who_holds_the_slot_is_told_in_whole_above_the_bars(capsys: pytest.CaptureFixture[str]) -> None:
    held = "waits for slot default, held by run 20261121-062302-duel-34e1.cuda-host.r1"
    _play(Bars(), [StateChange(state=State.PENDING, reason=r) for r in ("waits for its turn", held)])
    said = capsys.readouterr().err
    assert f"left #1: {held}\n" in said
    assert "its turn" not in said
