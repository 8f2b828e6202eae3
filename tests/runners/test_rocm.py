"""The runners under HIP's names: the same code trains and measures, and says ROCm where it speaks of the build."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from runners.errors import ConfigurationError
from runners.process import Process
from tests.runners.support import ROOT, Place, Result

pytestmark = pytest.mark.train

PLAIN = {"layer": "plain", "loss": "plain", "optimizer": "plain", "attention": "math"}
CONFIG: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 64, "ffn": 128},
    "data": {"name": "synthetic", "source": "synthetic", "samples": 32},
    "training": {
        "name": "rocm", "backend": "rocm", "precision": "bf16", "train_iters": 3, "sequence_length": 32,
        "micro_batch": 2, "global_batch": 4, "distributed_optimizer": False, "overlap": False, "kernels": PLAIN,
    },
}  # fmt: skip


def on_rocm(place: Place, config: dict[str, Any], *words: str) -> Result:
    """The runner's command line under the faked boundary."""
    command = place.command(config, *words)
    program = [sys.executable, str(ROOT / "tests" / "runners" / "hip.py"), *command[3:]]
    done = subprocess.run(
        program, cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=110, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_the_megatron_runner_trains_in_bf16_under_hip_s_names(place: Place) -> None:
    assert place.run(CONFIG, "stage=data").rc == 0
    result = on_rocm(place, CONFIG, "stage=train")
    assert result.rc == 0, result.err
    losses = [line["loss"] for line in result.wires("iteration")]
    assert len(losses) == 3
    assert all(math.isfinite(loss) and 4 < loss < 9 for loss in losses)
    said = result.diagnostic("provenance")["data"]
    assert said["torch"]["hip"] == "7.2.53211"
    assert said["torch"]["cuda"] is None
    assert (said["backend"], said["precision"]) == ("rocm", "bf16")
    assert result.diagnostic("kernels")["data"]["attention"] == "math"


def test_calibrate_measures_under_hip_s_names(place: Place) -> None:
    small = {**CONFIG, "training": {**CONFIG["training"], "micro_batch": 1, "global_batch": 1}}
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import hip; hip.pretend()\n"
        "from runners import calibrate, rates\n"
        "calibrate.SQUARE, rates._GPU_COPY_BY, rates._TRANSFER_BY = (64, 64, 64), 1 << 20, 1 << 20\n"
        "rates._GPU_PASS_S = 0.002\n"
        "from runners.__main__ import leave, main\n"
        "leave(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, str(ROOT / "tests" / "runners")]
    command += place.command(small, "stage=calibrate")[3:]
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=110, check=False
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert result.rc == 0, result.err
    told = result.diagnostic("calibrate")["data"]
    assert (told["backend"], told["device"], told["precision"]) == ("rocm", "AMD Instinct MI300X", "bf16")
    assert told["shapes"][0]["m"] == 64
    assert told["matmul_tflops"] == told["rates"]["bf16"]["value"] > 0
    for name in ("copy", "host_to_device", "device_to_host"):
        assert told["rates"][name]["value"] > 0
    fp8 = told["rates"]["fp8"]  # a CPU may not multiply AMD's format: then it says so
    assert fp8["value"] is not None or fp8["why"]


@pytest.fixture
def hip(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch that was built for ROCm and sees two GPUs; the card's architecture is the test's to set."""
    import torch

    card = SimpleNamespace(name="AMD Instinct", gcnArchName="gfx942:sramecc+", uuid=None)
    monkeypatch.setattr(torch.version, "hip", "7.2.53211")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    return card


def test_a_process_gets_its_own_gpu_and_meets_over_rccl(hip: SimpleNamespace) -> None:
    from runners import group
    from runners.calibrate import device_of

    device = device_of("rocm", Process(rank=3, world=4, local_rank=1, launched=True))
    assert str(device) == "cuda:1"
    assert group.collective_of(str(device)) == "nccl"
    with pytest.raises(ConfigurationError, match="this machine shows 2 GPUs"):
        device_of("rocm", Process(rank=2, world=4, local_rank=2, launched=True))


def test_the_other_vendor_s_backend_is_refused_in_a_sentence(hip: SimpleNamespace) -> None:
    from runners.calibrate import device_of

    with pytest.raises(ConfigurationError, match=r"training.backend=cuda, but this torch was built for ROCm\."):
        device_of("cuda", Process())


@pytest.mark.parametrize(
    ("arch", "known"),
    [
        ("gfx942:sramecc+:xnack-", "e4m3fnuz"),
        ("gfx950", "e4m3fn"),
        ("gfx1201", "e4m3fn"),
        ("gfx90a:sramecc+", None),
        ("", None),
    ],
)
def test_the_fp8_format_is_the_architecture_s(hip: SimpleNamespace, arch: str, known: str | None) -> None:
    import torch

    from runners.rates import Unknown, fp8_format

    hip.gcnArchName = arch
    found = fp8_format(torch.device("cuda", 0))
    assert (None if isinstance(found, Unknown) else found) == known
    if isinstance(found, Unknown):
        assert found.why == f"{arch.partition(':')[0] or 'this GPU'} has no fp8 products that torch knows"


def test_a_cuda_card_s_fp8_is_ocp_from_ada_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from runners.rates import Unknown, fp8_format

    for capability, known in (((8, 0), None), ((8, 9), "e4m3fn"), ((9, 0), "e4m3fn"), ((10, 0), "e4m3fn")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, found=capability: found)
        found = fp8_format(torch.device("cuda", 0))
        assert (None if isinstance(found, Unknown) else found) == known
