"""The DDP smoke test: what it says, and its two common failures in plain words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runners.process import Process
from tests.runners.support import Place, Result

pytestmark = pytest.mark.train


def config(**runner: Any) -> dict[str, Any]:
    return {"runner": {"name": "smoke", **runner}}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The defaults, over two processes, at DEBUG."""
    folder = tmp_path_factory.mktemp("smoke")
    return Place(folder, folder / "cache").run(config(log_level="DEBUG"), processes=2)


def test_two_processes_train_and_agree_on_the_loss(two: Result) -> None:
    assert two.rc == 0, two.err
    said = two.wires("iteration")
    assert [line["step"] for line in said] == list(range(1, 17))  # 2 epochs of 4096 / 256 / 2
    assert all((line["samples"], line["tokens"], line["total"]) == (512, None, 16) for line in said)
    assert said[-1]["loss"] < 0.1 * said[0]["loss"]
    per_epoch = re.findall(r"\[rank(\d)\] \[TRAIN\] epoch (\d)/2 loss ([\d.]+)", two.out)
    assert sorted((rank, epoch) for rank, epoch, _loss in per_epoch) == [
        (rank, epoch) for rank in "01" for epoch in "12"
    ]
    assert len({(epoch, loss) for _rank, epoch, loss in per_epoch}) == 2


@pytest.mark.parametrize(
    "line",
    [
        r"\[rank0\] \[STEP\] init: rank 0 of 2",
        r"\[rank0\] \[STEP\] seed: 42",
        r"\[rank1\] \[STEP\] loader: 4096 samples, 2048 a process, 8 batches of 256",
        r"\[rank0\] \[STEP\] model: \d+ parameters",
        r"\[rank0\] \[STEP\] DDP: ",
        r"\[rank1\] \[DDP\] (gloo: device cpu|nccl: device cuda:1)",
        r"\[rank0\] \[BATCH\] epoch 1 batch 1/8 loss [\d.]+ inputs \[256, 128\] labels \[256\]",
        r"\[rank0\] \[BATCH\] epoch 2 batch 8/8 loss ",
        r"\[rank0\] \[RESULT\] loss [\d.]+ -> [\d.]+ \(fell\), 8192 samples in [\d.]+ s",
        r"\[rank0\] \[DONE\]",
    ],
)
def test_each_step_is_logged(two: Result, line: str) -> None:
    assert re.search(f"^{line}", two.out, re.MULTILINE)


def test_one_process_needs_no_launcher_and_no_debug_lines(place: Place) -> None:
    result = place.run(config(samples=1024))
    assert result.rc == 0, result.err
    assert len(result.wires("iteration")) == 8
    assert "[BATCH]" not in result.out
    assert "[STEP] seed: 42" in result.out
    assert result.diagnostic("provenance")["data"]["collective"] in ("gloo", "nccl")


def test_a_loss_that_does_not_fall_fails(place: Place) -> None:
    result = place.run(config(epochs=1, samples=256))  # one batch: nothing to fall from
    assert result.rc == 1
    assert "error: the loss did not fall" in result.err
    assert "(did not fall)" in result.out
    assert result.stages[-1] == ("train", "failed")


def test_no_process_group_is_said_in_plain_words(place: Place) -> None:
    result = place.run(
        config(),
        RANK="1",
        WORLD_SIZE="2",
        LOCAL_RANK="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
        EKVI_RENDEZVOUS_TIMEOUT_S="1",
    )
    assert result.rc == 1
    assert "no process group: rank 1 of 2 did not meet the others at 127.0.0.1:1 within 1 s" in result.err
    assert "torchrun" in result.err
    assert "Traceback" not in result.err


def test_a_rank_without_a_gpu_is_said_in_plain_words() -> None:
    from runners.errors import ConfigurationError
    from runners.group import device_of

    with pytest.raises(ConfigurationError, match=r"rank 5 has no GPU: LOCAL_RANK is 2, .* 2 GPUs \(0 to 1\)"):
        device_of(Process(rank=5, world=8, local_rank=2, launched=True), gpus=2)


def test_each_rank_has_a_device_of_its_own() -> None:
    from runners.group import collective_of, device_of

    places = [Process(rank=rank, world=2, local_rank=rank, launched=True) for rank in range(2)]
    assert [device_of(process, gpus=2) for process in places] == ["cuda:0", "cuda:1"]
    assert [device_of(process, gpus=0) for process in places] == ["cpu", "cpu"]
    assert [collective_of(device) for device in ("cuda:1", "cpu")] == ["nccl", "gloo"]


def test_the_wrong_number_of_processes_is_refused(tmp_path: Path) -> None:
    from runners.errors import ConfigurationError
    from runners.schema import SmokeRunner
    from runners.smoke import _check

    with pytest.raises(ConfigurationError, match=r"3 processes started, but runner.processes is 2"):
        _check(SmokeRunner(), Process(rank=0, world=3, launched=True))
