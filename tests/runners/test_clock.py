"""What a step's seconds hold: all time of the training, as between Megatron's lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runners import wire
from runners.data import quiet

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def stack() -> None:
    quiet.silence()


class Clock:
    """A clock that only moves when something says it took time."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_a_training_step_lasts_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from runners.megatron import train
    from runners.schema import RunConfig

    clock, told = Clock(), []
    config = RunConfig.model_validate({"training": {"train_iters": 3}})

    def one_step(*_: Any) -> tuple[list[Any], float, bool]:
        clock.spend(1.0)
        return [], 1.0, False

    def iteration(step: Any) -> None:
        clock.spend(0.25)  # telling it takes time that no token is trained in
        told.append(step.seconds)

    monkeypatch.setattr(train, "time", clock)
    monkeypatch.setattr(train, "one_step", one_step)
    training: Any = SimpleNamespace(
        config=config,
        samples=None,
        validation=None,
        batches=lambda *_: [],
        backend=SimpleNamespace(synchronise=lambda: None),
        updates=SimpleNamespace(loss_scale=1.0),
    )
    saver: Any = SimpleNamespace(step=0, after=lambda _number, _loss: (0.0, None))
    reporter: Any = SimpleNamespace(iteration=iteration)
    _loss, total = train.loop(training, reporter, saver, speak=True)
    assert told == [1.0, 1.25, 1.25]
    assert total == sum(told)


def test_a_smoke_step_holds_the_loading_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from runners import smoke

    clock, told = Clock(), []

    class Loader:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            for _ in range(2):
                clock.spend(0.5)
                yield torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)

    monkeypatch.setattr(smoke, "time", clock)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _loss: clock.spend(1.0))
    monkeypatch.setattr(wire, "emit", lambda _kind, **fields: told.append(fields["step_s"]))
    model = torch.nn.Linear(2, 2)
    made: Any = SimpleNamespace(
        settings=SimpleNamespace(epochs=1, lr=1e-3),
        process=SimpleNamespace(world=1, last=True),
        device="cpu",
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        loader=Loader(),
        sampler=SimpleNamespace(set_epoch=lambda _number: None),
        total=2,
    )
    smoke.epoch(made, 1)
    assert told == [1.5, 1.5]


def test_a_validation_loss_that_is_no_number_has_no_perplexity(capsys: pytest.CaptureFixture[str]) -> None:
    from runners.megatron import report
    from runners.schema import RunConfig

    report.Reporter(RunConfig(), 1024, 1).validation(10, None)
    assert "| lm loss value: NAN | lm loss PPL: NAN |" in capsys.readouterr().out
