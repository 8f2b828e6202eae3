"""The measured rates of this machine: what a single process and two say, and how several devices are put together."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from runners.schema import RunConfig
from tests.runners.support import Place, Result
from tests.runners.test_main import failed_plainly

pytestmark = pytest.mark.train

CONFIG = {"model": {"hidden": 128, "ffn": 352}, "training": {"micro_batch": 2, "sequence_length": 64}}
SHAPES = [(128, 352, 128), (128, 128, 352), (128, 128, 128)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Place]:
    """Two processes that measured together."""
    folder = tmp_path_factory.mktemp("pair")
    place = Place(folder / "run", folder / "cache")
    return place.run(CONFIG, "stage=calibrate", processes=2), place


def test_the_figure_agrees_with_a_measurement_of_our_own(place: Place) -> None:
    result = place.run(CONFIG, "stage=calibrate")
    assert result.rc == 0, result.err
    assert result.stages == [("calibrate", "start"), ("calibrate", "done")]
    told = result.diagnostic("calibrate")["data"]
    assert [(s["m"], s["n"], s["k"]) for s in told["shapes"]] == SHAPES
    assert all(0 < s["least"] <= s["tflops"] <= s["greatest"] for s in told["shapes"])
    assert told["matmul_tflops"] == max(s["tflops"] for s in told["shapes"]) == told["rates"]["fp32"]["value"]
    # A core does some tens of GFLOP/s in fp32: a mistake in the unit or the formula would be a thousandfold.
    assert 1e-4 < told["matmul_tflops"] < 5
    assert told["rates"]["all_reduce"]["why"] == "one process has nobody to reduce with"
    assert told["rates"]["host_to_device"]["why"] == "the CPU's memory is the host's"


def test_two_processes_measure_together_and_the_first_tells_of_both(pair: tuple[Result, Place]) -> None:
    result, _ = pair
    assert result.rc == 0, result.err
    told = result.diagnostic("calibrate")["data"]
    assert [one["rank"] for one in told["devices"]] == [0, 1]
    each = sorted(one["fp32"]["value"] for one in told["devices"])
    rate = told["rates"]["fp32"]
    assert [rate["least"], rate["greatest"]] == each
    assert rate["value"] == pytest.approx(sum(each) / 2, abs=1e-6)
    assert told["devices"][rate["slowest"]["rank"]]["fp32"]["value"] == each[0]
    assert 0.1 < told["rates"]["copy"]["value"] < 2000  # GB/s of this machine's memory
    reduced = told["rates"]["all_reduce"]
    assert (reduced["collective"], reduced["processes"], reduced["unit"]) == ("gloo", 2, "GB/s")
    assert reduced["value"] == max(size["value"] for size in reduced["sizes"])
    assert [size["bytes"] for size in reduced["sizes"]] == [64 << 10, 1 << 20, 16 << 20]


def test_the_measurement_is_an_artifact_of_the_run(pair: tuple[Result, Place]) -> None:
    result, place = pair
    (artifact,) = result.wires("artifact")
    path = place.out / artifact["path"]
    assert path.name == "calibrate.json"
    assert json.loads(path.read_text()) == result.diagnostic("calibrate")["data"]
    assert path.stat().st_size == artifact["bytes"]


def test_the_shapes_are_the_model_s() -> None:
    from runners.calibrate import shapes

    assert shapes(RunConfig.model_validate(CONFIG)) == SHAPES


def test_a_slow_first_product_does_not_make_the_passes_short() -> None:
    from runners.rates import repeats_for

    timed: list[int] = []

    def clock(_product: object, repeats: int) -> float:
        timed.append(repeats)
        return repeats * 1e-4 + (1.0 if len(timed) == 1 else 0.0)  # as where a library is loaded

    assert repeats_for(lambda: None, clock, 0.05) >= 500


def test_what_takes_long_is_measured_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from runners import rates

    now = [0.0]

    def slow(_work: object, repeats: int) -> float:
        now[0] += 3.0 * repeats
        return 3.0 * repeats

    monkeypatch.setattr(rates, "host_clock", slow)
    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert rates.timed(lambda: None, torch.device("cpu")).seconds == (3.0,) * rates.LEAST_PASSES
    assert now[0] <= 15.0


def test_a_rate_is_the_median_pass_with_its_least_and_greatest() -> None:
    from runners.rates import Passes

    assert Passes((0.5, 0.25, 1.0)).rate(2.0) == {"value": 4.0, "least": 2.0, "greatest": 8.0, "passes": 3}


def _device(rank: int, **values: float | None) -> dict[str, Any]:
    rates = {
        name: {"value": v, "why": "no fp8"} if v is None else {"value": v, "least": v, "greatest": v, "passes": 9}
        for name, v in values.items()
    }
    return {"rank": rank, "host": "h", "device": "GPU", "gpu": rank, "uuid": f"GPU-{rank}", **rates}


def test_the_slow_card_is_named_and_does_not_move_the_median() -> None:
    from runners.calibrate import document

    config = RunConfig.model_validate({"training": {"backend": "cuda", "precision": "bf16"}})
    speeds = (800.0, 790.0, 560.0, 810.0)
    everyone = [_device(rank, bf16=v, fp8=None if rank == 1 else 1500.0) for rank, v in enumerate(speeds)]
    told = document(config, everyone, {"value": None, "why": "one process"})
    assert told["matmul_tflops"] == 795.0
    rate = told["rates"]["bf16"]
    assert (rate["least"], rate["greatest"]) == (560.0, 810.0)
    assert rate["slowest"] == {"rank": 2, "host": "h", "gpu": 2, "uuid": "GPU-2"}
    assert told["rates"]["fp8"] == {"value": None, "unit": "TFLOP/s", "why": "no fp8"}
    assert "fp8" not in told["devices"][1]


def test_a_precision_that_cannot_be_had_leaves_the_other_rates_and_says_why() -> None:
    from runners.calibrate import document

    config = RunConfig.model_validate({"training": {"backend": "cuda", "precision": "fp8"}})
    told = document(config, [_device(0, bf16=312.0, fp8=None)], {"value": None, "why": "one process"})
    assert (told["matmul_tflops"], told["matmul_why"]) == (None, "no fp8")
    assert told["rates"]["bf16"]["value"] == 312.0


def test_a_product_that_the_library_refuses_costs_none_of_the_others() -> None:
    from runners.calibrate import _tried

    def refuse() -> dict[str, Any]:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    assert _tried(refuse) == {"value": None, "why": "CUDA out of memory. Tried to allocate 2 GiB"}


def test_a_family_without_a_device_is_refused_in_a_sentence(place: Place) -> None:
    result = place.run({**CONFIG, "training": {"backend": "cuda", "precision": "bf16"}}, "stage=calibrate")
    assert "training.backend=cuda: torch" in failed_plainly(result, 2)
    assert "sees no GPU here" in result.err


def test_a_precision_that_is_not_measured_is_refused(place: Place) -> None:
    result = place.run({**CONFIG, "training": {"precision": "fp8"}}, "stage=calibrate")
    assert "not training.precision=fp8" in failed_plainly(result, 2)


def test_a_command_cannot_be_calibrated(place: Place) -> None:
    result = place.run({"runner": {"name": "command", "argv": ["true"]}}, "stage=calibrate")
    assert "runner.name=command does not bring" in failed_plainly(result, 2)
