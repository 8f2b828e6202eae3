"""The parts of the training loop: rates, clipping, shards, lines."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners import wire
from runners.data import quiet
from runners.errors import ConfigurationError
from runners.megatron import report, schedules
from runners.megatron.backend import select
from runners.schema import Parallel, RunConfig, Training

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def stack() -> None:
    quiet.silence()


rates = st.builds(
    lambda iters, warmup, schedule: Training(
        train_iters=iters, warmup_steps=min(warmup, iters - 1), schedule=schedule, learning_rate=1e-3
    ),
    st.integers(1, 300),
    st.integers(0, 50),
    st.sampled_from(["cosine", "constant"]),
)


@pytest.mark.train
@settings(deadline=None)
@given(rates)
def test_the_rate_rises_to_its_peak_and_then_never_rises(training: Training) -> None:
    from runners.megatron.optimizer import learning_rate

    series = [learning_rate(training, step) for step in range(1, training.iterations + 1)]
    warm, rest = series[: training.warmup_steps], series[training.warmup_steps :]
    assert warm == sorted(warm)
    assert rest == sorted(rest, reverse=True)
    assert all(0 < rate <= 1e-3 for rate in series)
    if warm:
        assert warm[-1] == 1e-3
    assert rest[-1] == pytest.approx(1e-4 if training.schedule == "cosine" else 1e-3)


@pytest.mark.train
@given(st.floats(0, 1e6), st.just(0.0) | st.floats(1e-30, 1e3))
def test_clipping_bounds_the_norm_and_only_where_it_must(norm: float, limit: float) -> None:
    from runners.megatron.optimizer import clip_factor

    factor = clip_factor(norm, limit)
    if limit == 0 or norm <= limit:
        assert factor == 1.0
    else:
        assert norm * factor <= limit


@pytest.mark.train
@given(st.sampled_from([2, 4]), st.sampled_from([0, 1]), st.booleans())
def test_shards_hold_the_whole_matrix_once(size: int, dim: int, gated: bool) -> None:
    import torch

    from runners.megatron.model import shard

    full = torch.arange(16 * 8).reshape(16, 8)
    parts = [shard(full, dim, size, rank, gated=gated) for rank in range(size)]
    if gated:  # each part is [its gate; its up]
        halves = [part.chunk(2, dim) for part in parts]
        whole = torch.cat([torch.cat([half[i] for half in halves], dim) for i in range(2)], dim)
    else:
        whole = torch.cat(parts, dim)
    assert torch.equal(whole, full)


@pytest.mark.train
def test_vectors_do_not_decay() -> None:
    import torch

    from runners.megatron.optimizer import groups

    matrix, vector = torch.zeros(2, 2), torch.zeros(2)
    decayed, kept = groups([matrix, vector], 0.1)
    assert decayed == {"params": [matrix], "weight_decay": 0.1}
    assert kept == {"params": [vector], "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("parallel", "name"),
    [
        (Parallel(data=4, tensor=2), "none"),
        (Parallel(pipeline=2), "1f1b"),
        (Parallel(pipeline=2, virtual_pipeline=2), "interleaved"),
    ],
)
def test_the_sizes_name_the_schedule(parallel: Parallel, name: str) -> None:
    assert schedules.name(parallel) == name


@pytest.mark.train
@pytest.mark.parametrize("backend", ["cuda", "rocm"])
def test_a_backend_that_is_not_there_is_one_sentence(backend: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    config = RunConfig.model_validate({"training": {"backend": backend}})
    with pytest.raises(ConfigurationError, match=f"training.backend={backend}: torch .* sees no GPU here"):
        select(backend).check(config)


@pytest.mark.train
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"training": {"precision": "bf16"}}, "training.precision=bf16: the cpu backend trains in fp32 only"),
        (
            {"model": {"tied_embeddings": True}, "training": {"micro_batch": 2, "parallel": {"pipeline": 2}}},
            "model.tied_embeddings=true",
        ),
    ],
)
def test_what_the_cpu_cannot_do_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        select("cpu").check(RunConfig.model_validate(change))


def reporter(**training: Any) -> report.Reporter:
    return report.Reporter(RunConfig(training=Training(**training)), 1024, world=2)


def step(number: int = 3, **change: Any) -> report.Step:
    fields: dict[str, Any] = {"loss": 2.5, "seconds": 0.25, "rate": 1e-3, "grad_norm": 0.75, "skipped": False}
    return report.Step(number, **(fields | change))


def test_the_line_is_megatrons() -> None:
    line = reporter().line(step(), 123.45, NOON)
    assert line == (
        " [2026-01-02 12:00:00] iteration        3/     120 | consumed samples:           24 |"
        " elapsed time per iteration (ms): 250.0 | throughput per GPU (TFLOP/s/GPU): 123.5 |"
        " learning rate: 1.000000E-03 | global batch size:     8 | lm loss: 2.500000E+00 | loss scale: 1.0 |"
        " grad norm: 0.750 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


@pytest.mark.parametrize(("precision", "told"), [("fp16", 65536.0), ("bf16", None)])
def test_the_loss_scale_of_fp16_is_told(
    precision: str, told: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter(precision=precision).iteration(step(loss_scale=65536.0))
    line, wired = capsys.readouterr().out.splitlines()
    assert "| loss scale: 65536.0 |" in line
    said = wire.parse(wired.encode())
    assert said is not None
    assert said["extra"].get("loss_scale") == told


@pytest.mark.parametrize(
    ("precision", "bf16", "dtype"),
    [
        ("fp32", False, "float32"),
        ("fp16", False, "float16"),
        ("bf16", True, "bfloat16"),
        ("fp8", True, "bfloat16"),
    ],
)
def test_the_arguments_say_what_the_parameters_are_in(precision: str, bf16: bool, dtype: str) -> None:
    config = RunConfig.model_validate({"training": {"precision": precision}})
    said = report.megatron_arguments(config, 1024, 1)
    assert (said["bf16"], said["params_dtype"]) == (bf16, f"torch.{dtype}")


def test_a_slow_machine_is_not_rounded_to_nothing() -> None:
    assert "(TFLOP/s/GPU): 0.0123 |" in reporter().line(step(), 0.01234, NOON)


def test_a_loss_that_is_no_number_is_counted_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    speaker = reporter()
    for number in (1, 2):
        speaker.iteration(step(number, loss=None, grad_norm=float("nan"), skipped=True))
    assert (speaker.nan_iterations, speaker.skipped_iterations) == (2, 2)
    out = capsys.readouterr().out.splitlines()
    said = [line for raw in out if (line := wire.parse(raw.encode())) is not None]
    assert [line["type"] for line in said] == ["iteration", "diagnostic", "iteration"]
    assert said[0]["loss"] is None
    assert said[0]["grad_norm"] is None
    assert said[1]["code"] == "nan"
    lines = [raw for raw in out if "iteration " in raw and "@ekvi" not in raw]
    assert all("lm loss" not in line and "number of nan iterations:   1 |" in line for line in lines)


def test_a_step_counts_all_its_tokens_and_shares_its_work_over_processes(capsys: pytest.CaptureFixture[str]) -> None:
    reporter(global_batch=16, sequence_length=64).iteration(step(seconds=2.0))
    (line,) = [raw for raw in capsys.readouterr().out.splitlines() if "@ekvi" in raw]
    said = wire.parse(line.encode())
    assert said is not None
    assert (said["tokens"], said["samples"], said["step_s"]) == (1024, 16, 2.0)
    flop = reporter(sequence_length=64).flop_per_step / 8  # a sequence of 64
    assert said["extra"]["tflops_gpu"] == pytest.approx(16 * flop / 2.0 / 2 / 1e12)


def test_the_dump_is_in_megatrons_layout() -> None:
    head, *rows, tail = report.arguments(RunConfig(), 1024, 1).splitlines()
    assert head == "------------------------ arguments ------------------------"
    assert tail == "-------------------- end of arguments ---------------------"
    assert all(re.fullmatch(r"  \w+ \.+ .+", row) for row in rows)
    assert rows == sorted(rows)
    assert "  padded_vocab_size ............................... 1024" in rows
