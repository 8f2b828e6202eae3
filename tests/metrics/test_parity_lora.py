"""Whether two fine-tunings did the same work: the step's sequences count, not how they are divided."""

from __future__ import annotations

from typing import Any

from cockpit.metrics.iterations import tokens_of
from cockpit.metrics.parity import parity
from cockpit.metrics.sides import RunFacts, Side

RUNNER = {"name": "lora", "r": 16, "batch": 4, "grad_accum": 1, "processes": 8, "strategy": "ddp"}
MODEL = {"parameters": 1000, "trainable": 10, "weights": "ab", "batch_of_all": 32}


def side(name: str, runner: dict[str, Any], model: dict[str, Any], **meta: Any) -> Side:
    """A side of one run."""
    record = {
        "group": "g",
        "state": "SUCCEEDED",
        "config": {"runner": RUNNER | runner},
        "provenance": {"model": MODEL | model},
        **meta,
    }
    return Side(name, [RunFacts(name, {"state": "SUCCEEDED", "metrics": {}}, record)])


def severities(runner: dict[str, Any], model: dict[str, Any] | None = None) -> dict[str, str]:
    """Severity by key, of what differs from the usual run."""
    found = parity([side("a", {}, {}), side("b", runner, model or {})])
    return {difference["key"]: difference["severity"] for difference in found["differences"]}


def test_a_step_of_as_many_sequences_is_the_same_however_it_is_divided() -> None:
    assert severities({"batch": 2, "grad_accum": 2}) == {}
    assert severities({"batch": 8}, {"batch_of_all": 64}) == {"built.batch_of_all": "blocking"}


def test_other_adapters_or_weights_are_other_work_and_another_folder_is_not() -> None:
    assert severities({"r": 8}) == {"runner.r": "blocking"}
    assert severities({"model_local_dir": "/models/a"}, {"weights": "cd"}) == {
        "built.weights": "blocking",
        "runner.model_local_dir": "info",
    }
    both = [side(name, {"model_local_dir": f"/{name}", "report_json": f"/{name}"}, {}) for name in "ab"]
    found = parity(both)
    assert [(d["key"], d["severity"]) for d in found["differences"]] == [("runner.model_local_dir", "info")]
    assert severities({"strategy": "fsdp"}) == {"runner.strategy": "warning"}


def test_a_swept_batch_is_swept_on_purpose() -> None:
    swept = [
        side(f"batch={batch}", {"batch": batch}, {"batch_of_all": 8 * batch}, sweep={"runner.batch": batch})
        for batch in (2, 4)
    ]
    found = parity(swept)
    assert [(d["key"], d["severity"]) for d in found["differences"]] == [("runner.batch", "info")]


def test_tokens_a_second_of_a_fine_tuning_say_that_padding_does_not_count() -> None:
    import numpy as np

    logged = np.array([50.0, 60.0])
    assert tokens_of(logged, {"config": {"runner": {"name": "lora"}}})[1] == "padding is not counted"
    assert tokens_of(logged, {"config": {"runner": {"name": "megatron"}}})[1] is None
