"""How long a training is: in iterations or in samples, never both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from runners.compose import compose_run, shipped_folder
from runners.errors import ConfigurationError
from runners.schema import RunConfig, Training


def test_samples_are_whole_batches_and_need_no_unsaying_of_defaults() -> None:
    training = Training(train_samples=100, global_batch=8)
    assert (training.train_iters, training.iterations) == (None, 12)
    assert (training.warmup_steps, training.warmup_samples, training.warmup) == (None, 80, 10.0)
    assert Training.model_validate(training.model_dump(mode="json")) == training
    assert Training.model_validate_json(training.model_dump_json()) == training


def test_warm_up_and_decay_in_samples_give_the_rates_of_their_twins() -> None:
    pytest.importorskip("megatron.core")
    from runners.data import quiet

    quiet.silence()
    from runners.megatron.optimizer import learning_rate

    steps = Training(train_iters=30, warmup_steps=5, decay_steps=20, global_batch=8)
    samples = Training(train_samples=240, warmup_samples=40, decay_samples=160, global_batch=8)
    rates = [learning_rate(steps, n) for n in range(1, 31)]
    assert rates == [learning_rate(samples, n) for n in range(1, 31)]
    assert rates[4] == max(rates)
    assert set(rates[19:]) == {steps.min_learning_rate}
    part = Training(train_samples=240, warmup_samples=20, global_batch=8)  # 2.5 iterations
    assert [learning_rate(part, n) / part.learning_rate for n in (1, 2)] == pytest.approx([0.4, 0.8])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"train_iters": 5, "train_samples": 80}, "train_iters 5 and training.train_samples 80 exclude each other"),
        ({"train_iters": None}, "one of training.train_iters and training.train_samples must be set"),
        ({"train_samples": 80, "warmup_steps": 2}, "training.train_samples and training.warmup_steps do not count"),
        ({"train_samples": 80, "decay_steps": 2}, "set training.decay_samples in its place"),
        (
            {"warmup_samples": 2, "warmup_steps": None},
            "training.train_iters and training.warmup_samples do not count",
        ),
        ({"warmup_samples": 2}, "warmup_steps 10 and training.warmup_samples 2 exclude each other"),
        ({"train_samples": 7, "global_batch": 8}, "less than one training.global_batch 8"),
        ({"decay_steps": 10}, "decay_steps 10 must be above training.warmup_steps 10"),
    ],
)
def test_what_does_not_fit_names_both_keys(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Training.model_validate(said)


def test_evaluation_needs_documents() -> None:
    with pytest.raises(ValidationError, match=r"data\.train_split is 1\.0"):
        RunConfig.model_validate({"training": {"evaluate": True}})
    assert RunConfig.model_validate({"training": {"evaluate": True}, "data": {"train_split": 0.9}}).training.evaluate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "long.yaml").write_text("train_iters: 500\nwarmup_steps: 20\n")
    return tmp_path


def test_a_word_of_one_kind_wins_over_files_of_the_other(folder: Path) -> None:
    def composed(*words: str) -> Training:
        return compose_run(["training=long", *words], folders=[folder, shipped_folder()]).training

    assert composed().train_iters == 500
    both = composed("training.train_samples=800", "training.warmup_samples=16")
    assert (both.train_iters, both.train_samples, both.warmup_steps, both.warmup_samples) == (None, 800, None, 16)
    assert composed("training.train_samples=800", "training.warmup_steps=null").warmup == 0
    with pytest.raises(ConfigurationError, match=r"training\.warmup_steps do not count the same"):
        composed("training.train_samples=800")  # the file's warm-up is not dropped unsaid
    with pytest.raises(ConfigurationError, match="exclude each other"):
        composed("training.train_samples=800", "training.train_iters=5", "training.warmup_steps=null")
