"""The LoRA runner over two processes: the same gradients as one, however the weights lie; and what it logs."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runners.lora_support import ADAPTERS, MODEL, WHOLE, base_of, body, outputs, report, train
from tests.runners.support import Place, Result

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore:::transformers"), pytest.mark.timeout(240)]

# Batches of 2 on two processes, two a step: 8 a step as on one process, and 6 in an epoch's last step.
_TWO: dict[str, Any] = {"processes": 2, "batch": 2, "grad_accum": 2, "epochs": 1, "schedule": "constant"}
SLOW = ADAPTERS | {"lr": 0.005}  # what differs in the last digit does not grow
RUNS: dict[str, dict[str, Any]] = {
    "ddp": _TWO | SLOW | {"log_level": "DEBUG", "save_every": 8, "keep": 9},
    "fsdp": _TWO | SLOW | {"strategy": "fsdp", "max_steps": 8, "merge": True},
    "ddp-whole": _TWO | WHOLE | {"max_steps": 10, "save_every": 6},
    "fsdp-whole": _TWO | WHOLE | {"strategy": "fsdp", "max_steps": 6},
    "fsdp-rest": _TWO | WHOLE | {"strategy": "fsdp", "max_steps": 10},  # goes on from ddp-whole's step 6
}


@dataclass(frozen=True)
class Ran:
    """What two processes did, one training after another."""

    folder: Path
    out: tuple[str, str]

    def run(self, name: str) -> Result:
        """What was said of one training, by both."""
        said = []
        for out in self.out:
            parts = re.split(r"^--- (\S+)$", out, flags=re.MULTILINE)
            said.append(dict(zip(parts[1::2], parts[2::2], strict=True))[name])
        return Result(0, "".join(said), "")

    def series(self, name: str, key: str = "loss") -> list[float]:
        """A value of each step."""
        return [line[key] for line in self.run(name).wires("iteration")]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Ran:
    """All trainings, in one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, runner in RUNS.items():
        resume = {"resume": str(folder / "ddp-whole" / "step-6")} if name == "fsdp-rest" else {}
        tied = {"model": MODEL | {"tied_embeddings": name.endswith(("-whole", "-rest"))}}
        (folder / f"{name}.json").write_text(json.dumps(body(**runner, **resume) | tied))
    ports = free_ports(len(RUNS))
    words = [f"{port}:{folder / name}.json" for port, name in zip(ports, RUNS, strict=True)]
    ranks = []
    with ExitStack() as stack:
        for rank in range(2):
            out = stack.enter_context((folder / f"rank{rank}.log").open("w"))
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.runners.lora_support", *words],
                    env=Place(folder, cache).environment(MASTER_PORT=str(ports[0]), **env),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(ranks[-1].kill)
        codes = [rank.wait(timeout=200) for rank in ranks]
    said = tuple((folder / f"rank{rank}.log").read_text() for rank in range(2))
    assert codes == [0, 0], "".join(text[-2000:] for text in said)
    return Ran(folder, (said[0], said[1]))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def test_two_processes_and_two_micro_batches_have_the_gradient_of_one_big_batch(
    ran: Ran, tmp_path: Path, cache: Path
) -> None:
    """Rows have 1 to 6 targets each, so a mean of means would not do; nor in the last step of 6 rows."""
    alone = train(tmp_path, cache, epochs=1, schedule="constant", save=False, **SLOW)
    assert ran.series("ddp") == pytest.approx(alone.losses, rel=2e-4)
    norms = [step.grad_norm for step in alone.steps]
    assert ran.series("ddp", "grad_norm") == pytest.approx(norms, rel=2e-3)
    assert ran.series("ddp", "tokens") == [step.tokens for step in alone.steps]
    assert [line["samples"] for line in ran.run("ddp").wires("iteration")][-2:] == [8, 6]
    said = ran.run("ddp").wires("diagnostic")
    (validation,) = [line["data"]["loss"] for line in said if line["code"] == "validation"]
    assert validation == pytest.approx(alone.validations[0][1], rel=1e-3)


@pytest.mark.parametrize(("kind", "steps"), [("", 8), ("-whole", 6)])
def test_sharded_weights_train_as_replicated_ones(ran: Ran, kind: str, steps: int) -> None:
    """In fp32 the losses agree to 1e-5, the gradients' norms to 1e-4."""
    assert ran.series(f"fsdp{kind}") == pytest.approx(ran.series(f"ddp{kind}")[:steps], rel=1e-5)
    norms = ran.series(f"ddp{kind}", "grad_norm")[:steps]
    assert ran.series(f"fsdp{kind}", "grad_norm") == pytest.approx(norms, rel=1e-4)


def test_a_sharded_training_goes_on_from_a_replicated_ones_state(ran: Ran) -> None:
    assert [line["step"] for line in ran.run("fsdp-rest").wires("iteration")] == [7, 8, 9, 10]
    assert report(ran.folder / "fsdp-rest")["resumed_from_step"] == 6
    assert ran.series("fsdp-rest") == pytest.approx(ran.series("ddp-whole")[6:], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("adapter_model", "ddp/step-8", "fsdp/step-8"), ("model", "ddp-whole/step-10", "fsdp-rest/step-10")],
)
def test_sharded_weights_are_saved_whole(ran: Ran, name: str, one: str, other: str) -> None:
    import torch
    from safetensors.torch import load_file

    left, right = (load_file(ran.folder / folder / f"{name}.safetensors") for folder in (one, other))
    assert left.keys() == right.keys()
    assert all(torch.allclose(left[key], right[key], atol=1e-3) for key in left)


def test_sharded_adapters_are_merged(ran: Ran) -> None:
    import torch

    merged = outputs(ran.folder / "fsdp" / "merged")
    best = ran.folder / "fsdp" / "best"
    assert torch.allclose(outputs(base_of(best), best), merged, atol=2e-5)


def test_the_report_counts_all_processes(ran: Ran) -> None:
    told = report(ran.folder / "ddp")
    assert (told["world_size"], told["samples"], told["steps"]) == (2, 230, 29)
    assert told["tokens"] == sum(ran.series("ddp", "tokens"))
    (result,) = [line["data"] for line in ran.run("ddp").wires("diagnostic") if line["code"] == "result"]
    assert result == told


def test_the_model_is_told_for_the_comparison(ran: Ran) -> None:
    (model,) = [line["data"] for line in ran.run("ddp").wires("diagnostic") if line["code"] == "model"]
    assert model["lora"]["r"] == 16
    assert (model["precision"], model["batch_of_all"], model["strategy"]) == ("fp32", 8, "ddp")
    assert model["flops_per_token"] is None
    (other,) = [line["data"] for line in ran.run("fsdp").wires("diagnostic") if line["code"] == "model"]
    same = ("parameters", "trainable", "weights")
    assert [model[key] for key in same] == [other[key] for key in same]


@pytest.mark.parametrize(
    "line",
    [
        r"\[rank0\] \[STEP\] init: rank 0 of 2",
        r"\[rank1\] \[DDP\] (gloo: device cpu|nccl: device cuda:1)",
        r"\[rank0\] \[DATA\] 230 examples, \d+ tokens, \d+ of them targets; 26 for validation",
        r"\[rank0\] \[DATA\] DistributedSampler over 2 processes: 58 batches of 2 an epoch, 29 steps in all",
        r"\[rank0\] \[DATA\] sampler: 115 examples a process",
        r"\[rank1\] \[COLLATE\] input_ids \[2, \d+\]",
        r"\[rank0\] \[MODEL\] \d+ parameters in float32, attention sdpa, fp32",
        r"\[rank0\] \[MODEL\] trainable: \d+ \(\d+\.\d+ %\)",
        r"\[rank0\] \[STEP\] start training",
        r"\[rank0\] \[BATCH\] epoch 1 batch 1/58 loss [\d.]+ time_s",
        r"\[rank0\] \[BATCH\] epoch 1 batch 58/58 loss ",
        r"\[rank1\] \[TRAIN\] step 29/29 loss [\d.]+ lr \S+ grad_norm \S+ step_s \S+ \d+ tokens/s \(without",
        r"\[rank0\] \[EPOCH\] epoch 1/1 loss [\d.]+ val_loss [\d.]+ perplexity [\d.]+ epoch_s",
        r"\[rank0\] \[RESULT\] loss .* tokens without padding in .* world size 2, best epoch-1",
        r"\[rank0\] \[DONE\] loss",
    ],
)
def test_each_step_is_logged(ran: Ran, line: str) -> None:
    assert re.search(f"^{line}", ran.run("ddp").out, re.MULTILINE)


def test_the_log_level_and_the_choice_of_batches_are_kept(ran: Ran) -> None:
    assert len(re.findall(r"\[rank0\] \[BATCH\]", ran.run("ddp").out)) == 2  # the first and the last
    quiet = re.findall(r"^(?:\[rank\d\] )?\[[A-Z]+\].*", ran.run("fsdp").out, re.MULTILINE)
    assert quiet == []
