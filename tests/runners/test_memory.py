"""The memory estimate: against what was measured, and what it says where a card is too small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runners import sizes, wire
from runners.errors import ConfigurationError
from runners.schema import Model, RunConfig, Training

PROFILES = Path(__file__).parents[2] / "profiles" / "model"
GIB = 2**30
H200_BY = int(139.8 * GIB)


def config(model: str, **training: Any) -> RunConfig:
    told = OmegaConf.to_container(OmegaConf.load(PROFILES / f"{model}.yaml"))
    return RunConfig(
        model=Model.model_validate(told),
        training=Training.model_validate({"backend": "cuda", "precision": "bf16", **training}),
    )


def rows(found: RunConfig) -> int:
    return sizes.padded_vocab(found.model.vocab or 1024, found.model.vocab_multiple, found.training.parallel.tensor)


def estimate(found: RunConfig) -> sizes.Memory:
    return sizes.memory(found, rows(found))


@pytest.mark.parametrize(
    ("micro", "loss", "measured"), [(4, "fused", 42), (8, "fused", 62), (4, "plain", 60)], ids=str
)
def test_the_estimate_is_near_what_an_h200_took(micro: int, loss: str, measured: int) -> None:
    """Peak of torch's allocator with the 1B shape at 4096 tokens, which does not count the driver's context."""
    found = estimate(
        config("llama32_1b", sequence_length=4096, micro_batch=micro, global_batch=micro, kernels={"loss": loss})
    )
    assert measured <= found.total / GIB <= 1.15 * measured


def test_the_8b_model_at_8192_needs_two_h200s_and_fits_them() -> None:
    settings = {"sequence_length": 8192, "micro_batch": 1, "global_batch": 8}
    alone = estimate(config("llama31_8b", **settings)).total
    two = estimate(config("llama31_8b", **settings, parallel={"data": 2})).total
    assert alone > 1.1 * H200_BY
    assert two < H200_BY


def test_the_state_s_bytes_are_those_of_mixed_precision() -> None:
    found = config("llama31_8b", sequence_length=128, parallel={"data": 2})
    count = sizes.parameters(found.model, rows(found))
    state = estimate(found)
    held = (state.weights, state.gradients, state.master, state.optimizer)
    assert held == (2 * count, 4 * count, 2 * count, 4 * count)  # the last two over two data ranks
    eight = estimate(config("llama31_8b", sequence_length=128, precision="fp8", parallel={"data": 2}))
    assert eight.weights - state.weights == count - 2 * rows(found) * 4096 - 65 * 4096  # a byte for each in a layer
    whole = estimate(config("llama31_8b", sequence_length=128, parallel={"data": 2}, distributed_optimizer=False))
    assert (whole.master, whole.optimizer) == (4 * count, 8 * count)
    host = estimate(config("tiny", backend="cpu", precision="fp32", parallel={"data": 2}))
    count = sizes.parameters(config("tiny").model, 1024)
    assert (host.weights, host.gradients, host.master, host.optimizer) == (4 * count, 4 * count, 0, 8 * count)


@given(
    name=st.sampled_from(["llama31_8b", "llama32_1b", "qwen2_5_7b", "gpt3_1_7b"]),
    pipeline=st.sampled_from([1, 2, 4]),
)
def test_the_stages_hold_all_parameters_between_them(name: str, pipeline: int) -> None:
    found = config(name, parallel={"pipeline": pipeline}, global_batch=32)
    held = sum(sizes.stage_parameters(found, rows(found), stage) for stage in range(pipeline))
    twice = rows(found) * found.model.hidden if found.model.tied_embeddings and pipeline > 1 else 0
    assert held == sizes.parameters(found.model, rows(found)) + twice


def test_the_first_stage_holds_most_micro_batches() -> None:
    found = config("llama31_8b", parallel={"pipeline": 4}, micro_batch=1, global_batch=16)
    assert [sizes.in_flight_layers(found, stage) for stage in range(4)] == [32, 24, 16, 8]
    few = config("llama31_8b", parallel={"pipeline": 4}, micro_batch=1, global_batch=2)
    assert [sizes.in_flight_layers(few, stage) for stage in range(4)] == [16, 16, 16, 8]
    dealt = config("llama31_8b", parallel={"pipeline": 4, "virtual_pipeline": 2}, micro_batch=1, global_batch=16)
    assert sizes.in_flight_layers(dealt, 0) == 4 * (2 * 3 + 4 + 1)  # more than without: that is its price


@given(
    recompute=st.sampled_from([("none", "selective"), ("selective", "full")]),
    tensor=st.sampled_from([1, 2, 8]),
    sequence=st.booleans(),
)
def test_recomputing_more_keeps_less(recompute: tuple[str, str], tensor: int, sequence: bool) -> None:
    more, less = (
        sizes.activations(
            config("llama31_8b", recompute=mode, parallel={"tensor": tensor, "sequence": sequence and tensor > 1}), 0
        )
        for mode in recompute
    )
    assert less < more


@settings(max_examples=40)
@given(
    micro=st.sampled_from([1, 2, 3, 8]),
    data=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    loss=st.sampled_from(["plain", "auto"]),
    capacity=st.integers(20, 300),
)
def test_what_is_advised_saves_what_it_says(micro: int, data: int, tensor: int, loss: str, capacity: int) -> None:
    found = config(
        "llama31_8b",
        sequence_length=4096,
        micro_batch=micro,
        global_batch=micro * data,
        kernels={"loss": loss},
        parallel={"data": data, "tensor": tensor},
    )
    before = sizes.memory(found, rows(found)).total
    advised = sizes.advice(found, rows(found), capacity * GIB)
    assert bool(advised) == (before > sizes.WARNED * capacity * GIB) or before > capacity * GIB
    keys = [mend.key for mend in advised]
    assert len(set(keys)) == len(keys)
    after = found.model_dump()
    for mend in advised:
        place, *path = [after, *mend.key.split(".")]
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = mend.value
        if mend.key == "training.parallel.tensor":
            after["training"]["parallel"]["sequence"] = True
    saved = before - sizes.memory(RunConfig.model_validate(after), rows(found)).total
    assert saved == sum(mend.saves for mend in advised)


@pytest.mark.train
def test_a_card_that_is_too_small_is_refused_with_parts_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    from runners.megatron import memory

    found = config("llama31_8b", sequence_length=8192, micro_batch=2, global_batch=8, parallel={"data": 2})
    with pytest.raises(ConfigurationError) as refused:
        memory.judge(found, rows(found), 80 * GIB, speak=True)
    told = str(refused.value)
    assert "on the fullest GPU, which has 80.0 GiB (activations " in told
    assert "Set training.micro_batch=1 (saves " in told
    assert "training.recompute=full" in told
    line = wire.parse(capsys.readouterr().out.encode())
    assert line is not None
    assert (line["level"], line["code"], line["data"]["capacity_by"]) == ("warning", "memory", 80 * GIB)
    assert line["data"]["advice"][0]["key"] == "training.micro_batch"
    parts = ("weights", "gradients", "master", "optimizer", "activations", "logits", "allowance")
    assert line["data"]["total_by"] == sum(line["data"][f"{part}_by"] for part in parts)


@pytest.mark.train
@pytest.mark.parametrize(("share", "level"), [(0.95, "warning"), (1.05, "warning"), (0.8, "info"), (None, "info")])
def test_a_card_that_may_do_is_warned_of(share: float | None, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    from runners.megatron import memory

    found = config("llama32_1b", sequence_length=4096)
    capacity = None if share is None else int(estimate(found).total / share)
    memory.judge(found, rows(found), capacity, speak=True)
    line = wire.parse(capsys.readouterr().out.encode())
    assert line is not None
    assert line["level"] == level
    assert bool(line["data"]["advice"]) == (level == "warning")
