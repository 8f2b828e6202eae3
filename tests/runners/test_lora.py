"""The LoRA runner trains, in this process: it learns, goes on from where it was, merges, and survives trouble."""

from __future__ import annotations

import json
import math
import resource
import shutil
from pathlib import Path

import pytest

from runners.errors import ConfigurationError, RunnerError
from runners.listeners import Step
from tests.runners.lora_support import ADAPTERS, EVERYWHERE, WHOLE, Heard, base_of, outputs, report, train

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore:::transformers"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, Heard]:
    """LoRA on all layers, two epochs, merged."""
    out = tmp_path_factory.mktemp("lora")
    return out, train(out, cache, merge=True, **ADAPTERS)


def test_adapters_learn_sums(learnt: tuple[Path, Heard]) -> None:
    _out, heard = learnt
    first, last = heard.losses[0], heard.losses[-1]
    assert first is not None
    assert last is not None
    assert first > 6.0
    assert sum(loss or 9 for loss in heard.losses[-5:]) / 5 < 3.2
    assert [step for step, _loss in heard.validations] == [29, 58]
    assert heard.validations[1][1] < heard.validations[0][1] < 3.3
    assert heard.ended == "success"


def test_only_adapters_are_trained_and_saved(learnt: tuple[Path, Heard]) -> None:
    out, heard = learnt
    assert heard.facts["trainable"] < heard.facts["parameters"] / 4
    for epoch in ("epoch-1", "epoch-2"):
        assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= {
            path.name for path in (out / epoch).iterdir()
        }
        assert not (out / epoch / "model.safetensors").exists()
    assert not list(out.glob(".*"))
    adapter = json.loads((out / "best" / "adapter_config.json").read_text())
    assert (adapter["r"], sorted(adapter["target_modules"])) == (16, sorted(EVERYWHERE))


def test_the_best_epoch_is_linked_and_reported(learnt: tuple[Path, Heard]) -> None:
    out, heard = learnt
    best = min(heard.validations, key=lambda pair: pair[1])
    assert (out / "best").readlink() == Path(f"epoch-{best[0] // 29}")
    told = report(out)
    assert told["best"]["loss"] == pytest.approx(best[1])
    assert told["perplexity"] == pytest.approx(math.exp(heard.validations[-1][1]))
    assert (told["world_size"], told["steps"], told["epochs"], told["merged"]) == (1, 58, 2, True)
    assert told["tokens"] == sum(step.tokens for step in heard.steps)
    assert told["tokens"] < told["padded_tokens"] == sum(step.extra["padded_tokens"] for step in heard.steps)
    assert told["tokens_per_s"] == pytest.approx(told["tokens"] / told["seconds"])


def test_merged_weights_give_the_adapters_outputs(learnt: tuple[Path, Heard]) -> None:
    import torch

    out, _heard = learnt
    base = base_of(out / "best")
    with_adapter, merged, plain = outputs(base, out / "best"), outputs(out / "merged"), outputs(base)
    assert torch.allclose(with_adapter, merged, atol=2e-5)
    assert not torch.allclose(plain, merged, atol=0.1)
    assert (out / "merged" / "tokenizer.json").is_file()


def test_all_weights_learn_sums_better_and_go_on_after_an_epoch(tmp_path: Path, cache: Path) -> None:
    """The second epoch alone, from the first one's folder, is the second half of the whole."""
    import torch

    whole = train(tmp_path / "whole", cache, **WHOLE)
    assert (whole.losses[0] or 0) > 6.0
    assert sum(loss or 9 for loss in whole.losses[-5:]) / 5 < 1.8
    later = train(tmp_path / "later", cache, resume=str(tmp_path / "whole" / "epoch-1"), **WHOLE)
    assert [step.step for step in later.steps] == list(range(30, 59))
    assert later.losses == whole.losses[29:]
    assert [step.rate for step in later.steps] == [step.rate for step in whole.steps[29:]]
    ends = (outputs(tmp_path / run / "epoch-2") for run in ("whole", "later"))
    assert torch.equal(*ends)
    assert report(tmp_path / "later")["resumed_from_step"] == 29


def test_a_killed_training_goes_on_from_its_last_step_folder(tmp_path: Path, cache: Path) -> None:
    """With dropout: its noise is the step's, not the process's. The kill is an exception out of the loop."""
    settings = ADAPTERS | {"dropout": 0.1, "save_every": 5, "grad_accum": 2, "epochs": 1}
    whole = train(tmp_path / "whole", cache, **settings)

    class Killed(Exception):
        pass

    def kill(step: Step) -> None:
        if step.step == 13:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "out", cache, Heard(at_step=kill), **settings)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["step-10", "step-5"]
    rest = train(tmp_path / "out", cache, **settings)
    assert rest.steps[0].step == 11
    assert rest.losses == whole.losses[10:]
    assert not (tmp_path / "out" / "step-5").exists()  # two states are kept, the newest
    assert (tmp_path / "out" / "epoch-1" / "state").is_dir()


def test_a_loss_that_is_no_number_stops_and_the_best_is_kept(tmp_path: Path, cache: Path) -> None:
    train(tmp_path, cache, epochs=1, **ADAPTERS)
    heard = Heard()
    with pytest.raises(RunnerError, match=r"the loss of step 3\d is not a number.*best so far is kept: epoch-1"):
        train(tmp_path, cache, heard, **ADAPTERS | {"lr": 1e38})
    assert heard.ended == "aborted"
    assert (tmp_path / "best").readlink() == Path("epoch-1")
    assert not (tmp_path / "epoch-2").exists()


def test_a_disk_that_refuses_leaves_the_older_epoch_whole(tmp_path: Path, cache: Path) -> None:
    """The system refuses files as long as an adapter of this size; the log is shorter."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step: Step) -> None:
        if step.step == 30:
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))

    try:
        with pytest.raises(RunnerError, match=r"epoch-2 cannot be written after step 58: .*epoch-1 is kept whole"):
            train(tmp_path, cache, Heard(at_step=fill), **ADAPTERS, r=64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "epoch-1"]
    rest = train(tmp_path, cache, **ADAPTERS, r=64)
    assert rest.steps[0].step == 30
    assert (tmp_path / "epoch-2" / "adapter_model.safetensors").is_file()


def test_the_target_loss_ends_the_training_between_epochs(tmp_path: Path, cache: Path) -> None:
    heard = train(tmp_path, cache, eval_every=40, target_loss=4.0, **ADAPTERS)
    losses = [loss for _step, loss in heard.validations]
    assert [step for step, _loss in heard.validations] == [5 * (at + 1) for at in range(len(losses))]
    assert losses[-1] <= 4.0 < min(losses[:-1])
    assert heard.ended == "success"
    assert report(tmp_path)["target_reached"] is True
    assert (tmp_path / "best").readlink() == Path(f"step-{heard.steps[-1].step}")


def test_a_target_that_is_not_met_is_told(tmp_path: Path, cache: Path) -> None:
    heard = train(tmp_path, cache, max_steps=2, save=False, target_loss=0.1, **ADAPTERS)
    assert heard.ended == "aborted"
    assert report(tmp_path)["target_reached"] is False
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_state_of_another_training_is_refused(learnt: tuple[Path, Heard], tmp_path: Path, cache: Path) -> None:
    out, _heard = learnt
    with pytest.raises(ConfigurationError, match=r"saved with another r \(16, now 8\).*runner.resume=never"):
        train(tmp_path, cache, resume=str(out / "epoch-2"), r=8, **ADAPTERS)
    with pytest.raises(ConfigurationError, match=r"holds no state to go on from"):
        train(tmp_path, cache, resume=str(out / "merged"), **ADAPTERS)


def test_gradients_recomputed_and_computed_in_bf16_lead_the_same_way(tmp_path: Path, cache: Path) -> None:
    plain = train(tmp_path / "a", cache, max_steps=3, save=False, **ADAPTERS)
    again = train(tmp_path / "b", cache, max_steps=3, save=False, gradient_checkpointing=True, **ADAPTERS)
    half = train(tmp_path / "c", cache, max_steps=3, save=False, bf16=True, **ADAPTERS)
    assert again.losses == pytest.approx(plain.losses, rel=1e-5)
    assert half.losses == pytest.approx(plain.losses, rel=2e-2)
    assert half.losses != plain.losses


def test_tensorboard_and_mlflow_hear_of_each_step(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    heard = train(tmp_path, cache, max_steps=3, save=False, track=["tensorboard", "mlflow"], **ADAPTERS)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(heard.losses)
    (metric,) = (tmp_path / "mlruns").glob("*/*/metrics/loss")
    assert [float(line.split()[1]) for line in metric.read_text().splitlines()] == pytest.approx(heard.losses)


def test_a_tracker_that_fails_does_not_end_the_training(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "file"))
    heard = train(tmp_path / "out", cache, max_steps=2, save=False, track=["mlflow"], **ADAPTERS)
    assert (len(heard.steps), heard.ended) == (2, "success")
    assert capsys.readouterr().out.count('"code":"track"') == 1


def test_a_published_model_is_taken_from_the_hubs_cache_and_named_in_the_adapter(
    learnt: tuple[Path, Heard], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "hub" / "models--some-lab--sums"
    shutil.copytree(base_of(learnt[0] / "best"), kept / "snapshots" / ("ab" * 20))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("ab" * 20)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    named = ADAPTERS | {"model": "some-lab/sums", "local_files_only": True, "max_steps": 1}
    heard = train(tmp_path / "out", cache, **named)
    assert heard.losses == learnt[1].losses[:1]
    adapter = json.loads((tmp_path / "out" / "step-1" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "some-lab/sums"
    assert adapter["lora_alpha"] == 16
