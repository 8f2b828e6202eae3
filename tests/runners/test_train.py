"""Real trainings: every layout gives the one-process curve, and what goes wrong is said."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.runners.support import TIMEOUT_S, Place, Result

pytestmark = pytest.mark.train

ITERATIONS = 10
LINE = re.compile(
    r" \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration +(\d+)/ +10 \| consumed samples: +(\d+) \|"
    r" elapsed time per iteration \(ms\): [\d.]+ \| throughput per GPU \(TFLOP/s/GPU\): [\d.]+ \|"
    r" learning rate: [\d.]+E-\d\d \| global batch size: +8 \| lm loss: ([\d.]+E[+-]\d\d) \| loss scale: 1.0 \|"
    r" grad norm: [\d.]+ \| number of skipped iterations:   0 \| number of nan iterations:   0 \|"
)


def config(**parallel: int) -> dict[str, Any]:
    training = {"train_iters": ITERATIONS, "micro_batch": 2, "warmup_steps": 2, "parallel": parallel}
    return {"training": training, "data": {"train_split": 0.8}}


def losses(result: Result) -> list[float]:
    return [line["loss"] for line in result.wires("iteration")]


def validation(result: Result) -> float:
    """The loss of the one validation line."""
    (found,) = re.findall(r"^ validation loss at iteration 10 \| lm loss value: (\S+) \|", result.out, re.MULTILINE)
    return float(found)


@pytest.fixture(scope="module")
def one(prepared: Result, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Result]:
    """One process, all stages."""
    assert prepared.rc == 0, prepared.err
    place = Place(tmp_path_factory.mktemp("one"), cache)
    return place, place.run(config(), "stage=all")


def test_all_is_data_train_and_wrap(one: tuple[Place, Result]) -> None:
    _place, result = one
    assert result.rc == 0, result.err
    assert [stage for stage, status in result.stages if status == "start"] == ["data", "train", "wrap"]
    assert [status for _stage, status in result.stages if status != "start"] == ["skipped", "done", "done"]
    assert result.err == ""


def test_each_iteration_is_there_once_in_both_grammars(one: tuple[Place, Result]) -> None:
    _place, result = one
    said = result.wires("iteration")
    assert [line["step"] for line in said] == list(range(1, ITERATIONS + 1))
    assert all((line["tokens"], line["samples"], line["total"]) == (1024, 8, ITERATIONS) for line in said)
    lines = [match for line in result.out.splitlines() if (match := LINE.fullmatch(line))]
    assert [int(match[1]) for match in lines] == list(range(1, ITERATIONS + 1))
    assert [int(match[2]) for match in lines] == list(range(8, 8 * ITERATIONS + 1, 8))
    assert [float(match[3]) for match in lines] == pytest.approx(losses(result), rel=1e-6)


def test_the_model_learns(one: tuple[Place, Result]) -> None:
    curve = losses(one[1])
    assert 6.8 < curve[0] < 7.1  # ln 1024 = 6.93
    assert curve[-1] < curve[0] - 0.2
    assert abs(validation(one[1]) - curve[-1]) < 0.5


def test_the_run_says_what_made_it(one: tuple[Place, Result]) -> None:
    _place, result = one
    made = result.diagnostic("provenance")["data"]
    assert made["torch"]["version"].startswith("2.")
    assert made["torch"]["git"]
    assert made["megatron_core"].startswith("0.16.")
    assert (made["threads"], made["world"], made["precision"], made["run"]) == (1, 1, "fp32", "r1")
    assert made["env"]["OMP_NUM_THREADS"] == "1"
    shape = result.diagnostic("model")["data"]
    assert shape["parameters"] == 1_000_576
    assert set(shape["flops_per_token"]) == {"A", "B", "C"}
    assert (shape["padded_vocab"], shape["seq_length"], shape["schedule"]) == (1024, 128, "none")
    assert "------------------------ arguments ------------------------" in result.out


def test_the_result_is_written_and_wrapped(one: tuple[Place, Result]) -> None:
    place, result = one
    written = json.loads((place.out / "train.json").read_text())
    assert written["final_loss"] == losses(result)[-1]
    assert written["validation_loss"] == pytest.approx(validation(result), rel=1e-6)
    assert (written["steps"], written["tokens"]) == (ITERATIONS, 1024 * ITERATIONS)
    assert result.diagnostic("result")["data"] == written
    for artifact in result.wires("artifact"):
        content = (place.out / artifact["path"]).read_bytes()
        assert (artifact["bytes"], artifact["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    with zipfile.ZipFile(place.out / "output.zip") as archive:
        assert archive.namelist() == ["train.json"]


@pytest.mark.parametrize(
    "parallel",
    [{"tensor": 2}, {"pipeline": 2}, {"data": 2}, {"pipeline": 2, "virtual_pipeline": 2}],
    ids=["tensor", "pipeline", "data", "interleaved"],
)
def test_a_layout_gives_the_one_process_curve(
    one: tuple[Place, Result], cache: Path, tmp_path: Path, parallel: dict[str, int]
) -> None:
    result = Place(tmp_path, cache).run(config(**parallel), processes=2)
    assert result.rc == 0, result.err
    curve = losses(result)
    assert len(curve) == ITERATIONS
    assert curve == pytest.approx(losses(one[1]), abs=1e-5)
    assert validation(result) == pytest.approx(validation(one[1]), abs=1e-5)
    norms, expected = ([line["grad_norm"] for line in r.wires("iteration")] for r in (result, one[1]))
    assert norms == pytest.approx(expected, abs=1e-4)
    assert result.stages == [("train", "start"), ("train", "done")]


def test_a_diverging_training_counts_and_says_it(prepared: Result, cache: Path, tmp_path: Path) -> None:
    assert prepared.rc == 0, prepared.err
    wild = config()
    wild["training"] |= {"train_iters": 4, "learning_rate": 1e38, "warmup_steps": 0, "clip_grad": 0.0}
    wild["training"]["stop_on_nan"] = False
    wild["model"] = {"tied_embeddings": True, "qkv_bias": True, "kv_heads": 4}  # the other branches of the model
    place = Place(tmp_path, cache)
    result = place.run(wild)
    assert result.rc == 0, result.err
    curve = [line["loss"] for line in result.wires("iteration")]
    assert curve[0] is not None
    assert curve[-1] is None
    assert result.diagnostic("nan")["level"] == "warning"
    written = json.loads((place.out / "train.json").read_text())
    assert written["nan_iterations"] == sum(loss is None for loss in curve)
    assert written["final_loss"] is None
    assert result.diagnostic("result")["level"] == "warning"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parallel": {"data": 2}}, "1 process started, but training.parallel asks for 2"),
        ({}, "Run stage=data first"),
    ],
    ids=["world", "unprepared"],
)
def test_what_cannot_start_says_why(place: Place, change: dict[str, Any], told: str) -> None:
    result = place.run({"training": change})
    assert result.rc == 2
    (line,) = result.err.strip().splitlines()
    assert told in line
    assert result.stages == [("train", "start"), ("train", "failed")]


def test_a_rank_that_dies_ends_the_others(prepared: Result, cache: Path, tmp_path: Path) -> None:
    assert prepared.rc == 0, prepared.err
    place = Place(tmp_path, cache)
    long = config(data=2)
    long["training"]["train_iters"] = 100_000
    command = place.command(long)
    store = _free_port()
    children = []
    for rank in range(2):
        env = place.environment(
            RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store)
        )
        child = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        children.append(child)
    try:
        last = children[1].stdout
        assert last is not None
        assert any('"type":"iteration"' in line for line in last)  # training has begun
        os.kill(children[1].pid, signal.SIGKILL)
        _out, err = children[0].communicate(timeout=TIMEOUT_S)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert children[0].returncode == 1
    assert "rank 0 of 2 lost its peers" in err
    assert "Traceback" not in err


def _free_port() -> int:
    """A port that was free a moment ago."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
