"""Will it fit? The estimate before a launch, against what a card holds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cockpit.core.records import RunPlan, StagePlan
from cockpit.engine import checks_memory
from cockpit.hosts.look import Gpus
from runners.compose import compose_run
from runners.sizes import GIB, REFUSED, WARNED
from tests.doctor.made import server

WORDS = ("model=llama31_8b", "training=cuda", "training.sequence_length=8192", "training.micro_batch=1")


def run(*words: str, stage: str = "train", **sweep: str) -> RunPlan:
    config = compose_run(words or WORDS).model_dump(mode="json")
    plan: dict[str, Any] = {"run": "r", "group": "g", "server": "a", "repeat": 1, "launcher": "process"}
    return RunPlan(**plan, sweep=sweep, stages=(StagePlan(stage=stage, argv=("x",)),), config=config)


def gpus(*sizes: int | None, model: str = "NVIDIA H200") -> Gpus:
    return Gpus(len(sizes), (model,) * len(sizes), "570", memory_by=sizes)


def needs() -> int:
    found = checks_memory.estimate([run()])
    assert found is not None
    return found.memory.total


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (1 / WARNED - 0.01, "warn"),
        (1 / WARNED + 0.01, "ok"),
        (1 / REFUSED - 0.01, "fail"),
        (1 / REFUSED + 0.01, "warn"),
    ],
)
def test_what_surely_does_not_fit_is_refused_and_what_hardly_does_is_warned_of(share: float, level: str) -> None:
    (found,) = checks_memory.fit([run()], gpus(int(needs() * share)), server(vendor="nvidia"))
    assert found.level == level
    assert found.check == "gpu memory"
    assert f"takes about {needs() / GIB:.1f} GiB of a GPU (" in found.text
    assert f"which has {needs() * share / GIB:.1f}" in found.text
    assert (found.mend is None) == (level == "ok")


def test_the_parts_are_named_and_the_changes_that_would_help() -> None:
    (found,) = checks_memory.fit([run()], gpus(40 * GIB), server(vendor="nvidia"))
    assert found.level == "fail"
    assert "optimizer 59" in found.text
    assert "gradients 29.9" in found.text
    assert found.mend is not None
    assert found.mend.startswith("What would help: training.")
    assert "saves" in found.mend


def test_the_changes_that_are_proposed_do_what_they_say() -> None:
    card = int(needs() * 1.2)
    tight = (*WORDS, "training.micro_batch=8", "training.global_batch=8")
    (found,) = checks_memory.fit([run(*tight)], gpus(card), server(vendor="nvidia"))
    assert found.level == "fail"
    assert found.mend is not None
    changes = re.findall(r"(training\.\S+=\S+) \(saves", found.mend)
    assert changes
    (found,) = checks_memory.fit([run(*tight, *changes)], gpus(card), server(vendor="nvidia"))
    assert found.level == "ok"


def test_the_largest_point_of_a_sweep_decides_and_is_named() -> None:
    small, large = run(), run(*WORDS, "training.micro_batch=8", **{"training.micro_batch": "8"})
    (found,) = checks_memory.fit([small, large], gpus(needs() * 2), server(vendor="nvidia"))
    assert found.level == "fail"
    assert "llama31_8b with training.micro_batch=8 takes" in found.text


def test_the_smallest_of_the_used_gpus_decides() -> None:
    seen = gpus(80 * GIB, 40 * GIB, 20 * GIB)
    assert checks_memory.capacity(seen, server()) == 20 * GIB
    assert checks_memory.capacity(seen, server(gpus=(0, 1))) == 40 * GIB
    assert checks_memory.capacity(gpus(80 * GIB, None), server(gpus=(0, 1))) == 80 * GIB


def test_a_driver_that_does_not_tell_is_helped_by_the_card_s_name() -> None:
    assert checks_memory.capacity(gpus(None), server()) == 141 * GIB
    assert checks_memory.capacity(gpus(None, model="AMD Instinct MI250X"), server()) == 64 * GIB
    assert checks_memory.capacity(gpus(None, model="Mystery 9000"), server()) is None
    (found,) = checks_memory.fit([run()], gpus(None, model="Mystery 9000"), server(vendor="nvidia"))
    assert (found.level, "is not known" in found.text) == ("ok", True)
    (found,) = checks_memory.fit([run()], None, server(vendor="nvidia"))
    assert found.level == "ok"


def test_nothing_is_said_where_nothing_can_be() -> None:
    seen, there = gpus(GIB), server(vendor="nvidia")
    assert not list(checks_memory.fit([run("runner=lora", "runner.model=some/model")], seen, there))
    assert not list(checks_memory.fit([run(*WORDS, "runner=smoke")], seen, there))
    assert not list(checks_memory.fit([run(stage="data")], seen, there))
    assert not list(checks_memory.fit([], seen, there))
    assert not list(checks_memory.fit([run("model=llama31_8b", "training=cpu")], seen, server(vendor="cpu")))


def test_a_fine_tuning_is_warned_of_and_never_refused() -> None:
    words = ("model=llama31_8b", "training=cuda", "runner=lora", "runner.processes=8", "runner.seq_len=8192")
    (found,) = checks_memory.fit([run(*words)], gpus(24 * GIB), server(vendor="nvidia"))
    assert found.level == "warn"
    assert found.mend is not None
    assert "runner.gradient_checkpointing=true (saves" in found.mend
    assert "runner.strategy=fsdp" in found.mend
    more = ("runner.bf16=true", "runner.gradient_checkpointing=true", "runner.strategy=fsdp")
    (found,) = checks_memory.fit([run(*words, *more)], gpus(24 * GIB), server(vendor="nvidia"))
    assert found.level == "ok"


def test_70_billion_frozen_weights_are_spread_over_eight_gpus() -> None:
    words = ("model=llama2_70b", "model.max_sequence=8192", "training=cuda", "runner=lora", "runner.seq_len=8192")
    more = ("runner.processes=8", "runner.strategy=fsdp", "runner.bf16=true", "runner.gradient_checkpointing=true")
    found = checks_memory.estimate([run(*words, *more, "runner.target_modules=[qkv_proj,o_proj]")])
    assert found is not None
    assert 16 < found.memory.weights / GIB < 22  # an eighth of 128.5 GiB, and what is put together at a time
    assert found.memory.gradients < GIB
    assert 24 < found.memory.total / GIB < 70
    from runners.sizes_lora import adapters

    assert adapters(found.config) == 80 * 16 * ((8192 + 10240) + (8192 + 8192))


def test_a_full_fine_tuning_is_estimated_as_it_was_measured() -> None:
    """Llama-3.2-1B, 4 x 4,096 tokens, fp32 weights under bf16 autocast, SDPA: 71 GiB on an H200."""
    words = ("model=llama32_1b", "training=cuda", "runner=lora", "runner.lora=false", "runner.bf16=true")
    found = checks_memory.estimate([run(*words, "runner.seq_len=4096", "runner.batch=4")])
    assert found is not None
    assert found.memory.total / GIB == pytest.approx(71, rel=0.1)
