"""The measured rate of this machine's matrix products."""

from __future__ import annotations

import pytest

from runners.schema import RunConfig
from tests.runners.support import Place
from tests.runners.test_main import failed_plainly

pytestmark = pytest.mark.train

CONFIG = {"model": {"hidden": 128, "ffn": 352}, "training": {"micro_batch": 2, "sequence_length": 64}}


def test_the_figure_agrees_with_a_measurement_of_our_own(place: Place) -> None:
    result = place.run(CONFIG, "stage=calibrate")
    assert result.rc == 0, result.err
    assert result.stages == [("calibrate", "start"), ("calibrate", "done")]
    told = result.diagnostic("calibrate")["data"]
    assert [(s["m"], s["n"], s["k"]) for s in told["shapes"]] == [(128, 352, 128), (128, 128, 352), (128, 128, 128)]
    assert all(0 < s["least"] <= s["tflops"] <= s["greatest"] for s in told["shapes"])
    assert told["matmul_tflops"] == max(s["tflops"] for s in told["shapes"])
    # A core does some tens of GFLOP/s in fp32: a mistake in the unit or the formula would be a thousandfold.
    assert 1e-4 < told["matmul_tflops"] < 5


def test_the_shapes_are_the_model_s() -> None:
    from runners.calibrate import shapes

    config = RunConfig.model_validate(CONFIG)
    assert shapes(config)[0] == (2 * 64, 352, 128)


def test_a_slow_first_product_does_not_make_the_passes_short() -> None:
    from runners.calibrate import _repeats

    timed: list[int] = []

    def clock(_product: object, repeats: int) -> float:
        timed.append(repeats)
        return repeats * 1e-4 + (1.0 if len(timed) == 1 else 0.0)  # as where a library is loaded

    assert _repeats(lambda: None, clock, 0.05) >= 500


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
