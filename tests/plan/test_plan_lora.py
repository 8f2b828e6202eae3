"""How a fine-tuning is started: torchrun for several processes, shared by the nodes."""

from __future__ import annotations

import pytest

from cockpit.config import load
from cockpit.core.errors import ConfigError
from cockpit.plan import make_plan


def test_the_shipped_profile_prepares_alone_and_trains_with_as_many_processes_as_asked() -> None:
    (run,) = make_plan(load("lora-local", ["runner.processes=4"]), group="g").runs
    assert [(stage.stage, stage.processes) for stage in run.stages] == [("data", 1), ("train", 4), ("wrap", 1)]
    assert run.config["runner"]["name"] == "lora"


def test_nodes_that_cannot_share_the_processes_are_refused_by_the_key() -> None:
    words = ["servers.local.nodes=[h1,h2]", "runner.processes=3"]
    with pytest.raises(ConfigError, match=r"runner.processes: 3 processes cannot be shared evenly by the 2 nodes"):
        make_plan(load("lora-local", words), group="g")
