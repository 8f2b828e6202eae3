"""The log's words, told by hand: what a real training seldom does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners import wire
from runners.listeners import Chorus, Listener, Step
from runners.mlperf import lines, listeners
from runners.mlperf.mllog import clear_caches
from runners.schema import LoraRunner

FACTS = {"world": 8, "global_batch": 8, "steps": 1024, "train_samples": 3901, "eval_samples": 173}


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out = capsys.readouterr().out.splitlines()
    return [json.loads(line.removeprefix(lines.MARK)) for line in out if line.startswith(lines.MARK)]


def started(**runner: Any) -> Listener:
    made = Chorus([make() for make in listeners(LoraRunner(**{"mlperf": {}, **runner}))])
    made.started(FACTS)
    return made


def step(number: int, loss: float | None = 1.0) -> Step:
    return Step(number, loss, 0.5, 65536, 8, 4e-4)


def test_without_the_section_nobody_speaks_mlperf() -> None:
    assert listeners(LoraRunner()) == []
    assert len(listeners(LoraRunner(target_loss=0.9))) == 1


def test_every_line_has_the_fields_that_the_checkers_read(capsys: pytest.CaptureFixture[str]) -> None:
    started(target_loss=0.925)
    for event in told(capsys):
        assert list(event) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
        assert event["event_type"] in ("POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END")
        assert isinstance(event["time_ms"], int)
        assert event["metadata"]["file"] == "runners/mlperf/mllog.py"
        assert event["metadata"]["lineno"] > 0


def test_whole_numbers_stay_whole_whether_they_were_said_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    for runner, alpha in (({}, 16), ({"alpha": 32}, 32), ({"alpha": 0.5}, 0.5)):
        started(**runner)
        (event,) = [event for event in told(capsys) if event["key"] == "lora_alpha"]
        assert event["value"] == alpha
        assert type(event["value"]) is type(alpha)


def test_a_training_that_goes_on_has_no_time_to_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    made = Chorus([make() for make in listeners(LoraRunner(mlperf={}, target_loss=0.925))])
    made.started({**FACTS, "done_samples": 384})
    made.step(step(49))
    made.evaluated(49, 0.9, 173, 1000)
    out = capsys.readouterr().out.splitlines()
    events = [json.loads(line.removeprefix(lines.MARK)) for line in out if line.startswith(lines.MARK)]
    assert (events[-1]["key"], events[-1]["metadata"]["status"]) == ("run_stop", "aborted")
    assert events[-1]["metadata"]["samples_count"] == 392
    (said,) = [line["data"] for raw in out if (line := wire.parse(raw.encode())) is not None]
    assert (said["reached"], said["seconds"], said["samples"]) == (True, None, 392)


def test_a_training_that_had_reached_its_target_before_says_so_again(capsys: pytest.CaptureFixture[str]) -> None:
    made = Chorus([make() for make in listeners(LoraRunner(target_loss=0.925))])
    made.started({**FACTS, "done_samples": 392, "reached": True})
    made.finished("success")
    (said,) = [
        line["data"] for raw in capsys.readouterr().out.splitlines() if (line := wire.parse(raw.encode())) is not None
    ]
    assert (said["reached"], said["seconds"]) == (True, None)


def test_a_training_that_breaks_off_is_aborted_once(capsys: pytest.CaptureFixture[str]) -> None:
    listener = started(target_loss=0.925)
    listener.step(step(1))
    listener.finished("aborted")
    listener.finished("aborted")
    stops = [event for event in told(capsys) if event["key"] == "run_stop"]
    assert [(e["metadata"]["status"], e["metadata"]["samples_count"]) for e in stops] == [("aborted", 8)]


def test_an_error_before_the_first_step_says_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    made = [make() for make in listeners(LoraRunner(mlperf={}, target_loss=0.9))]
    for listener in made:
        listener.finished("aborted")
    assert [event["key"] for event in told(capsys)] == ["cache_clear", "init_start"]


def test_a_loss_that_is_no_number_breaks_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    listener = started(target_loss=0.925)
    listener.step(step(10, None))
    listener.evaluating(10)
    listener.evaluated(10, float("nan"), 173, 1000)
    listener.finished("aborted")
    events = told(capsys)
    assert not [event for event in events if event["key"] in ("eval_accuracy", "train_loss")]
    assert events[-1]["metadata"]["status"] == "aborted"


def test_without_a_target_a_training_that_came_to_its_end_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    listener = started()
    listener.finished("success")
    assert told(capsys)[-1]["metadata"]["status"] == "success"


def test_what_is_after_the_target_is_not_the_run_s(capsys: pytest.CaptureFixture[str]) -> None:
    listener = started(target_loss=0.925)
    listener.evaluating(1)
    listener.evaluated(1, 0.9, 173, 1000)
    listener.finished("success")
    keys = [event["key"] for event in told(capsys)]
    assert keys[-1] == "run_stop"
    assert keys.count("run_stop") == 1


def test_caches_are_cleared_only_when_asked_and_what_was_done_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clear_caches(str(tmp_path / "drop_caches"))
    assert (tmp_path / "drop_caches").read_text() == "3"
    assert not clear_caches(str(tmp_path / "nowhere" / "drop_caches"))
    started()
    assert told(capsys)[0]["value"] is False
